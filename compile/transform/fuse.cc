// Fusion: joins pointwise chains and reductions with their producers and consumers, greedily by bytes saved.
//
// Every fusible node has an iteration space (Note [Spaces] in spaces.h). Two units may become one kernel if their
// spaces agree, no path through a third unit would close a cycle, and neither needs a result of the other that is
// complete only after all rows (a column sum).
//
// Note [Fusion time]. Time grows linearly with the graph: fusion works on windows of kWindow units, in program order,
//   and never fuses across windows. A kernel has at most Capabilities::most_ops nodes, because the time to generate
//   code grows faster than the kernel.
//
// Note [Checks that wait]. A check of indices (OpDef::checks) is fused into a kernel that reads the indices anyway,
//   usually the one with the lookup, so it needs no launch of its own. The check may then run later than in the
//   program, after other checks and after kernels with lookups (a lookup uses index 0 instead of a bad one). After such
//   an error, the caller of a plan in host memory runs it op by op to find the program's first error. The indices must
//   be an input of the graph, so that they can be read again. No check waits in a graph with collectives, because these
//   are effects, too.
#include <algorithm>
#include <bit>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/compile/transform/passed_ops.h"
#include "rondo/compile/transform/passes.h"
#include "rondo/compile/transform/spaces.h"

namespace rondo::compile {

ValueId same_elements(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  if (value.root == id) return id;
  const Value& root = graph.value(value.root);
  const bool whole = value.offset == 0 && value.sizes.numel() == root.sizes.numel() &&
                     is_contiguous(value.sizes, value.strides) && is_contiguous(root.sizes, root.strides);
  return whole ? value.root : id;
}

ValueId shown_elements(const Graph& graph, ValueId id) {
  const ValueId same = same_elements(graph, id);
  const Value &value = graph.value(same), &root = graph.value(value.root);
  if (same == value.root || value.offset != 0 || !is_contiguous(root.sizes, root.strides)) return same;
  int64_t elements = 1;
  for (int d = value.sizes.rank() - 1; d >= 0; --d) {
    if (value.sizes[d] == 1 || value.strides[d] == 0) continue;
    if (value.strides[d] != elements) return same;
    elements *= value.sizes[d];
  }
  return elements == root.sizes.numel() ? value.root : same;
}

bool is_parameter_copy(const Graph& graph, const GraphNode& node) {
  if (!node.op->is<trait::Convert>()) return false;
  const Value &from = graph.value(node.inputs[0]), &to = graph.value(node.outputs[0]);
  // The caller may write to a result of the graph, so a result is never a shared copy of a parameter.
  for (ValueId id : graph.outputs)
    if (graph.value(id).root == node.outputs[0]) return false;
  return from.leaf && from.producer < 0 && from.dtype == kF32 && is_low_precision(to.dtype) &&
         to.root == node.outputs[0] && is_contiguous(from.sizes, from.strides) && is_contiguous(to.sizes, to.strides);
}

namespace {

constexpr size_t kWindow = 1024;
constexpr int64_t kOfAllElements = 4096;  // in bytes_shared(): weight of values as large as the space

// Which units need which others, directly or indirectly; updated when units merge.
class Reachability {
 public:
  explicit Reachability(size_t n) : n_(n), words_((n + 63) / 64), after_(n * words_), before_(n * words_) {}

  // Adds an edge: `to` reads a result of `from`. REQUIRES: all edges to `from` were added before, and none from `to`
  // yet.
  void add_edge(size_t from, size_t to) {
    uint64_t* before = row(before_, to);
    for (size_t w = 0; w < words_; ++w) before[w] |= row(before_, from)[w];
    set(before, from);
  }
  // Call this when all edges have been added.
  void complete() {
    for (size_t to = 0; to < n_; ++to) for_each(row(before_, to), [&](size_t from) { set(row(after_, from), to); });
  }

