#include "rondo/tests/fake_cuda/source.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <system_error>

#include "rondo/tests/cuda_on_host/machine.h"
#include "rondo/tests/fake_cuda/machine.h"

namespace rondo::fake_cuda {
namespace {

namespace fs = std::filesystem;
using cuda_on_host::GridSize;
using cuda_on_host::SharedMemory;
using cuda_on_host::View;

constexpr size_t kMostTogether = 50;

uint64_t hash(const std::string& text, uint64_t sum) {
  for (const char c : text) sum = (sum ^ static_cast<unsigned char>(c)) * 1099511628211u, sum ^= sum >> 29;
  return sum;
}
std::string contents(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}
const std::string& header() {
  static const std::string text = contents(RONDO_CUDA_ON_HOST_HEADER);
  return text;
}
// The parts that a library depends on beside the source. No path is part of it, so a copy of the tree can use a copy of
// the cache.
uint64_t compiler_hash() {
  static const uint64_t sum = hash(header(), hash(RONDO_KERNEL_COMPILER, 14695981039346656037u));
  return sum;
}
bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

struct FoundKernel {
  std::string name;
  size_t at;                // of the name, in the text
  int most_threads = 1024;  // of a block
};

// A number, or a name that the text defines as one.
int number_at(const std::string& text, size_t at) {
  size_t end = at;
  while (end < text.size() && is_word(text[end])) ++end;
  const std::string word = text.substr(at, end - at), define = "#define " + word + " ";
  const size_t defined = text.find(define);
  return std::atoi(defined == text.npos ? word.c_str() : text.c_str() + defined + define.size());
}

// The functions behind `__global__`.
std::vector<FoundKernel> find_kernels(const std::string& text) {
  std::vector<FoundKernel> found;
  for (size_t at = 0; (at = text.find("__global__", at)) != text.npos;) {
    FoundKernel kernel;
    for (at += 10; at < text.size();) {
      if (std::isspace(static_cast<unsigned char>(text[at])) != 0) {
        ++at;
        continue;
      }
      const size_t begin = at;
      while (at < text.size() && is_word(text[at])) ++at;
      if (at == begin) break;
      const std::string word = text.substr(begin, at - begin);
      const size_t open = text.find_first_not_of(" \n", at);
      if (word == "__launch_bounds__") {
        kernel.most_threads = number_at(text, open + 1);
        at = text.find(')', at) + 1;
      } else if (open != text.npos && text[open] == '(') {
        kernel.name = word;
        kernel.at = begin;
        found.push_back(kernel);
        break;
      }
    }
  }
  return found;
}

// Takes back what a source defines, so that it is nothing to the source behind it.
std::string undefine(const std::string& text) {
  std::string lines;
  for (size_t at = 0; (at = text.find("#define ", at)) != text.npos;) {
    size_t end = at += 8;
    while (end < text.size() && is_word(text[end])) ++end;
    const std::string name = text.substr(at, end - at);
    if (header().find("#define " + name) == std::string::npos) lines += "#undef " + name + "\n";
  }
  return lines;
}

// A source, and the names of what its library has for it.
struct Source {
  std::string text, key;
  std::vector<FoundKernel> kernels;
  explicit Source(const std::string& given) : text(given), kernels(find_kernels(given)) {
    char hex[40];
    std::snprintf(hex, sizeof hex, "%016llx%016llx", static_cast<unsigned long long>(hash(text, compiler_hash())),
                  static_cast<unsigned long long>(hash(text, ~compiler_hash())));
    key = hex;
  }
  std::string symbol(const FoundKernel& kernel) const { return kernel.name + "_" + key; }
  fs::path library() const { return fs::path(RONDO_CUDA_ON_HOST_CACHE) / (key + ".so"); }
  bool exists() const {
    std::error_code ignored;
    return fs::exists(library(), ignored);
  }
  // As a part of a file.
  std::string part() const {
    std::string renamed = text;
    for (auto kernel = kernels.rbegin(); kernel != kernels.rend(); ++kernel)
      renamed.replace(kernel->at, kernel->name.size(), symbol(*kernel));
    std::string part = "#undef CUDA_ON_HOST_PART\n#define CUDA_ON_HOST_PART \"_" + key + "\"\nnamespace m_" + key +
                       " {\n#line 1 \"" + key + "\"\n" + renamed + "\n" + undefine(text);
    if (text.find("__shared__") != text.npos) part += "CUDA_ON_HOST_SHARED_OF(m_" + key + ", _" + key + ")\n";
    for (const FoundKernel& kernel : kernels) part += "CUDA_ON_HOST_KERNEL(" + symbol(kernel) + ")\n";
    return part + "}\n";
  }
};

std::mutex mutex;  // guards what follows
std::map<std::string, TrafficCount>& traffic_by_kernel() {
  static auto* map = new std::map<std::string, TrafficCount>;
  return *map;
}
std::atomic<bool> counts_traffic{false};
std::vector<std::string>& announced() {
  static auto* list = new std::vector<std::string>;
  return *list;
}

// Makes the libraries of these sources: one file, with a name for each. Throws what the compiler says.
void compile(const std::vector<Source>& sources) {
  const fs::path folder = RONDO_CUDA_ON_HOST_CACHE;
  fs::create_directories(folder);
  const std::string base = (folder / (sources.front().key + "-" + std::to_string(getpid()))).string();
  {
    std::ofstream file(base + ".cc");
    for (const Source& source : sources) file << source.part();
  }
  const std::string command = std::string(RONDO_KERNEL_COMPILER) + " -include " RONDO_CUDA_ON_HOST_HEADER " " + base +
                              ".cc -o " + base + ".so 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot run " + command);
  std::string output;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  const bool refused = pclose(pipe) != 0;
  std::error_code ignored;
  if (refused) {
    fs::remove(base + ".cc", ignored);
    throw std::runtime_error("the host's compiler refuses the kernels:\n" + output);
  }
  // Other processes see a name when the library behind it is whole.
  for (const Source& source : sources) {
    fs::create_hard_link(base + ".so", base + ".link", ignored);
    fs::rename(base + ".link", source.library());
  }
  fs::remove(base + ".so", ignored);
  fs::remove(base + ".cc", ignored);
}

// Together with what was announced.
void compile_with_others(const Source& wanted) {
  std::vector<Source> sources{wanted};
  {
    const std::lock_guard lock(mutex);
    for (const std::string& text : announced()) {
      Source other(text);
      const bool known = std::any_of(sources.begin(), sources.end(),
                                     [&](const Source& s) { return s.key == other.key; });
      if (!known && !other.exists() && !other.kernels.empty()) sources.push_back(std::move(other));
    }
    announced().clear();
  }
  try {
    for (size_t first = 0; first < sources.size(); first += kMostTogether) {
      const auto begin = sources.begin() + static_cast<std::ptrdiff_t>(first);
      compile({begin, begin + static_cast<std::ptrdiff_t>(std::min(kMostTogether, sources.size() - first))});
    }
  } catch (const std::runtime_error&) {
    if (sources.size() == 1) throw;
    compile({wanted});  // another one is at fault, and fails when it is loaded
  }
}

cuda_on_host::Order order_of(uint64_t seed) {
  return seed == 0       ? cuda_on_host::Order::kForward
         : seed == 1     ? cuda_on_host::Order::kReverse
         : seed % 2 == 0 ? cuda_on_host::Order::kRandom
                         : cuda_on_host::Order::kDrift;
}

}  // namespace

