#include "rondo/compile/plan/seams.h"

#include <algorithm>
#include <tuple>

namespace rondo::compile {
namespace {

// By slot: the first and the last launch that accesses the slot; -1: no launch does.
struct Lifetimes {
  std::vector<int32_t> first, last;
};

Lifetimes lifetimes(const Plan& plan) {
  Lifetimes of{std::vector<int32_t>(plan.n_slots(), -1), std::vector<int32_t>(plan.n_slots(), -1)};
  for (int32_t i = 0; i < std::ssize(plan.launches); ++i)
    for (const Address& address : plan.launches[static_cast<size_t>(i)].addresses) {
      if (address.slot < 0) continue;
      const auto slot = static_cast<size_t>(address.slot);
      if (of.first[slot] < 0) of.first[slot] = i;
      of.last[slot] = i;
    }
  return of;
}

}  // namespace

void place_seams(Plan& plan, const std::vector<PlannedSeam>& seams) {
  if (seams.empty()) return;
  const std::vector<int32_t> last = lifetimes(plan).last;
  for (const PlannedSeam& seam : seams) {
    int32_t end = -1;
    const auto wait_for = [&](int32_t slot) { end = std::max(end, last[static_cast<size_t>(slot)]); };
    for (int32_t output : seam.outputs) wait_for(plan.outputs[static_cast<size_t>(output)].slot);
    for (int32_t input : seam.overwritten) {
      wait_for(input);
      // A parameter's update may write the parameter's copy, too (runtime/ops/lowered.h).
      for (size_t c = 0; c < plan.copies.size(); ++c)
        if (plan.copies[c].input == input) wait_for(static_cast<int32_t>(plan.graph.inputs.size() + c));
    }
    // Consecutive combines run as one launch, so a seam comes after all of them.
    const auto n = static_cast<int32_t>(plan.launches.size());
    for (++end; end < n && plan.launches[static_cast<size_t>(end)].kind == Launch::Kind::kCombine;) ++end;
    plan.seams.push_back({end, seam.part, seam.outputs});
  }
  std::stable_sort(plan.seams.begin(), plan.seams.end(), [](const Plan::Seam& a, const Plan::Seam& b) {
    return std::tie(a.launch, a.part) < std::tie(b.launch, b.part);
  });
  std::vector<Plan::Seam> joined;
  for (Plan::Seam& seam : plan.seams)
    if (joined.empty() || joined.back().launch != seam.launch || joined.back().part != seam.part)
      joined.push_back(std::move(seam));
    else joined.back().outputs.insert(joined.back().outputs.end(), seam.outputs.begin(), seam.outputs.end());
  plan.seams = std::move(joined);
  const auto final_at = [&](int32_t output) {
    return last[static_cast<size_t>(plan.outputs[static_cast<size_t>(output)].slot)];
  };
  for (Plan::Seam& seam : plan.seams)
    std::stable_sort(seam.outputs.begin(), seam.outputs.end(),
                     [&](int32_t a, int32_t b) { return final_at(a) < final_at(b); });
  note_lifetimes(plan);
}

void note_lifetimes(Plan& plan) {
  if (plan.seams.empty()) return;
  const Lifetimes of = lifetimes(plan);
  const size_t inputs = plan.graph.inputs.size();
  plan.last_launch.assign(of.last.begin(), of.last.begin() + static_cast<std::ptrdiff_t>(inputs));
  for (size_t i = 0; i < plan.fresh.size(); ++i)
    plan.fresh[i].first_launch = std::max(of.first[inputs + plan.copies.size() + i], 0);
}

}  // namespace rondo::compile