  // True if a path from `from` to `to` goes through a third unit.
  bool passes_through(size_t from, size_t to) const {
    const uint64_t *a = row(after_, from), *b = row(before_, to);
    for (size_t w = 0; w < words_; ++w)
      if ((a[w] & b[w]) != 0) return true;
    return false;
  }
  // Returns the third unit through which paths from `from` to `to` go. kNone: there are several such units, or none.
  static constexpr size_t kNone = SIZE_MAX;
  size_t only_between(size_t from, size_t to) const {
    size_t found = kNone;
    const uint64_t *a = row(after_, from), *b = row(before_, to);
    for (size_t w = 0; w < words_; ++w) {
      const uint64_t both = a[w] & b[w];
      if (both == 0) continue;
      if (found != kNone || !std::has_single_bit(both)) return kNone;
      found = w * 64 + static_cast<size_t>(std::countr_zero(both));
    }
    return found;
  }
  // Merges b into a. REQUIRES: no unit is between them.
  void merge(size_t a, size_t b) {
    std::vector<uint64_t> sources(words_), targets(words_);
    for (size_t w = 0; w < words_; ++w) {
      sources[w] = row(before_, a)[w] | row(before_, b)[w];
      targets[w] = row(after_, a)[w] | row(after_, b)[w];
    }
    for (std::vector<uint64_t>* both : {&sources, &targets})
      for (size_t u : {a, b}) clear(both->data(), u);
    const auto connect = [&](std::vector<uint64_t>& table, const std::vector<uint64_t>& from,
                             const std::vector<uint64_t>& to) {
      for_each(from.data(), [&](size_t u) {
        for (size_t w = 0; w < words_; ++w) row(table, u)[w] |= to[w];
        set(row(table, u), a);
        clear(row(table, u), b);
      });
      std::copy(to.begin(), to.end(), row(table, a));
      std::fill(row(table, b), row(table, b) + words_, 0);
    };
    connect(after_, sources, targets);
    connect(before_, targets, sources);
  }

 private:
  const uint64_t* row(const std::vector<uint64_t>& table, size_t u) const { return table.data() + u * words_; }
  uint64_t* row(std::vector<uint64_t>& table, size_t u) const { return table.data() + u * words_; }
  static void set(uint64_t* bits, size_t u) { bits[u / 64] |= uint64_t{1} << u % 64; }
  static void clear(uint64_t* bits, size_t u) { bits[u / 64] &= ~(uint64_t{1} << u % 64); }
  template <class Visit> void for_each(const uint64_t* bits, Visit visit) const {
    for (size_t w = 0; w < words_; ++w)
      for (uint64_t rest = bits[w]; rest != 0; rest &= rest - 1)
        visit(w * 64 + static_cast<size_t>(std::countr_zero(rest)));
  }

  size_t n_, words_;
  std::vector<uint64_t> after_, before_;  // one row of bits per unit
};

class Fuser {
 public:
  Fuser(const Graph& graph, const EpilogueChains& epilogues, const Capabilities& limits)
      : graph_(graph),
        epilogues_(epilogues),
        most_ops_(static_cast<size_t>(limits.most_ops)),
        most_operands_(static_cast<size_t>(limits.most_operands)),
        communicates_(communicates(graph)),
        unit_of_(graph, -1),
        last_touch_(graph, kNone) {
    extents_.reserve(graph.values.size());
    for (const Value& value : graph.values)
      extents_.push_back({value.sizes.numel(), static_cast<int64_t>(size_of(value.dtype))});
  }

  std::vector<Unit> run() {
    make_singletons();
    for (size_t begin = 0; begin < units_.size() && enabled(CompilerStage::kFuse); begin += kWindow)
      fuse_window(begin, std::min(begin + kWindow, units_.size()));
    return in_order();
  }

 private:
  // Fuses units [begin, end). Units read results of earlier units only, so no path between two of them leaves the
  // window.
  void fuse_window(size_t begin, size_t end) {
    touches_.clear();
    for (size_t u = begin; u < end; ++u)
      for (ValueId id : units_[u].touched) last_touch_[id] = kNone;
    for (size_t u = begin; u < end; ++u)
      if (!units_[u].only_checks) note_touches(u, units_[u].touched);
    Reachability reach = reachability(begin, end);
    for (size_t u = begin; u < end; ++u)
      if (!units_[u].only_checks) add_pairs(u, u + 1);
    std::make_heap(pairs_.begin(), pairs_.end());
    while (!pairs_.empty()) {
      std::pop_heap(pairs_.begin(), pairs_.end());
      const Pair pair = pairs_.back();
      pairs_.pop_back();
      // Drops pairs that cannot merge. An impossible merge stays impossible until one of the units changes, and then
      // there is a new pair.
      if (units_[pair.a].version != pair.a_version || units_[pair.b].version != pair.b_version ||
          !may_merge(pair.a, pair.b))
        continue;
      const size_t a = pair.a - begin, b = pair.b - begin;
      size_t joined = b;
      if (reach.passes_through(a, b) || reach.passes_through(b, a)) {
        joined = reach.only_between(a, b);
        if (joined == Reachability::kNone || pair.saved < kOfAllElements || !makes_rows(pair.a, begin + joined) ||
            reach.passes_through(a, joined) || reach.passes_through(joined, a))
          continue;
      }
      reach.merge(a, joined);
      merge(pair.a, begin + joined);
      const auto queued = std::ssize(pairs_);
      add_pairs(pair.a, 0);
      for (auto n = queued + 1; n <= std::ssize(pairs_); ++n) std::push_heap(pairs_.begin(), pairs_.begin() + n);
    }
    for (size_t u = begin; u < end; ++u)
      if (units_[u].only_checks) join_check(u, begin, end, reach);
  }

