// FormulaOptimizer: the base of an optimizer that is one file: its options, its formula (formula.h) and what connects
// the two.
//
//   class Lion : public FormulaOptimizer<Lion, LionOptions> {
//    public:
//     using FormulaOptimizer::FormulaOptimizer;
//     static constexpr const char* kName = "Lion";
//     static void check(const LionOptions& o);                 // throws Error if an option is out of range
//     static void visit(LionOptions& o, OptionVisitor visit);  // the numeric options by name; "lr" among them
//     static ScalarRule rule(const LionOptions& o);            // the formula's scalars
//     static const UpdatePlan& plan(const LionOptions& o);     // the formula and its states
//     static FormulaCode<LionOptions> code();                  // both, as kernel code: optimizers.h
//   };
//
// If rule() and plan() need other files, then they are functions of NAME.cc, and code() is there, too (adam.cc).
//
// May have `static double initial_state(const LionOptions& o)`: the value of every element of new states, otherwise 0.
//
// Constructors throw Error for what check() refuses, and for parameters that cannot be updated (optimizer.h).
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "rondo/optim/formula.h"
#include "rondo/optim/optimizer.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// Throws Error, which names the optimizer, unless all are in [0, 1).
void check_betas(const char* optimizer, std::span<const double> betas);

// The functions of an optimizer that must be kernel code.
template <class Options> struct FormulaCode {
  const UpdatePlan& (*plan)(const Options& options);
  ScalarRule (*rule)(const Options& options);
};

template <class Self, class Options> class FormulaOptimizer : public Optimizer {
 public:
  explicit FormulaOptimizer(std::vector<Tensor> params, Options options = {})
      : FormulaOptimizer({ParamGroup<Options>{std::move(params), options}}) {}
  explicit FormulaOptimizer(std::vector<ParamGroup<Options>> groups) { Optimizer::add_groups(*this, groups); }
  // One more group; see Optimizer::n_groups(). Throws what the constructor throws; then the optimizer is as before.
  void add_param_group(const ParamGroup<Options>& group) {
    add_between_steps([&] {
      Self::check(group.options);
      StateInit init{.format = group.options.state};
      if constexpr (requires { Self::initial_state(group.options); }) init.value = Self::initial_state(group.options);
      add_group(group.params, Self::code().plan(group.options), init);
      groups_.push_back(group.options);
    });
  }
  const char* name() const override { return Self::kName; }

 protected:
  void visit_options(int group, OptionVisitor visit) override {
    Self::visit(groups_[static_cast<size_t>(group)], visit);
  }
  ScalarRule scalars(int group) const override { return Self::code().rule(groups_[static_cast<size_t>(group)]); }

 private:
  std::vector<Options> groups_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
