// FloatTrace: finds how the floats of a compiled program follow from the floats of its recording. While one lives,
// rules of ops run on symbols (runtime/base/sym_float.h) on its thread. It gives formulas, which each call evaluates
// for its own floats, and guards, which say for which floats the formulas hold.
//
//   FloatTrace trace(recorded);
//   const Graph derived = decompose(trace.graph());       // its floats are symbols
//   const FloatFormulas formulas = trace.formulas(of);    // of the floats that a plan wants
//   formulas.evaluate(floats_of(another), results);       // equal to the same derivation from `another`
#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "rondo/compile/ir/graph.h"
#include "rondo/runtime/base/hash_map.h"

namespace rondo::compile {

// The floats of a recording, of all nodes in order.
using RecordedFloats = absl::InlinedVector<double, 16>;
RecordedFloats floats_of(const Graph& recorded);
// Returns `recorded` with other floats. REQUIRES: as many floats as it has.
Graph with_recorded_floats(const Graph& recorded, std::span<const double> floats);
bool same_bits(std::span<const double> a, std::span<const double> b);

// Registers hold numbers: first the recording's floats, then the constants, then one for each term, which combines two
// earlier registers. Immutable once made.
struct FloatFormulas {
  struct Term {
    FloatOp op;
    int32_t a, b;
  };
  int32_t n_recorded = 0;
  std::vector<double> constants;
  std::vector<Term> terms;
  std::vector<int32_t> results;  // registers

  // False: no result depends on the recording's floats.
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
  FloatFormulas sides;  // results: two for each guard

  bool hold(std::span<const double> recorded) const;
};

class FloatTrace final : public FloatTracer {
 public:
  // Each float of `recorded` becomes a symbol.
  explicit FloatTrace(const Graph& recorded) : FloatTrace(recorded, floats_of(recorded)) {}
  // For a second derivation, from other floats, of what was first derived from `reference`. Joins the floats that were
  // joined then.
  FloatTrace(const Graph& recorded, std::span<const double> reference);

  // The recording with these symbols.
  const Graph& graph() const { return graph_; }
  // `results`: symbols and constants.
  FloatFormulas formulas(std::span<const SymFloat> results);
  FloatGuards guards() const;

  int32_t trace(FloatOp op, SymFloat a, SymFloat b, double value) override;
  void guard(FloatTest test, SymFloat a, SymFloat b, bool outcome) override;

  // The value that `number` had, or has, in the first derivation.
  double reference(SymFloat number) const;

 private:
  struct Symbol {
    enum Kind : uint8_t { kRecorded, kConstant, kTerm } kind;
    FloatOp op = FloatOp::kAdd;
    int32_t a = -1, b = -1;  // kTerm
    double reference = 0;    // kConstant: the value
  };
  using Key = std::tuple<uint8_t, uint8_t, int32_t, int32_t, uint64_t>;
  int32_t add(const Symbol& symbol);
  int32_t symbol_of(SymFloat number);
  FloatFormulas formulas_of(std::span<const int32_t> results) const;

  Graph graph_;
  std::vector<Symbol> symbols_;  // the recording's floats, then others in the order of their creation
  int32_t n_recorded_ = 0;
  HashMap<Key, int32_t> known_;  // equal symbols are one
  struct Noted {
    FloatTest test;
    int32_t a, b;
    bool outcome;
    friend bool operator==(const Noted&, const Noted&) = default;
  };
  std::vector<Noted> noted_;
  FloatTracerScope scope_;
};

// For passes that merge two calls whose floats are equal. Two floats with the same join_key() may be joined. A pass
// that joins them calls join_floats(). Then the compiled code serves only calls in which they are equal, too.
uint64_t join_key(SymFloat number);
void join_floats(SymFloat a, SymFloat b);

// The formulas of `numbers` in the trace that is active on this thread. Without a trace, they must be constants.
FloatFormulas formulas_of(std::span<const SymFloat> numbers);
// Replaces the symbols in the graph by plain numbers.
void forget_symbols(Graph& graph);

}  // namespace rondo::compile
