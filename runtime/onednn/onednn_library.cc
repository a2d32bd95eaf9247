#include "rondo/runtime/onednn/onednn_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/library_error.h"
#include "rondo/runtime/onednn/own_names.h"

// Note [Neighbours]. A program may contain other libraries that export the same names as oneDNN, and the dynamic linker
// binds a name to the first definition that it finds. For example, libtorch exports templates of its own oneDNN. In a
// program with libtorch, Rondo's oneDNN filled the tables of libtorch's copy, its own tables stayed empty, and every
// product failed. So the library is
// - opened with RTLD_LOCAL: other libraries do not see its names;
// - bound to its own names (own_names.h), even if the program exports the same ones.
// Names that it takes from other libraries are bound as usual: a program may have its own malloc() and operator new.
//
// Limits. While the library is opened, its constructors run with the bindings of the dynamic linker; those of 2.6.3 and
// 3.7.2 use no name that another library could define (tests/neighbours/decoys.sh). Three constants of the standard
// library are unique in a process (STB_GNU_UNIQUE); all definitions of them are equal. If the program or another
// library has loaded the same file (by its soname), dlopen() returns that copy, which had other bindings until then.

// Note [At exit]. Ops may run while the process ends: in destructors of global objects and in atexit() functions.
// oneDNN's functions have static objects (kernels, lists of kernels, a cache). They would be destroyed before functions
// that main() registered earlier run; a product of a new shape then hung or crashed. So they are never destroyed: where
// the library would register a destructor, it calls a function that does nothing. This function is one of the C
// library, because a plug-in that contains Rondo may be unloaded while oneDNN stays. Objects that are made while the
// library is opened are destroyed; product_library.cc decides when it is opened.

namespace rondo::cpu {
namespace {

// Closes the library unless it is released: after an error, the next call may find another file under the name.
using Opened = std::unique_ptr<void, decltype([](void* library) { dlclose(library); })>;

// Opens a library. Returns null on failure; `why_not` is then the reason.
Opened open_file(const char* file, std::string& why_not) {
  if (*file == '\0') return nullptr;
  Opened library(dlopen(file, RTLD_NOW | RTLD_LOCAL));
  if (library == nullptr) why_not = dlerror();
  return library;
}

Opened open_library() {
  std::string why_not;
  if (Opened library = open_file(kLibraryFile.name, why_not)) return library;
  if (Opened library = open_file(kLibraryFile.path, why_not)) return library;
  // In a package that contains other libraries (an archive, cmake/packages.cmake), the dynamic linker searches Rondo's
  // folder for the library that Rondo opens, but not for the libraries that this one needs. So they are opened first.
  for (const char* const* needed = kLibraryFile.needs; *needed != nullptr; ++needed)
    static_cast<void>(dlopen(*needed, RTLD_NOW | RTLD_LOCAL));
  if (Opened library = open_file(kLibraryFile.name, why_not)) return library;
  throw LibraryError(absl::StrCat("oneDNN cannot be loaded: ", why_not, ". Install oneDNN ", DNNL_VERSION_MAJOR,
                                  " (its package is the one that has ", kLibraryFile.name,
                                  "), or start the program with its folder in LD_LIBRARY_PATH"));
}

// Looks up a function of the library.
template <class Function> void bind(Function*& function, void* library, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr)
    throw LibraryError(absl::StrCat("oneDNN cannot be used: ", kLibraryFile.name, " has no function ", name,
                                    "; Rondo was built for oneDNN ", DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR));
}

// oneDNN 2 must be at least 2.6 (cmake/onednn.cmake): earlier versions have kernels that read outside of their memory.
void check_version(const dnnl_version_t& version) {
  if (version.major == DNNL_VERSION_MAJOR && (version.major != 2 || version.minor >= 6)) return;
  throw LibraryError(absl::StrCat("oneDNN cannot be used: ", kLibraryFile.name, " is version ", version.major, ".",
                                  version.minor, ", and Rondo was built for version ", DNNL_VERSION_MAJOR,
                                  DNNL_VERSION_MAJOR == 2 ? " from 2.6 on" : ""));
}

Library load() {
  Opened opened = open_library();
  void* const file = opened.get();
  Library table;
  bind(table.dnnl_version, file, "dnnl_version");
  check_version(*table.dnnl_version());
#define RONDO_ONEDNN_BIND(name) bind(table.name, file, #name);
  RONDO_ONEDNN_FUNCTIONS(RONDO_ONEDNN_BIND)
  RONDO_ONEDNN_FUNCTIONS_OF_VERSION(RONDO_ONEDNN_BIND)
#undef RONDO_ONEDNN_BIND
  use_own_names(file);
  use_instead(file, "__cxa_atexit", reinterpret_cast<void*>(&getppid));
  // The process may have several OpenMP runtimes, and a plug-in that contains Rondo may have one. The right one is that
  // whose functions the library calls.
  const char* const threads = "omp_get_max_threads";
  const bool needed = function_used(file, threads) == dlsym(file, threads);
  const auto openmp = [&](const char* name) {
    void* const of_program = needed ? nullptr : dlsym(RTLD_DEFAULT, name);
    return of_program != nullptr ? of_program : dlsym(file, name);
  };
  table.omp_get_max_threads = reinterpret_cast<int (*)()>(openmp(threads));
  table.omp_set_num_threads = reinterpret_cast<void (*)(int)>(openmp("omp_set_num_threads"));
  static_cast<void>(opened.release());
  return table;
}

}  // namespace

const Library& library() {
  static Library loaded = load();  // not const, because tests replace functions in it
  return loaded;
}

}  // namespace rondo::cpu