std::vector<std::pair<std::string, Kernel>> kernels_of_source(const std::string& text, uint64_t seed) {
  const Source source(text);
  std::vector<std::pair<std::string, Kernel>> kernels;
  if (source.kernels.empty()) return kernels;
  if (!source.exists()) compile_with_others(source);
  void* library = dlopen(source.library().c_str(), RTLD_NOW | RTLD_LOCAL);  // stays open
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto symbol = [&]<class Function>(const std::string& name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name.c_str()));
    return function != nullptr;
  };
  SharedMemory (*bind)(const View*);
  SharedMemory (*shared)();
  if (!symbol("cuda_on_host_bind", bind))
    throw std::runtime_error("no library of kernels: " + source.library().string());
  bind(cuda_on_host::view());
  const SharedMemory memory = symbol("m_" + source.key + "__shared", shared) ? shared() : SharedMemory{};
  // The size for all kernels of the source together, without the guards between the variables.
  const auto dynamic_shared = static_cast<unsigned>(std::accumulate(memory.dynamic, memory.dynamic_end, size_t{0}));
  const auto static_shared = static_cast<unsigned>((memory.end - memory.begin) -
                                                   (memory.guards_end - memory.guards) * ::cuda_on_host::kGuardBytes) -
                             dynamic_shared;
  for (const FoundKernel& found : source.kernels) {
    const std::string name = source.symbol(found);
    void (*call)(void**);
    size_t (*bytes)(size_t*);
    if (!symbol(name + "__call", call) || !symbol(name + "__bytes", bytes))
      throw std::runtime_error("a library of kernels without " + found.name);
    Kernel kernel;
    kernel.argument_bytes.resize(bytes(nullptr));
    bytes(kernel.argument_bytes.data());
    kernel.most_threads = found.most_threads;
    kernel.static_shared = static_shared;
    kernel.run = [code = cuda_on_host::Kernel{found.name, call, memory}, seed, bytes = kernel.argument_bytes,
                  dynamic_shared](const Launch& launch) {
      if (launch.grid[2] != 1 || launch.block[1] != 1 || launch.block[2] != 1)
        throw std::runtime_error("the executor of CUDA source has grids of two dimensions and blocks of one");
      if (launch.shared_bytes != dynamic_shared)
        throw std::runtime_error("the source has " + std::to_string(dynamic_shared) +
                                 " bytes of dynamic shared memory, the launch asks for " +
                                 std::to_string(launch.shared_bytes));
      const GridSize grid{launch.grid[0], launch.grid[1], static_cast<int>(launch.block[0])};
      cuda_on_host::Traffic traffic;
      Machine& machine = Machine::instance();
      const bool counts = counts_traffic.load(std::memory_order_relaxed), counts_bytes = machine.counts_bytes();
      cuda_on_host::launch(code, grid, launch.args, order_of(seed), seed, counts || counts_bytes ? &traffic : nullptr);
      if (counts_bytes) machine.note_bytes(launch, bytes, traffic);
      if (!counts) return;
      const std::lock_guard lock(mutex);
      TrafficCount& sum = traffic_by_kernel()[code.name];
      sum.requests += traffic.requests;
      sum.sectors += traffic.sectors;
      sum.ideal_sectors += traffic.ideal_sectors;
      sum.wide += traffic.wide;
    };
    kernels.emplace_back(found.name, std::move(kernel));
  }
  return kernels;
}

