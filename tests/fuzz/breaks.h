// What may run outside of a compiled program, and why: the whole list. The fuzzer fails where a region breaks for a
// reason that is not on it, or that no step of the program can be.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/compile/region_report.h"
#include "rondo/tests/fuzz/program.h"

namespace rondo::fuzz {

struct AllowedBreak {
  std::string_view reason;  // a part of a text in Region::breaks()
  unsigned steps;           // StepFlags: one of the program's steps has one of these
  const char* why;
};
std::span<const AllowedBreak> allowed_breaks();

// An op that runs inside of a compiled program, but as a call of its own kernel: no kernel is generated for it.
struct LibraryOp {
  std::string_view name;  // OpDef::name
  const char* why;
};
std::span<const LibraryOp> library_ops();
// How often each op runs as such a call whose result has elements and dimensions.
std::map<std::string_view, int> called_ops(const compile::Region& region);
// Empty if each of these is on that list; otherwise the one that is not, in words.
std::string unexpected_library_call(const compile::Region& region);

// Empty if all that the region ran outside of its programs is on the list; otherwise what is not, in words.
std::string unexpected_break(const Program& program, const compile::Region& region);
// A break that default mode does without.
bool breaks_to_order_sums(const compile::Region& region);

// Both modes fuse alike: only library calls may take over what are kernels in exact mode. Otherwise the difference, in
// words. `merges`: default mode may make one product of several. `images`: how many it may convert as they leave.
std::string difference_in_kernels(const std::vector<compile::RegionReport>& exact,
                                  const std::vector<compile::RegionReport>& relaxed, bool merges, int images);

}  // namespace rondo::fuzz
