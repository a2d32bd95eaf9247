// A program that trains a small network and looks whether Rondo left the process as it was. Prints the losses.
//   neighbours hidden    no library of the process has the names of oneDNN (unless Rondo shows them)
//   neighbours beside    another one has them: libtorch, or what decoys.sh makes
//   neighbours again     the first training fails; the next one begins when there is a line to read
#include <dlfcn.h>

#include <clocale>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "rondo/runtime/base/parallel.h"
#include "rondo/tests/neighbours/training.h"

extern char** environ;

namespace {

// A line of /proc/self/status. "SigCgt" is the mask of the signals that have a handler.
std::string status(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  return "?";
}
std::vector<std::string> environment() {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) all.emplace_back(*entry);
  return all;
}
// As the process was started.
std::vector<std::string> first_environment() {
  std::ifstream file("/proc/self/environ");
  std::vector<std::string> all;
  for (std::string entry; std::getline(file, entry, '\0');) all.push_back(entry);
  return all;
}
size_t threads() {
  const std::filesystem::directory_iterator begin("/proc/self/task");
  return static_cast<size_t>(std::distance(begin, {}));
}

int failures = 0;
void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string mode = argc == 2 ? argv[1] : "";
  expect(std::string(std::setlocale(LC_ALL, nullptr)) == "C", "the locale is the program's when main() begins");
  expect(environment() == first_environment(), "the environment is the program's when main() begins");
  const std::string handled = status("SigCgt"), ignored = status("SigIgn"), blocked = status("SigBlk");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  expect(handled.find_first_not_of("\t0") == handled.npos, "no signal has a handler when main() begins");
#endif
  void* const malloc_before = dlsym(RTLD_DEFAULT, "malloc");
  rondo::set_num_threads(1);
  const size_t threads_before = threads();

  if (mode == "again") try {
      rondo::tests::losses();
      expect(false, "the first training fails");
    } catch (const rondo::Error& e) {
      std::printf("%s\n", e.what());
      std::fflush(stdout);
      static_cast<void>(std::getchar());
    }
  const std::vector<double> losses = rondo::tests::losses();
  for (const double loss : losses) std::printf("%.17g\n", loss);
  expect(losses.back() < losses.front() / 2, "the network learns");
  expect(threads() == threads_before, "oneDNN's OpenMP starts no threads");
  if (mode == "hidden") expect(dlsym(RTLD_DEFAULT, "dnnl_version") == nullptr, "oneDNN's names are nobody else's");
  expect(dlsym(RTLD_DEFAULT, "malloc") == malloc_before, "malloc() is the one that it was");
  expect(std::string(std::setlocale(LC_ALL, nullptr)) == "C", "the locale is as before");
  expect(environment() == first_environment(), "the environment is as before");
  expect(status("SigCgt") == handled && status("SigIgn") == ignored && status("SigBlk") == blocked,
         "what signals do is as before");
  return failures == 0 ? 0 : 1;
} catch (const std::exception& e) {
  std::printf("FAILED: %s\n", e.what());
  return 1;
}
