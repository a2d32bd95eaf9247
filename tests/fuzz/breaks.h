// What may run outside of a compiled program, and why: the whole list. The fuzzer fails where a region breaks for a
// reason that is not on it, or that no step of the program can be.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "rondo/compile/region_report.h"
#include "rondo/tests/fuzz/program.h"

namespace rondo::fuzz {

struct AllowedBreak {
  std::string_view reason;  // a part of the text in RegionReport::last_break
  unsigned steps;           // StepFlags: one of the program's steps has one of these
  const char* why;
};
std::span<const AllowedBreak> allowed_breaks();

// Empty if all that the region ran outside of its programs is on the list; otherwise what is not, in words.
std::string unexpected_break(const Program& program, const compile::RegionReport& report);

}  // namespace rondo::fuzz
