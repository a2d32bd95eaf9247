// What the names in a shared library's tables stand for. Only on x86-64 and aarch64; elsewhere all of this does
// nothing.
//
//   void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
//   use_own_names(library);  // its own functions and data, also where other libraries export the same names
#pragma once

#include <string_view>

namespace rondo::cpu {

// For each name that a library uses, the dynamic linker gives it the first definition in the program, though it may
// define the name itself. From here on it uses its own, as if it had been linked with -Bsymbolic. Left alone are names
// that it does not define, and those that are unique in a process (STB_GNU_UNIQUE).
//
// Throws LibraryError if the system does not let us write to the library's tables.
//
// Why not dlopen's RTLD_DEEPBIND: the library would call malloc() and operator new of the C and C++ libraries instead
// of the program's, yet it frees what std::string's functions took from the program's. And in a program with a
// sanitizer that flag ends the process.
void use_own_names(void* library);

// The address that a library has for a function of another library. Null: it does not use that name.
void* function_used(void* library, std::string_view name);
// From here on the library calls `function` by a name that it takes from another library. Throws as use_own_names().
void use_instead(void* library, std::string_view name, void* function);

}  // namespace rondo::cpu