  // Note [Checks that wait]. Checks are fused last, so that they do not determine the space of a kernel.
  void join_check(size_t check, size_t begin, size_t end, Reachability& reach) {
    const ValueId indices = graph_.written(graph_.node(units_[check].unit.nodes[0]).inputs[0]);
    const auto looks_up = [&](int32_t n) { return graph_.node(n).op->is<trait::Pick>(); };
    const auto reads = [&](int32_t n) {
      const ValueIds& inputs = graph_.node(n).inputs;
      return std::any_of(inputs.begin(), inputs.end(),
                         [&](ValueId id) { return id != kNoValue && graph_.written(id) == indices; });
    };
    for (size_t u = check + 1; u < end; ++u) {
      const std::vector<int32_t>& nodes = units_[u].unit.nodes;
      if (!units_[u].alive || !units_[u].unit.fused || std::none_of(nodes.begin(), nodes.end(), looks_up) ||
          std::none_of(nodes.begin(), nodes.end(), reads) || !may_merge(u, check))
        continue;
      reach.merge(u - begin, check - begin);
      return merge(u, check);
    }
  }

  // True if unit `other` only computes pointwise values that have one number for each row of unit `first`. Then `other`
  // joins `first` before units of its own size do, because the readers of these numbers may read the same values as
  // `first`: in a variance, the squares read the same input as the mean.
  bool makes_rows(size_t first, size_t other) const {
    const Candidate &rows = units_[first], &numbers = units_[other];
    return numbers.takes_any && numbers.unit.rows * numbers.unit.cols == rows.unit.rows && may_merge(first, other);
  }

  static constexpr int32_t kNone = -1;
  struct Candidate {
    Unit unit;
    bool alive = true;
    int version = 0;
    std::vector<ValueId> column_results;  // complete only after the last row
    std::vector<ValueId> touched;         // read or written, sorted
    bool reduces_rows = false, scans = false;
    int32_t after = kNone;   // of a collective: the unit of the previous collective
    bool takes_any = false;  // has only pointwise nodes of one domain, which take any space that fits
    bool only_checks = false;
  };
  // Two units that share values. The best pair comes first; among equal ones, the pair that was recorded first.
  struct Pair {
    int64_t saved;
    uint32_t a, b;  // a < b
    int32_t a_version, b_version;
    bool operator<(const Pair& o) const { return std::tuple(saved, o.a, o.b) < std::tuple(o.saved, a, b); }
  };

