// FormulaOptimizer: the base of the optimizers. An optimizer that is one file (lion.h) consists of its options, its
// formula (formula.h) and a class that connects the two:
//
//   class Lion : public FormulaOptimizer<Lion, LionOptions> {
//    public:
//     using FormulaOptimizer::FormulaOptimizer;
//     static constexpr const char* kName = "Lion";
//     static constexpr OptionList kOptions{...};               // every option by name (option_list.h); "lr" among them
//     static void check(const LionOptions& o);                 // throws Error if an option is out of range
//     static ScalarRule rule(const LionOptions& o);            // the formula's scalars
//     static const UpdatePlan& plan(const LionOptions& o);     // the formula and its states
//     static FormulaCode<LionOptions> code();                  // both, as kernel code: optimizers.h
//   };
//
// If rule() and plan() need other files, they are functions of NAME.cc, and code() is there, too (adam.cc).
//
// The options' struct ends with `StateFormat state` and `bool masters = true` (Note [Master weights] of optimizer.h).
// The class may have `static double initial_state(const LionOptions& o)`: the first value of all states, otherwise 0.
//
// Constructors throw Error for what check() refuses, and for parameters that cannot be updated (optimizer.h).
#pragma once

#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "rondo/optim/formula.h"
#include "rondo/optim/optimizer.h"
#include "rondo/optim/option_list.h"
#include "rondo/runtime/base/within_memory.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

// Throws Error, which names the optimizer, unless all are in [0, 1).
void check_betas(const char* optimizer, std::span<const double> betas);
// Throws Error, which names the optimizer and the option, if one is negative or NaN.
void check_not_negative(const char* optimizer, std::initializer_list<std::pair<const char*, double>> options);

// The functions of an optimizer that must be kernel code.
template <class Options> struct FormulaCode {
  // Returns the plan by which a parameter is updated. Throws Error if this optimizer cannot update it.
  const UpdatePlan& (*plan)(const Options& options, const Tensor& param);
  ScalarRule (*rule)(const Options& options);
};

template <class Self, class Options> class FormulaOptimizer : public Optimizer {
 public:
  explicit FormulaOptimizer(std::vector<Tensor> params, Options options = {}) {
    add_param_group({std::move(params), std::move(options)});
    check_has_parameters();
  }
  explicit FormulaOptimizer(std::vector<ParamGroup<Options>> groups) {
    for (const ParamGroup<Options>& group : groups) add_param_group(group);
    check_has_parameters();
  }
  // Adds a group; see Optimizer::n_groups(). Throws what the constructor throws, and then leaves the optimizer
  // unchanged.
  void add_param_group(const ParamGroup<Options>& group) {
    within_memory(Self::kName, [&] {
      groups_.push_back(group.options);
      try {
        add_group(group.params);
      } catch (...) {
        groups_.pop_back();
        throw;
      }
    });
  }
  const char* name() const override { return Self::kName; }

 protected:
  const Options& options(int group) const { return groups_[static_cast<size_t>(group)]; }

  void visit_options(int group, OptionVisitor visit) override {
    Self::kOptions.visit(groups_[static_cast<size_t>(group)], visit);
  }
  void check_options(int group) const override { Self::check(options(group)); }
  StateInit state_init(int group) const override {
    StateInit init{.format = options(group).state, .masters = options(group).masters};
    if constexpr (requires { Self::initial_state(options(group)); }) init.value = Self::initial_state(options(group));
    return init;
  }
  const UpdatePlan& update_plan(int group, const Tensor& param) const override {
    return Self::code().plan(options(group), param);
  }
  ScalarRule scalars(int group) const override { return Self::code().rule(options(group)); }

 private:
  std::vector<Options> groups_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
