// Changes how the names (symbols) that a shared library uses are bound. These functions work only on x86-64 and
// aarch64; on other processors they do nothing.
//
//   void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
//   use_own_names(library);  // it uses its own functions and data, even if other libraries export the same names
#pragma once

#include <string_view>

namespace rondo::cpu {

// The dynamic linker binds each name that a library uses to the first definition in the program, even if the library
// defines the name itself. This function rebinds such names to the library's own definitions, as if it had been linked
// with -Bsymbolic. Exceptions are names that are unique in a process (STB_GNU_UNIQUE).
//
// Throws LibraryError if the system does not allow writing to the library's tables.
//
// Why not RTLD_DEEPBIND of dlopen()? The library would call malloc() and operator new of the C and C++ libraries
// instead of the program's. But it also frees memory that std::string's functions have taken from the program's
// allocator, and would free it with the wrong allocator. And with a sanitizer in the program, this flag ends the
// process.
void use_own_names(void* library);

// Returns the address to which a name from another library is bound in `library`; null if `library` does not use the
// name.
void* function_used(void* library, std::string_view name);
// Binds a name that `library` takes from another library to `function`. Throws like use_own_names().
void use_instead(void* library, std::string_view name, void* function);

}  // namespace rondo::cpu