  void make_singletons() {
    // A product and its epilogues are one unit from the start, at the position of the last epilogue, where all
    // operands are available.
    NodeMap<int32_t> ends(graph_, -1);  // by node: the product whose last epilogue the node is; -1: none
    NodeMap<bool> absorbed(graph_, false);
    int32_t latest_collective = kNone;
    for (size_t i = 0; i < epilogues_.size(); ++i) {
      if (epilogues_[i].empty()) continue;
      ends[epilogues_[i].back()] = static_cast<int32_t>(i);
      absorbed[i] = true;
      for (int32_t n : epilogues_[i]) absorbed[n] = true;
    }
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      const GraphNode& node = graph_.nodes[i];
      if (node.op->kind == OpKind::kView || is_parameter_copy(graph_, node)) continue;
      if (absorbed[i]) {
        if (ends[i] < 0) continue;
        Unit unit{.nodes = epilogues_[static_cast<size_t>(ends[i])]};
        unit.nodes.insert(unit.nodes.begin(), ends[i]);
        for (int32_t n : unit.nodes) unit_of_[n] = static_cast<int>(units_.size());
        units_.emplace_back().unit = std::move(unit);
        continue;
      }
      const NodeSpace space = space_of(graph_, node);
      unit_of_[i] = static_cast<int>(units_.size());
      Candidate& c = units_.emplace_back();
      c.unit = space.unit;
      c.unit.nodes = {static_cast<int32_t>(i)};
      if (node.op->is<trait::Exchange>()) c.after = std::exchange(latest_collective, unit_of_[i]);
      if (node.op->checks && !may_wait(node)) c.unit.fused = false;
      if (!c.unit.fused) continue;
      c.only_checks = node.op->checks;
      c.takes_any = space.takes_any;
      if (space.sums_rows) c.column_results = {node.outputs[0]};
      c.scans = node.op->is<trait::Scan>();
      c.reduces_rows = node.op->kind == OpKind::kReduction && !space.sums_rows;
      // A shared random state is no reason to merge kernels.
      for (size_t k = 0; k < node.inputs.size(); ++k)
        if (static_cast<int32_t>(k) != node.op->random_state())
          c.touched.push_back(shown_elements(graph_, node.inputs[k]));
      c.touched.insert(c.touched.end(), node.outputs.begin(), node.outputs.end());
      std::sort(c.touched.begin(), c.touched.end());
      c.touched.erase(std::unique(c.touched.begin(), c.touched.end()), c.touched.end());
    }
  }

  // Note [Checks that wait]: true if the indices are an input and no collectives are in the graph.
  bool may_wait(const GraphNode& check) const {
    return graph_.value(graph_.written(check.inputs[0])).producer < 0 && !communicates_;
  }

  // Returns the unit that computes a value, looking through views; -1 for inputs.
  int unit_of_value(ValueId id) const {
    const int32_t producer = graph_.value(graph_.written(id)).producer;
    return producer < 0 ? -1 : unit_of_[producer];
  }

  // Visits the units that a unit reads from and, for a collective, the unit of the previous collective.
  template <class Visit> void for_each_source(size_t unit, Visit visit) const {
    if (units_[unit].after != kNone) visit(static_cast<size_t>(units_[unit].after));
    for (int32_t n : units_[unit].unit.nodes)
      for (ValueId id : graph_.node(n).inputs)
        if (const int from = id == kNoValue ? -1 : unit_of_value(id); from >= 0 && static_cast<size_t>(from) != unit)
          visit(static_cast<size_t>(from));
  }
  Reachability reachability(size_t begin, size_t end) const {
    Reachability reach(end - begin);
    for (size_t u = begin; u < end; ++u)
      for_each_source(u, [&](size_t from) {
        if (from >= begin) reach.add_edge(from - begin, u - begin);
      });
    reach.complete();
    return reach;
  }

  // True if the merged kernel might have more operands than allowed: each value in `touched` may be an operand.
  bool too_many_operands(const Candidate& a, const Candidate& b) const {
    if (a.touched.size() + b.touched.size() <= most_operands_) return false;
    std::vector<ValueId> both;
    std::set_union(a.touched.begin(), a.touched.end(), b.touched.begin(), b.touched.end(), std::back_inserter(both));
    return both.size() > most_operands_;
  }

  // Returns the space that both units have together; nullptr if there is none.
  const Unit* common_space(const Candidate& a, const Candidate& b) const {
    if (a.only_checks && b.only_checks) return nullptr;
    if (a.unit.rows == b.unit.rows && a.unit.inner == b.unit.inner) {
      if (a.unit.cols == b.unit.cols) return &a.unit;
      // A unit with one value per row joins a space with the same rows, unless it has reductions over its single
      // column, which would become reductions over all columns of the other space.
      const Candidate &narrow = a.unit.cols == 1 ? a : b, &wide = a.unit.cols == 1 ? b : a;
      if (narrow.unit.cols == 1 && narrow.column_results.empty() && !narrow.reduces_rows && !narrow.scans)
        return &wide.unit;
    }
    const bool checks = a.only_checks || b.only_checks;
    if (!checks && a.takes_any == b.takes_any) return nullptr;
    const bool a_fits = checks ? a.only_checks : a.takes_any;
    const Candidate &pointwise = a_fits ? a : b, &fixed = a_fits ? b : a;
    const int64_t n = pointwise.unit.rows * pointwise.unit.cols;
    if (n != fixed.unit.rows * fixed.unit.cols && n != fixed.unit.rows) return nullptr;
    for (int32_t node : pointwise.unit.nodes)
      if (!fits(graph_, graph_.node(node), fixed.unit)) return nullptr;
    return &fixed.unit;
  }