std::vector<std::pair<std::string, Kernel>> names_in_source(const std::string& text) {
  std::vector<std::pair<std::string, Kernel>> kernels;
  for (const FoundKernel& found : find_kernels(text)) {
    Kernel kernel;
    kernel.most_threads = found.most_threads;
    kernels.emplace_back(found.name, std::move(kernel));
  }
  return kernels;
}

std::vector<bool> constant_arguments(const std::string& text, const std::string& kernel) {
  std::vector<bool> constant;
  for (const FoundKernel& found : find_kernels(text)) {
    if (found.name != kernel) continue;
    int depth = 0;
    std::string argument;
    for (size_t at = text.find('(', found.at); at < text.size(); ++at) {
      const char c = text[at];
      depth += (c == '(' || c == '<' || c == '[') - (c == ')' || c == '>' || c == ']');
      if (depth == 0 || (c == ',' && depth == 1)) {
        const size_t begin = argument.find_first_not_of(" \n(");
        constant.push_back(begin != argument.npos && argument.compare(begin, 6, "const ") == 0 &&
                           argument.find('*') != argument.npos);
        argument.clear();
        if (depth == 0) break;
      } else {
        argument += c;
      }
    }
    break;
  }
  return constant;
}

void count_traffic(bool on) {
  const std::lock_guard lock(mutex);
  traffic_by_kernel().clear();
  counts_traffic = on;
}
std::vector<std::pair<std::string, TrafficCount>> counted_traffic() {
  const std::lock_guard lock(mutex);
  return {traffic_by_kernel().begin(), traffic_by_kernel().end()};
}

void announce_source(const std::string& source) {
  const std::lock_guard lock(mutex);
  announced().push_back(source);
}

}  // namespace rondo::fake_cuda
