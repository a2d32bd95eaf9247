// A recording as it would be at other sizes of some dimensions of its inputs. C++ hands plain integers to reshape and
// slice, so nobody can know which of them follow a size; but at a size one smaller most wrong guesses do not fit
// together. A recording at other sizes is therefore never run: what it says of kernels is checked wherever code is used
// (jit/kernel_table.h).
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
  // Nothing if no choice of them gives a recording that fits together, or if a size is below 3, where all integers look
  // alike.
  static std::optional<Resizing> find(const Graph& recorded, std::span<const VariableDim> dims,
                                      std::span<const int64_t> sizes);

  // The recording with these sizes of the variables; nothing if it does not fit together. Values keep their numbers.
  std::optional<Graph> at(std::span<const int64_t> sizes) const;

 private:
  // An attribute's integer: times the sizes of `factors`, or a sum with that of `addend`.
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
  bool constants_follow_;    // sizes of what is made without operands
  std::vector<Rule> rules_;  // by node
};

}  // namespace rondo::compile
