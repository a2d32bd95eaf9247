#include "rondo/compile/region/check_floats.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/compile/ir/scanner.h"
#include "rondo/compile/plan/make_plan.h"
#include "rondo/compile/stages/dump.h"

namespace rondo::compile {
namespace {

// Compares the floats of a call's program with those of `derived`, the program's graph, derived again from the call's
// floats.
void compare(const char* which, Graph derived, const Program& program, Device device, const Floats& floats) {
  const Plan plan = plan_launches(std::move(derived), target_of(device), program.how());
  if (!same_but_floats(plan.graph, program.graph()))
    throw_internal(absl::StrCat("floats: the ", which, " of this call is another graph, though all guards hold"));
  const Floats expected = floats_for(program.plan(), plan.graph);
  const auto differ = [&](const char* what, size_t at, double right, double wrong) {
    throw_internal(absl::StrCat("floats: ", what, " ", at, " of the ", which, " is ", exact_text(right),
                                ", and its formula gives ", exact_text(wrong)));
  };
  for (size_t i = 0; i < expected.scalars.size(); ++i)
    if (!same_bits({&expected.scalars[i], 1}, {&floats.scalars[i], 1}))
      differ("scalar", i, expected.scalars[i], floats.scalars[i]);
  for (size_t i = 0; i < expected.attrs.size(); ++i)
    for (size_t k = 0; k < expected.attrs[i].floats.size(); ++k) {
      const double right = expected.attrs[i].floats[k], given = floats.attrs[i].floats[k];
      if (!same_bits({&right, 1}, {&given, 1})) differ("a float of library call", i, right, given);
    }
}

// Derives the graphs of the call again.
DerivedGraphs derive_again(const Entry& entry, const Graph& recorded, const Arriving* arriving) {
  DerivedGraphs made = entry.derive_again(recorded, arriving);
  if (made.partition && !made.partition->keeps_the_same_as(*entry.partition()))
    throw_internal("floats: this call keeps other values for its backward, though all guards hold");
  return made;
}

}  // namespace

void check_forward_floats(const Binding& binding) {
  const Entry& entry = *binding.entry();
  const DumpsOff quiet;
  const FloatTrace trace(binding.graph(), entry.floats());
  compare("forward", derive_again(entry, trace.graph(), nullptr).forward(), entry.forward(), entry.device(),
          *binding.forward());
}

void check_backward_floats(const Binding& binding, const Binding::Backward& bound, const Arriving& arriving) {
  const Entry& entry = *binding.entry();
  const DumpsOff quiet;
  const FloatTrace trace(binding.graph(), entry.is_usual(arriving) ? entry.floats() : bound.compiled->floats);
  BackwardGraph derived = *std::move(derive_again(entry, trace.graph(), &arriving).backward);
  if (derived.contributions != bound.compiled->contributions || derived.grad_inputs != bound.compiled->grad_inputs)
    throw_internal("floats: this call has gradients of other inputs, though all guards hold");
  compare("backward", std::move(derived.graph), *bound.compiled->program, entry.device(), *bound.floats);
}

}  // namespace rondo::compile
