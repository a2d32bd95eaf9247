// Chooses the mutant of a process: RONDO_MUTANT=name. Only files that mutants.py has rewritten include it.
#pragma once

#include <cstdlib>
#include <cstring>

namespace rondo::mutants {

inline bool is_on(const char* name) {
  static const char* const chosen = std::getenv("RONDO_MUTANT");
  return chosen != nullptr && std::strcmp(chosen, name) == 0;
}

}  // namespace rondo::mutants

// Mutants are what warnings are for.
#pragma GCC diagnostic ignored "-Wparentheses"
#pragma GCC diagnostic ignored "-Wtype-limits"
#pragma GCC diagnostic ignored "-Wstringop-overflow"
#pragma GCC diagnostic ignored "-Warray-bounds"
#pragma GCC diagnostic ignored "-Wnonnull"
#pragma GCC diagnostic ignored "-Wunused"
#pragma GCC diagnostic ignored "-Wextra"
#pragma GCC diagnostic ignored "-Wreturn-type"

#define RONDO_MUTANT(name) (::rondo::mutants::is_on(name))
