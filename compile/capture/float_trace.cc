#include "rondo/compile/capture/float_trace.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "rondo/runtime/base/error.h"

namespace rondo::compile {

RecordedFloats floats_of(const Graph& recorded) {
  RecordedFloats floats;
  for (const GraphNode& node : recorded.nodes)
    for (SymFloat number : node.attrs.floats) floats.push_back(number.value());
  return floats;
}

Graph with_recorded_floats(const Graph& recorded, std::span<const double> floats) {
  Graph graph = recorded;
  size_t next = 0;
  for (GraphNode& node : graph.nodes)
    for (size_t i = 0; i < node.attrs.floats.size(); ++i) node.attrs.floats[i] = floats[next++];
  invariant(next == floats.size(), "a recording has other floats than this one");
  return graph;
}

bool same_bits(std::span<const double> a, std::span<const double> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

bool FloatFormulas::vary() const {
  const auto constants_end = n_recorded + static_cast<int32_t>(constants.size());
  return std::any_of(results.begin(), results.end(), [&](int32_t r) { return r < n_recorded || r >= constants_end; });
}

void FloatFormulas::evaluate(std::span<const double> recorded, Registers& registers) const {
  registers.resize(recorded.size() + constants.size() + terms.size());
  double* next = std::copy(recorded.begin(), recorded.end(), registers.data());
  next = std::copy(constants.begin(), constants.end(), next);
  for (const Term& term : terms)
    *next++ = value_of(term.op, registers[static_cast<size_t>(term.a)], registers[static_cast<size_t>(term.b)]);
}

bool FloatGuards::hold(std::span<const double> recorded) const {
  if (guards.empty()) return true;
  FloatFormulas::Registers registers;
  sides.evaluate(recorded, registers);
  const int32_t* side = sides.results.data();
  for (const Guard& guard : guards) {
    const double a = registers[static_cast<size_t>(side[0])], b = registers[static_cast<size_t>(side[1])];
    if (outcome_of(guard.test, a, b) != guard.outcome) return false;
    side += 2;
  }
  return true;
}

FloatTrace::FloatTrace(const Graph& recorded, std::span<const double> reference) : graph_(recorded), scope_(this) {
  for (GraphNode& node : graph_.nodes)
    for (size_t i = 0; i < node.attrs.floats.size(); ++i) {
      invariant(static_cast<size_t>(n_recorded_) < reference.size(), "a recording has other floats than this one");
      const double before = reference[static_cast<size_t>(n_recorded_)];
      node.attrs.floats[i] = {node.attrs.floats[i].value(), n_recorded_++};
      symbols_.push_back({.kind = Symbol::kRecorded, .reference = before});
    }
}

int32_t FloatTrace::add(const Symbol& symbol) {
  const uint64_t bits = symbol.kind == Symbol::kConstant ? std::bit_cast<uint64_t>(symbol.reference) : 0;
  const Key key{static_cast<uint8_t>(symbol.kind), static_cast<uint8_t>(symbol.op), symbol.a, symbol.b, bits};
  const auto [at, is_new] = known_.try_emplace(key, static_cast<int32_t>(symbols_.size()));
  if (is_new) symbols_.push_back(symbol);
  return at->second;
}

int32_t FloatTrace::symbol_of(SymFloat number) {
  if (number.symbol() < 0) return add({.kind = Symbol::kConstant, .reference = number.value()});
  invariant(static_cast<size_t>(number.symbol()) < symbols_.size(), "a symbol of another compilation");
  return number.symbol();
}

double FloatTrace::reference(SymFloat number) const {
  return number.symbol() < 0 ? number.value() : symbols_[static_cast<size_t>(number.symbol())].reference;
}

int32_t FloatTrace::trace(FloatOp op, SymFloat a, SymFloat b, double) {
  return add({.kind = Symbol::kTerm,
              .op = op,
              .a = symbol_of(a),
              .b = symbol_of(b),
              .reference = value_of(op, reference(a), reference(b))});
}

void FloatTrace::guard(FloatTest test, SymFloat a, SymFloat b, bool outcome) {
  const Noted noted{test, symbol_of(a), symbol_of(b), outcome};
  if (std::find(noted_.begin(), noted_.end(), noted) == noted_.end()) noted_.push_back(noted);
}

FloatFormulas FloatTrace::formulas_of(std::span<const int32_t> results) const {
  std::vector<bool> needed(symbols_.size(), false);
  for (int32_t id : results) needed[static_cast<size_t>(id)] = true;
  for (size_t id = symbols_.size(); id-- > 0;)
    if (needed[id] && symbols_[id].kind == Symbol::kTerm)
      needed[static_cast<size_t>(symbols_[id].a)] = needed[static_cast<size_t>(symbols_[id].b)] = true;
  FloatFormulas formulas;
  formulas.n_recorded = n_recorded_;
  std::vector<int32_t> registers(symbols_.size(), -1);
  int32_t next = 0;
  for (Symbol::Kind kind : {Symbol::kRecorded, Symbol::kConstant, Symbol::kTerm})
    for (size_t id = 0; id < symbols_.size(); ++id) {
      const Symbol& symbol = symbols_[id];
      if (symbol.kind != kind || (kind != Symbol::kRecorded && !needed[id])) continue;
      registers[id] = next++;
      if (kind == Symbol::kConstant) formulas.constants.push_back(symbol.reference);
      if (kind == Symbol::kTerm)
        formulas.terms.push_back(
            {symbol.op, registers[static_cast<size_t>(symbol.a)], registers[static_cast<size_t>(symbol.b)]});
    }
  for (int32_t id : results) formulas.results.push_back(registers[static_cast<size_t>(id)]);
  return formulas;
}

FloatFormulas FloatTrace::formulas(std::span<const SymFloat> results) {
  std::vector<int32_t> ids;
  for (SymFloat number : results) ids.push_back(symbol_of(number));
  return formulas_of(ids);
}

FloatGuards FloatTrace::guards() const {
  FloatGuards result;
  std::vector<int32_t> sides;
  for (const Noted& noted : noted_) {
    result.guards.push_back({noted.test, noted.outcome});
    sides.insert(sides.end(), {noted.a, noted.b});
  }
  result.sides = formulas_of(sides);
  return result;
}

namespace {
// The tracer of this thread is always a FloatTrace: nothing else implements the interface.
FloatTrace* active_trace() { return static_cast<FloatTrace*>(active_float_tracer()); }
}  // namespace

uint64_t join_key(SymFloat number) {
  const FloatTrace* trace = active_trace();
  return std::bit_cast<uint64_t>(trace == nullptr ? number.value() : trace->reference(number));
}
void join_floats(SymFloat a, SymFloat b) {
  if (a.symbol() != b.symbol()) SymFloat::decide(FloatTest::kSameBits, a, b, true);
}

FloatFormulas formulas_of(std::span<const SymFloat> numbers) {
  if (FloatTrace* trace = active_trace(); trace != nullptr) return trace->formulas(numbers);
  FloatFormulas formulas;
  for (SymFloat number : numbers) {
    invariant(number.symbol() < 0, "a symbol outlives the compilation that made it");
    formulas.results.push_back(static_cast<int32_t>(formulas.constants.size()));
    formulas.constants.push_back(number.value());
  }
  return formulas;
}

void forget_symbols(Graph& graph) {
  for (GraphNode& node : graph.nodes)
    for (size_t i = 0; i < node.attrs.floats.size(); ++i) node.attrs.floats[i] = node.attrs.floats[i].value();
}

}  // namespace rondo::compile
