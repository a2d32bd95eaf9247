#include "rondo/tests/fuzz/breaks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

constexpr unsigned kAnyWrite = kInPlace | kOwnMemory;

constexpr AllowedBreak kAllowed[] = {
    // C++ between the ops.
    {"a value is read", kHost, "C++ asks for a number, which only a run has"},
    {"memory that a recorded op reads is written", kHost, "a write through a pointer is no op"},
    {"memory that a recorded op writes is read", kHost, "so is a read through a pointer"},
    // The tape, inside a region.
    {"a gradient is watched", kTape, "a hook sees a gradient that a compiled backward may never compute"},
    {"backward", kTape, "a backward runs what is recorded so far, and frees it"},
    {"autograd::grad", kTape, "the same"},
    // Writes that no version of a value describes (Note [Writes]).
    {"in place: two tensors share memory", kAnyWrite, "unknown aliasing is never guessed"},
    {"a tensor is read whose place in memory that was written is unknown", kAnyWrite, "the same"},
    {"in place: the tensor that holds the memory is not dense", kAnyWrite, "a version is a dense value"},
    {"in place: the tensor overlaps itself", kAnyWrite, "eager execution refuses most of these"},
    {"in place: the tensor comes from outside and has a history", kAnyWrite,
     "eager execution gives the caller's tensor another history, which goes through the old one"},
    {"in place: somebody holds another tensor of the memory", kAnyWrite, "who holds it is not known"},
    {"in place: a second handle of the memory", kAnyWrite, "two histories of one memory"},
    {"in place: somebody holds a view", kAnyWrite, "eager execution refuses to read it"},
    {"in place: the tensor is a view that was made under no_grad", kAnyWrite, "eager execution refuses it"},
    {"in place: the tensor keeps its history", kAnyWrite, "a hook would see gradients of two versions in one"},
    {"in place: another region has yet to compute the tensor", kAnyWrite, "the outer recording knows no such write"},
    {"in place: a loop over time runs in pieces", kAnyWrite, "a piece is played as often as there are steps"},
    {"a view is read again whose base was written to", kAnyWrite, "exact mode adds gradients in eager's order"},
};

}  // namespace

std::span<const AllowedBreak> allowed_breaks() { return kAllowed; }

std::string unexpected_break(const Program& program, const compile::RegionReport& report) {
  if (report.graph_breaks == 0) return "";
  const std::string said = absl::StrCat("region ", report.name, " broke ", report.graph_breaks,
                                        " times, the last time because ", report.last_break);
  const auto* found = std::ranges::find_if(kAllowed, [&](const AllowedBreak& allowed) {
    return report.last_break.find(allowed.reason) != std::string::npos;
  });
  if (found == std::end(kAllowed)) return said + ", which tests/fuzz/breaks.cc does not list";
  const bool may = std::any_of(program.steps.begin(), program.steps.end(),
                               [&](const Step& step) { return (step.kind->flags & found->steps) != 0; });
  return may ? "" : said + ", for which no step gives a reason";
}

}  // namespace rondo::fuzz
