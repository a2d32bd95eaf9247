// Mutates the recorded config.json files and loads each: a typed error or a model, never a crash. Run by hand, best in
// a build with address and undefined sanitizers:
//
//   fuzz_config [seconds = 60] [seed = 1]
//
// Also mutates the header of the weights. A failing input stays in the folder that is printed at the start.
#include <sys/resource.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "rondo/runtime/base/error.h"
#include "rondo/tests/modules/pretrained_cases.h"

namespace rondo::nn {
namespace {

namespace fs = std::filesystem;

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
void write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// Mutations that one of single bytes would seldom make.
constexpr const char* kValues[] = {"null",
                                   "-1",
                                   "0",
                                   "1",
                                   "2147483648",
                                   "9223372036854775807",
                                   "1e308",
                                   "-0.0",
                                   "true",
                                   "false",
                                   "[]",
                                   "{}",
                                   "\"\"",
                                   "\"gelu\"",
                                   "\"llama3\"",
                                   "\"linear\"",
                                   "[1,2]",
                                   "{\"factor\": -1}",
                                   "[[[[[[[[[[]]]]]]]]]]",
                                   "\"\\ud800\"",
                                   "0.5"};

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}
  size_t below(size_t n) { return n == 0 ? 0 : std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  void mutate(std::string& text, const std::string& other) {
    switch (below(8)) {
      case 0: text[below(text.size())] = static_cast<char>(below(256)); break;
      case 1: text.erase(below(text.size()), 1 + below(20)); break;
      case 2: text.insert(below(text.size()), 1, static_cast<char>(below(256))); break;
      case 3: {  // a piece of another file
        const size_t at = below(other.size());
        text.insert(below(text.size()), other, at, 1 + below(60));
        break;
      }
      case 4: {  // a digit
        const size_t at = text.find_first_of("0123456789", below(text.size()));
        if (at != text.npos) text[at] = static_cast<char>('0' + below(10));
        break;
      }
      case 5: text.resize(below(text.size())); break;
      default: {  // a field's value
        const size_t colon = text.find(": ", below(text.size()));
        if (colon == text.npos) return;
        const size_t end = text.find_first_of(",\n", colon);
        if (end != text.npos) text.replace(colon + 2, end - colon - 2, kValues[below(std::size(kValues))]);
      }
    }
    if (text.empty()) text = "{";
  }

 private:
  std::mt19937_64 random_;
};

int run(double seconds, uint64_t seed) {
  std::string folder = (fs::temp_directory_path() / "rondo-config-fuzz-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return 2;
  std::printf("in %s, seed %llu\n", folder.c_str(), static_cast<unsigned long long>(seed));
  std::fflush(stdout);
  Mutator mutator(seed);
  const auto& cases = pretrained_cases();
  std::vector<std::string> configs;
  for (const std::string& name : cases) configs.push_back(read(recorded_folder(name) + "/config.json"));
  int64_t runs = 0, models = 0, refused = 0;
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds) {
    const size_t which = mutator.below(cases.size());
    std::string config = configs[which];
    const bool weights = mutator.below(5) == 0;
    if (!weights)
      for (size_t n = 1 + mutator.below(4); n > 0; --n) mutator.mutate(config, configs[mutator.below(configs.size())]);
    std::string tensors = read(recorded_folder(cases[which]) + "/model.safetensors");
    if (weights) {
      std::string header = tensors.substr(0, 2000);
      mutator.mutate(header, config);
      tensors.replace(0, 2000, header);
    }
    write(folder + "/config.json", config);
    write(folder + "/model.safetensors", tensors);
    ++runs;
    try {
      load_case(cases[which], folder, {.allow_unknown_fields = mutator.below(2) == 0}, {});
      ++models;
    } catch (const Error&) {  // FileError, ConfigError and StateDictError are Errors; others end the program
      ++refused;
    }
  }
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%lld runs: %lld models, %lld refused; peak memory %ld MB\n", static_cast<long long>(runs),
              static_cast<long long>(models), static_cast<long long>(refused), usage.ru_maxrss >> 10);
  fs::remove_all(folder);
  return models > 0 && refused > 0 ? 0 : 1;
}

}  // namespace
}  // namespace rondo::nn

int main(int argc, char** argv) {
  if (argc > 1 && argv[1][0] == '-') {
    std::fprintf(stderr, "usage: fuzz_config [SECONDS [SEED]]\n");
    return 2;
  }
  return rondo::nn::run(argc > 1 ? std::atof(argv[1]) : 60, argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1);
}
