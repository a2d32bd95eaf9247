// The ELF machine type of the processor that this program is built for.
#pragma once

#include <elf.h>

namespace rondo::compile {

// EM_NONE: we do not read the object files of this processor.
#if defined(__x86_64__)
inline constexpr Elf64_Half kElfMachine = EM_X86_64;
#elif defined(__aarch64__) && defined(__AARCH64EL__)
inline constexpr Elf64_Half kElfMachine = EM_AARCH64;
#else
inline constexpr Elf64_Half kElfMachine = EM_NONE;
#endif

}  // namespace rondo::compile
