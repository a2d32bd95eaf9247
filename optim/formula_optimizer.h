// FormulaOptimizer: the base of an optimizer that is one file: its options, its formula (formula.h) and what connects
// the two.
//
//   class Lion : public FormulaOptimizer<Lion, LionOptions> {
//    public:
//     using FormulaOptimizer::FormulaOptimizer;
//     static constexpr const char* kName = "Lion";
//     static void check(const LionOptions& o);                          // throws Error if an option is out of range
//     static void visit(LionOptions& o, OptionVisitor visit);           // the numeric options by name; "lr" among them
//     static ScalarRule rule(const LionOptions& o);                     // the formula's scalars
//     static const UpdatePlan& plan(const LionOptions& o);              // the formula and its states
//     static const UpdatePlan& kernel_plan(const LionOptions& options); // plan() as kernel code: optimizers.h
//   };
//
// Constructors throw Error for what check() refuses, and for parameters that cannot be updated (optimizer.h).
#pragma once

#include <utility>
#include <vector>

#include "rondo/optim/formula.h"
#include "rondo/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

template <class Self, class Options> class FormulaOptimizer : public Optimizer {
 public:
  explicit FormulaOptimizer(std::vector<Tensor> params, Options options = {})
      : FormulaOptimizer({ParamGroup<Options>{std::move(params), options}}) {}
  explicit FormulaOptimizer(std::vector<ParamGroup<Options>> groups) {
    add_groups(groups, [this](const ParamGroup<Options>& group) { add(group); });
  }
  // One more group; see Optimizer::n_groups(). Throws what the constructor throws; then the optimizer is as before.
  void add_param_group(const ParamGroup<Options>& group) {
    add_later([&] { add(group); });
  }
  const char* name() const override { return Self::kName; }

 protected:
  void visit_options(int group, OptionVisitor visit) override {
    Self::visit(groups_[static_cast<size_t>(group)], visit);
  }
  ScalarRule scalars(int group) const override { return Self::rule(groups_[static_cast<size_t>(group)]); }

 private:
  void add(const ParamGroup<Options>& group) {
    Self::check(group.options);
    add_group(group.params, Self::kernel_plan(group.options), {.format = group.options.state});
    groups_.push_back(group.options);
  }
  std::vector<Options> groups_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
