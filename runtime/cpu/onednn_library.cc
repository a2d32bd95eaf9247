#include "rondo/runtime/cpu/onednn_library.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/cpu/own_names.h"
#include "rondo/runtime/library_error.h"

// Note [Neighbours]. A program may hold other libraries that export what oneDNN exports, and the dynamic linker binds a
// name to the first one that it meets. libtorch exports templates of a oneDNN of its own: beside it, the tables of that
// one were filled, those of ours stayed empty, and every product failed. So the library is
// - opened with RTLD_LOCAL: its names are nobody else's;
// - bound to its own names (own_names.h), also where the program exports the same ones.
// What it takes from others it takes as every library does: a program may have its own malloc() and operator new.
//
// Limits. While the library is opened, its constructors run as the dynamic linker has bound them; those of 2.6.3 and
// 3.7.2 use no name that could be another's (tests/neighbours/decoys.sh). Three constants of the standard library are
// unique in a process (STB_GNU_UNIQUE), and equal wherever they come from. If the program or another library has
// loaded the same file (by its soname), we are given that copy; what it did before, it did as it was bound then.

namespace rondo::cpu {
namespace {

// Null, and why not.
void* open_file(const char* file, std::string& why_not) {
  if (*file == '\0') return nullptr;
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) why_not = dlerror();
  return library;
}

void* open_library() {
  std::string why_not;
  if (void* library = open_file(kLibraryFile.name, why_not)) return library;
  if (void* library = open_file(kLibraryFile.path, why_not)) return library;
  // Where Rondo carries other libraries with it (an archive, cmake/packages.cmake), the dynamic linker looks in Rondo's
  // folder for what Rondo opens, but not for what that needs, unless the program names the folder.
  for (const char* const* needed = kLibraryFile.needs; *needed != nullptr; ++needed)
    static_cast<void>(dlopen(*needed, RTLD_NOW | RTLD_LOCAL));
  if (void* library = open_file(kLibraryFile.name, why_not)) return library;
  throw LibraryError(absl::StrCat("oneDNN cannot be loaded: ", why_not, ". Install oneDNN ", DNNL_VERSION_MAJOR,
                                  " (its package is the one that has ", kLibraryFile.name,
                                  "), or start the program with its folder in LD_LIBRARY_PATH"));
}

// A function of the library itself.
template <class Function> void bind(Function*& function, void* library, const char* name) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function == nullptr)
    throw LibraryError(absl::StrCat("oneDNN cannot be used: ", kLibraryFile.name, " has no function ", name,
                                    "; Rondo was built for oneDNN ", DNNL_VERSION_MAJOR, ".", DNNL_VERSION_MINOR));
}

Library load() {
  void* const opened = open_library();
  use_own_names(opened);
  Library table;
  bind(table.dnnl_version, opened, "dnnl_version");
  const dnnl_version_t& version = *table.dnnl_version();
  if (version.major != DNNL_VERSION_MAJOR)
    throw LibraryError(absl::StrCat("oneDNN cannot be used: ", kLibraryFile.name, " is version ", version.major, ".",
                                    version.minor, ", and Rondo was built for version ", DNNL_VERSION_MAJOR));
#define RONDO_ONEDNN_BIND(name) bind(table.name, opened, #name);
  RONDO_ONEDNN_FUNCTIONS(RONDO_ONEDNN_BIND)
  RONDO_ONEDNN_FUNCTIONS_OF_VERSION(RONDO_ONEDNN_BIND)
#undef RONDO_ONEDNN_BIND
  // Where several OpenMPs are in the process, that of the library: the program's first, else the one that it needs.
  const auto openmp = [&](const char* name) {
    void* const of_program = dlsym(RTLD_DEFAULT, name);
    return of_program != nullptr ? of_program : dlsym(opened, name);
  };
  table.omp_get_max_threads = reinterpret_cast<int (*)()>(openmp("omp_get_max_threads"));
  table.omp_set_num_threads = reinterpret_cast<void (*)(int)>(openmp("omp_set_num_threads"));
  return table;
}

}  // namespace

const Library& library() {
  static const Library loaded = load();
  return loaded;
}

}  // namespace rondo::cpu