  bool may_merge(size_t first, size_t second) const {
    const Candidate &a = units_[first], &b = units_[second];
    if (!a.unit.fused || !b.unit.fused || a.unit.nodes.size() + b.unit.nodes.size() > most_ops_) return false;
    const Unit* space = common_space(a, b);
    if (space == nullptr || too_many_operands(a, b)) return false;
    const auto reduces = [](const Candidate& c) { return c.reduces_rows || !c.column_results.empty(); };
    const auto in_segments = [](const Candidate& c) { return c.unit.starts != kNoValue; };
    if (in_segments(a) != in_segments(b)) {
      const Candidate& whole = in_segments(a) ? b : a;
      if (reduces(whole) || whole.scans) return false;
    } else if (a.unit.starts != b.unit.starts) {
      return false;
    }
    if ((a.scans && reduces(b)) || (b.scans && reduces(a))) return false;
    return consumes_in_place(*space, first, second) && consumes_in_place(*space, second, first);
  }

  // True if everything that unit `second` reads from unit `first` is available, row by row, when it is needed.
  bool consumes_in_place(const Unit& space, size_t first, size_t second) const {
    const Candidate &producer = units_[first], &consumer = units_[second];
    for (int32_t n : consumer.unit.nodes) {
      const GraphNode& node = graph_.node(n);
      for (ValueId id : node.inputs) {
        const ValueId root = graph_.written(id);
        const int32_t maker = graph_.value(root).producer;
        if (maker < 0 || unit_of_[maker] != static_cast<int>(first)) continue;
        if (std::count(producer.column_results.begin(), producer.column_results.end(), root)) return false;
        if (!reads_in_place(graph_, space, node, id) || is_table(node, id)) return false;
      }
    }
    return true;
  }

  // Returns the gain of merging two kernels: the bytes that the merged kernel reads once instead of twice, or does not
  // write. They count per element of the space; bytes per row or column have far less weight. The gain does not depend
  // on sizes, so a block is fused in the same way at every length, and its code can be shared.
  int64_t bytes_shared(const Candidate& a, const Candidate& b) const {
    int64_t bytes = 0;
    const int64_t elements = std::max(a.unit.rows * a.unit.cols, b.unit.rows * b.unit.cols);
    for (size_t i = 0, j = 0; i < a.touched.size() && j < b.touched.size();) {
      if (a.touched[i] != b.touched[j]) {
        ++(a.touched[i] < b.touched[j] ? i : j);
        continue;
      }
      const Extent& v = extents_[static_cast<size_t>(a.touched[i])];
      bytes += (v.numel >= elements ? kOfAllElements : 1) * v.element_bytes;
      ++i, ++j;
    }
    return bytes;
  }

  // Appends to pairs_ the pairs of `unit` with units from number `first` on.
  void add_pairs(size_t unit, size_t first) {
    others_.clear();
    for (ValueId id : units_[unit].touched)
      for (int32_t at = last_touch_[id]; at != kNone; at = touches_[static_cast<size_t>(at)].before)
        if (const size_t other = touches_[static_cast<size_t>(at)].unit;
            other >= first && other != unit && units_[other].alive &&
            common_space(units_[unit], units_[other]) != nullptr)
          others_.push_back(other);
    std::sort(others_.begin(), others_.end());
    others_.erase(std::unique(others_.begin(), others_.end()), others_.end());
    for (size_t other : others_) {
      const auto a = static_cast<uint32_t>(std::min(unit, other)), b = static_cast<uint32_t>(std::max(unit, other));
      const int64_t saved = bytes_shared(units_[a], units_[b]);
      if (saved > 0) pairs_.push_back({saved, a, b, units_[a].version, units_[b].version});
    }
  }

  void note_touches(size_t unit, const std::vector<ValueId>& values) {
    for (ValueId id : values) {
      touches_.push_back({unit, last_touch_[id]});
      last_touch_[id] = static_cast<int32_t>(touches_.size()) - 1;
    }
  }

