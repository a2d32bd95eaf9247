// FloatTrace: finds how the floats of a compiled program follow from the floats of its recording. While a FloatTrace
// exists, the rules of ops on its thread compute with symbols (runtime/base/sym_float.h). The FloatTrace then returns
// formulas, which each call evaluates for its own floats, and guards, which say for which floats the formulas hold.
// A "derivation" is the run of the rules and passes that makes the program from the recording.
//
//   FloatTrace trace(recorded);
//   const Graph derived = decompose(trace.graph());       // its floats are symbols
//   const FloatFormulas formulas = trace.formulas(of);    // `of`: the floats that a plan needs
//   formulas.evaluate(floats_of(another), results);       // gives what decompose(another) would contain
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/base/hash_map.h"

namespace rondo::compile {

// The float attributes of all nodes of a recording, in order.
using RecordedFloats = absl::InlinedVector<double, 16>;
RecordedFloats floats_of(const Graph& recorded);
// Returns `recorded` with other floats. REQUIRES: as many floats as it has.
Graph with_recorded_floats(const Graph& recorded, std::span<const double> floats);
bool same_bits(std::span<const double> a, std::span<const double> b);

// Formulas that compute in registers. The first registers hold the recording's floats, the next ones the constants.
// Then follows one register for each term, which combines two earlier registers. Immutable once made.
struct FloatFormulas {
  struct Term {
    FloatOp op;
    int32_t a, b;
  };
  int32_t n_recorded = 0;
  std::vector<double> constants;
  std::vector<Term> terms;
  std::vector<int32_t> results;  // the registers that hold the results

  // True if a result depends on the recording's floats.
  bool vary() const;
  using Registers = absl::InlinedVector<double, 32>;
  void evaluate(std::span<const double> recorded, Registers& registers) const;
};

// The comparisons of floats that were made during the derivation, each with its outcome.
struct FloatGuards {
  struct Guard {
    FloatTest test;
    bool outcome;
  };
  std::vector<Guard> guards;
  FloatFormulas sides;  // results: the two sides of each guard's comparison, guard by guard

  bool hold(std::span<const double> recorded) const;
};

class FloatTrace final : public FloatTracer {
 public:
  // Each float of `recorded` becomes a symbol.
  explicit FloatTrace(const Graph& recorded) : FloatTrace(recorded, floats_of(recorded)) {}
  // For a program that is derived again, with other floats. `reference`: the floats that the recording had in the first
  // derivation. Passes compare reference values, so they join the same floats as in the first derivation.
  FloatTrace(const Graph& recorded, std::span<const double> reference);

  // The recording, with a symbol in the place of each float.
  const Graph& graph() const { return graph_; }
  // Returns formulas that compute `results`. Each result is a symbol or a constant.
  FloatFormulas formulas(std::span<const SymFloat> results);
  FloatGuards guards() const;

  int32_t trace(FloatOp op, SymFloat a, SymFloat b, double value) override;
  void guard(FloatTest test, SymFloat a, SymFloat b, bool outcome) override;

  // Returns the value of `number` in the first derivation, which may be the current one.
  double reference(SymFloat number) const;

 private:
  struct Symbol {
    enum Kind : uint8_t { kRecorded, kConstant, kTerm } kind;
    FloatOp op = FloatOp::kAdd;
    int32_t a = -1, b = -1;  // kTerm: the operands, as indices into symbols_
    double reference = 0;    // the value in the first derivation
  };
  using Key = std::tuple<uint8_t, uint8_t, int32_t, int32_t, uint64_t>;
  int32_t add(const Symbol& symbol);
  int32_t symbol_of(SymFloat number);
  FloatFormulas formulas_of(std::span<const int32_t> results) const;

  Graph graph_;
  std::vector<Symbol> symbols_;  // first the recording's floats, then the other symbols in the order of their creation
  int32_t n_recorded_ = 0;
  HashMap<Key, int32_t> known_;  // the index in symbols_, so that equal symbols share one entry
  struct Noted {
    FloatTest test;
    int32_t a, b;
    bool outcome;
    friend bool operator==(const Noted&, const Noted&) = default;
  };
  std::vector<Noted> noted_;
  FloatTracerScope scope_;
};

// For passes that merge two nodes with equal floats. Two floats may be joined if their join_key() is equal. A pass that
// merges the nodes calls join_floats(). Then the compiled code serves only recordings in which these two floats are
// equal.
uint64_t join_key(SymFloat number);
void join_floats(SymFloat a, SymFloat b);

// Returns formulas of `numbers` in the trace that is active on this thread. Without a trace, `numbers` must be
// constants.
FloatFormulas formulas_of(std::span<const SymFloat> numbers);
// Replaces the symbols in the graph by plain numbers.
void forget_symbols(Graph& graph);

}  // namespace rondo::compile
