// Guesses what a recording would be if some dimensions of its inputs had other sizes. C++ passes plain integers to
// reshape and slice, so it is unknown which of these integers depend on a size. Guesses are tested at other sizes,
// where the shapes of most wrong guesses do not fit together. A guess may still be wrong. So a guessed recording is
// never run, and what it says about kernels is checked whenever their code is used (jit/kernel_table.h).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "rondo/compile/ir/graph.h"

namespace rondo::compile {

// A dimension whose size is a variable.
struct VariableDim {
  int32_t input;  // index into Graph::inputs
  int32_t dim;
  int32_t variable;  // dimensions of one variable have one size
};

class Resizing {
 public:
  // Finds the integers of `recorded` (which must outlive this) that follow the variables, whose sizes are `sizes` now.
  // nullopt if no choice of integers gives shapes that fit together, or if a size is below 3: so small a size equals
  // too many unrelated integers.
  static std::optional<Resizing> find(const Graph& recorded, std::span<const VariableDim> dims,
                                      std::span<const int64_t> sizes);

  // Returns the recording with these sizes of the variables, or nullopt if the shapes do not fit together. Values keep
  // their ids.
  std::optional<Graph> at(std::span<const int64_t> sizes) const;

 private:
  // How an integer attribute follows the variables: it is a multiple of the product of the sizes of `factors`, or the
  // size of `addend` plus a constant.
  struct Rule {
    int32_t node;
    int32_t position;
    uint32_t factors = 0;  // bit mask of variables
    int32_t addend = -1;
  };
  Resizing(const Graph& recorded, std::span<const VariableDim> dims, std::span<const int64_t> sizes,
           bool constants_follow)
      : recorded_(&recorded),
        dims_(dims.begin(), dims.end()),
        sizes_(sizes.begin(), sizes.end()),
        constants_follow_(constants_follow) {}
  bool find_rules();
  bool find_rules_of(Graph& graph, int32_t node, std::span<const int64_t> sizes);
  std::optional<Rule> rule_for(int32_t node, int32_t position) const;
  int64_t apply(const Rule& rule, int64_t value, std::span<const int64_t> sizes) const;
  void resize_inputs(Graph& graph, std::span<const int64_t> sizes) const;

  const Graph* recorded_;
  std::vector<VariableDim> dims_;
  std::vector<int64_t> sizes_;
  bool constants_follow_;    // sizes of tensors that are made without operands follow variables
  std::vector<Rule> rules_;  // in the order of the nodes
};

}  // namespace rondo::compile