  void merge(size_t into, size_t from) {
    Candidate &a = units_[into], &b = units_[from];
    const Unit space = *common_space(a, b);
    // If the columns differ, one of the units has one value per row. Such values belong to the rows of this space, so
    // the merged unit takes no other space.
    a.takes_any = a.takes_any && b.takes_any && a.unit.cols == b.unit.cols;
    a.unit.rows = space.rows;
    a.unit.cols = space.cols;
    a.unit.inner = space.inner;
    if (a.unit.starts == kNoValue) a.unit.starts = b.unit.starts;
    a.unit.nodes.insert(a.unit.nodes.end(), b.unit.nodes.begin(), b.unit.nodes.end());
    std::sort(a.unit.nodes.begin(), a.unit.nodes.end());
    a.column_results.insert(a.column_results.end(), b.column_results.begin(), b.column_results.end());
    a.reduces_rows = a.reduces_rows || b.reduces_rows;
    a.scans = a.scans || b.scans;
    for (int32_t n : b.unit.nodes) unit_of_[n] = static_cast<int>(into);
    std::vector<ValueId> both;
    std::set_union(a.touched.begin(), a.touched.end(), b.touched.begin(), b.touched.end(), std::back_inserter(both));
    note_touches(into, b.touched);
    a.touched = std::move(both);
    b.touched.clear();
    b.alive = false;
    ++a.version;
    ++b.version;
  }

  std::vector<Unit> in_order() const {
    // Among the units that are ready, takes the one with the earliest first node. This keeps the order of
    // recording where possible.
    std::vector<std::vector<size_t>> readers(units_.size());
    std::vector<int> waits_for(units_.size(), 0);
    using Ready = std::pair<int32_t, size_t>;  // first node, unit
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    size_t live = 0;
    for (size_t u = 0; u < units_.size(); ++u) {
      if (!units_[u].alive) continue;
      ++live;
      for_each_source(u, [&](size_t from) {
        readers[from].push_back(u);
        ++waits_for[u];
      });
      if (waits_for[u] == 0) ready.emplace(units_[u].unit.nodes[0], u);
    }
    std::vector<Unit> result;
    while (!ready.empty()) {
      const size_t u = ready.top().second;
      ready.pop();
      result.push_back(units_[u].unit);
      // A check alone costs less as a library call than as a kernel.
      if (units_[u].only_checks) result.back().fused = false;
      for (size_t reader : readers[u])
        if (--waits_for[reader] == 0) ready.emplace(units_[reader].unit.nodes[0], reader);
    }
    invariant(result.size() == live, "fusion made a cycle");
    return result;
  }

  const Graph& graph_;
  const EpilogueChains& epilogues_;
  const size_t most_ops_, most_operands_;
  const bool communicates_;
  struct Extent {
    int64_t numel, element_bytes;
  };
  std::vector<Extent> extents_;  // by value
  NodeMap<int> unit_of_;         // by node; -1 for views and copies of parameters
  std::vector<Candidate> units_;
  // For each value, a linked list of the units in the window that touch it. Merged units may still be in it.
  struct Touch {
    size_t unit;
    int32_t before;  // the previous entry in touches_; kNone: none
  };
  std::vector<Touch> touches_;
  ValueMap<int32_t> last_touch_;  // by value: the head of its list
  std::vector<size_t> others_;    // scratch memory of add_pairs()
  std::vector<Pair> pairs_;       // a heap: the best pair is first
};

}  // namespace

std::vector<Unit> fuse(const Graph& graph, const EpilogueChains& epilogues, const Capabilities& limits) {
  std::vector<Unit> units = Fuser(graph, epilogues, limits).run();
  if (enabled(CompilerStage::kFuse)) repeat_cheap_nodes(graph, limits, units);
  return units;
}

std::string to_string(const Graph& graph, const std::vector<Unit>& units) {
  std::string text;
  for (const Unit& unit : units) {
    if (unit.fused)
      absl::StrAppend(&text, "kernel of ", unit.rows, " x ", unit.cols, unit.inner > 1 ? " along rows" : "",
                      unit.starts != kNoValue ? " in segments" : "", "\n");
    else text += "library call\n";
    for (int32_t n : unit.nodes) absl::StrAppend(&text, "  ", to_string(graph, graph.node(n)), "\n");
  }
  return text;
}

}  // namespace rondo::compile
