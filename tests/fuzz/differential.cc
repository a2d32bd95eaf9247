#include "rondo/tests/fuzz/differential.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/fuzz/breaks.h"
#include "rondo/tests/fuzz/steps.h"

namespace rondo::fuzz {
namespace {

// From one number to the next, at 1.
double unit_of(DType dtype) {
  return dtype == kF64 ? 0x1p-52 : dtype == kF32 ? 0x1p-23 : dtype == kF16 ? 0x1p-10 : 0x1p-7;
}
double tolerance_of(double unit) {
  return unit <= 0x1p-52 ? 1e-10 : unit <= 0x1p-23 ? 1e-4 : unit <= 0x1p-10 ? 1e-2 : 6e-2;
}

// Within the rounding of a few dozen operations in a dtype of this unit or its own, measured against the largest
// element.
bool is_close(const Tensor& a, const Tensor& b, double unit = 0) {
  if (!is_floating(a.dtype())) return bool(test::same_bits(a, b));
  const double tolerance = tolerance_of(std::max(unit, unit_of(a.dtype())));
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  // What cancels carries the rounding of its terms, which are of order 1: in f32, 1e-6 is eight units in their last
  // place.
  double scale = 1e-2;
  for (double v : x)
    if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    if (!(std::abs(x[i] - y[i]) <= tolerance * scale)) return false;
  }
  return true;
}

// Both are finite, the same infinity, or not a number, in every element.
bool same_kind(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  for (size_t i = 0; i < x.size(); ++i)
    if (std::isnan(x[i]) != std::isnan(y[i]) || ((std::isinf(x[i]) || std::isinf(y[i])) && x[i] != y[i])) return false;
  return true;
}

// Whether both runs may go different ways at observation `i`, so that there is nothing more to compare.
bool may_part(const Trail& a, const Trail& b, size_t i) {
  const std::string &x = a.seen[i].text, &y = b.seen[i].text;
  // A region keeps less than eager execution does, and so may go backward where that finds a stale tensor.
  if (a.backward_threw && i + 1 == a.seen.size() && x.ends_with("StaleTensorError") &&
      y.find(" throws ") == std::string::npos && b.keeps_less)
    return true;
  // What is computed again needs its operands as they were, and says so where eager has kept the result.
  if (b.recomputes && y.ends_with(" throws StaleTensorError")) return true;
  // Second derivatives pass through the checkpoints of a region.
  return b.second_order && x.ends_with("backward throws Error");
}

// The index of the first observation that differs; the number of them if none does. `unit`: in default mode, of the
// coarsest dtype, as a region may leave out a rounding to it.
size_t first_difference(const Trail& a, const Trail& b, bool in_every_bit, std::string& what, double unit = 0) {
  const size_t n = std::min(a.seen.size(), b.seen.size());
  if (b.second_order) in_every_bit = false;  // regions run it op by op, and sums meet in another order
  for (size_t i = 0; i < std::min(n, a.comparable); ++i) {
    const Observation &x = a.seen[i], &y = b.seen[i];
    if (may_part(a, b, i)) break;
    const bool is_watched = y.text.ends_with(" hook calls") ||
                            (y.text == "undefined" && y.what.find("retained gradient") != std::string::npos);
    if (b.depends_less && is_watched) continue;
    if (x.what != y.what || x.text != y.text) {
      what = absl::StrCat(x.what, ": eager: ", x.text, "; compiled: ", y.what == x.what ? "" : y.what + ": ", y.text);
      return i;
    }
    if (!x.value.defined() || !y.value.defined()) continue;
    const auto same = test::same_bits(x.value, y.value);
    if (same || (!in_every_bit && is_close(x.value, y.value, unit))) continue;
    what = absl::StrCat(x.what, ": ", same.message(), " (eager, compiled)");
    return i;
  }
  if (what.empty() && a.seen.size() != b.seen.size() && !a.backward_threw && !b.recomputes && !b.second_order)
    what = "one run saw more than the other";
  return n;
}

// A region may have kept, or compute again, what eager execution finds overwritten from outside. Its gradients are then
// those of the same program without that write.
bool has_what_was_overwritten(const Program& program, const Trail& eager, const Trail& compiled, double unit) {
  if (!eager.backward_threw || !eager.seen.back().text.ends_with("StaleTensorError")) return false;
  Program spared = program;
  spared.overwrite = false;
  spared.overwrite_results = Program::OverwriteResults::kNo;
  const Trail truth = run(spared, Mode::kEager);
  const std::string step = eager.seen.back().what + ",";
  bool any = false;
  for (size_t i = eager.seen.size() - 1; i < compiled.seen.size(); ++i) {
    const Observation& y = compiled.seen[i];
    if (!y.what.starts_with(step) || y.what.find("gradient") == std::string::npos) continue;
    const auto x = std::ranges::find(truth.seen, y.what, &Observation::what);
    if (x == truth.seen.end() || x->value.defined() != y.value.defined()) return false;
    if (y.value.defined() && !(unit > 0 ? is_close(x->value, y.value, unit) : test::same_bits(x->value, y.value)))
      return false;
    any = true;
  }
  return any;
}

// The same program in f64, on the same numbers.
Program in_f64(Program program) {
  static const auto to_f64 = std::ranges::find(pointwise_steps(), std::string_view("to_f64"),
                                               [](const StepKind& kind) { return std::string_view(kind.name); });
  program.autocast = false;
  for (Step& step : program.steps) {
    step.autocast = false;
    if (std::string_view(step.kind->name).starts_with("to_")) step.kind = &*to_f64;
  }
  for (Leaf& leaf : program.leaves) {
    if (!is_floating(leaf.meta.dtype)) continue;
    leaf.drawn_in = leaf.meta.dtype;
    leaf.meta.dtype = kF64;
  }
  return program;
}

// The largest distance of an element, infinite if one of both is not a number.
double distance(const Tensor& a, const Tensor& truth) {
  const std::vector<double> x = a.to_vector<double>(), y = truth.to_vector<double>();
  if (x.size() != y.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
    const double d = std::abs(x[i] - y[i]);
    largest = std::isfinite(d) ? std::max(largest, d) : INFINITY;
  }
  return largest;
}

// The distance from 1 to the next number, in the dtype with the fewest bits in which the program computes.
double coarsest_unit(const Program& program) {
  if (std::any_of(program.leaves.begin(), program.leaves.end(), [](const Leaf& leaf) { return leaf.drawn_in; }))
    return 0x1p-52;  // in_f64() made it
  double coarsest = 0;
  const auto add = [&](DType dtype) {
    if (is_floating(dtype)) coarsest = std::max(coarsest, unit_of(dtype));
  };
  if (program.autocast) add(kBF16);
  for (const Leaf& leaf : program.leaves) add(leaf.meta.dtype);
  for (const Step& step : program.steps) {
    if (step.autocast) add(kBF16);
    for (const Meta& meta : step.metas) add(meta.dtype);
  }
  return coarsest;
}

// How large the terms are whose difference is a result. They are of order 1, but for a norm of a single value: that is
// its own mean, so eager execution gets 0, and a fused formula the rounding of terms that were divided by sqrt(eps).
double largest_term(const Program& program) {
  const int64_t batch = std::ranges::min(program.batches);
  double largest = 1;
  for (const Step& step : program.steps) {
    const std::string_view name = step.kind->name;
    const bool by_channel = name.starts_with("batch_norm");
    if (!by_channel && name != "group_norm" && name != "layer_norm") continue;
    Dims sizes = step.metas[0].sizes;
    for (int64_t& size : sizes)
      if (size < 0) size *= -batch;
    const int64_t norms = by_channel             ? sizes[1]
                          : name == "group_norm" ? sizes[0] * step.ints[0]
                                                 : sizes.numel() / std::max<int64_t>(sizes.back(), 1);
    if (sizes.numel() == norms) largest = std::max(largest, 1 / std::sqrt(step.scalar));
  }
  return largest;
}

// Sums of second derivatives meet in another order in a region, and default mode rounds to 16 bits less often than
// eager execution does. Where terms cancel, as in the gradient of x / x, their rounding is all that is left. It is that
// if the program in f64 gives the same compiled as eagerly, and if no value of the compiled program is much further
// from its value in f64 than eager execution's, or than rounded inputs move that one.
bool is_rounding(const Program& program, const Trail& eager, const Trail& compiled, Mode mode) {
  const double term = largest_term(program);
  if (!compiled.second_order && (mode != Mode::kDefault || (coarsest_unit(program) < unit_of(kF16) && term == 1)))
    return false;
  const Program wide = in_f64(program);
  const Trail truth = run(wide, Mode::kEager);
  const auto agree = [&](const Program& p, const Trail& a, const Trail& b) {
    const double unit = coarsest_unit(p);
    const Trail moved = run(p, Mode::kEager, unit);
    for (size_t i = 0; i < std::min({a.seen.size(), b.seen.size(), a.comparable}); ++i) {
      const Observation &x = a.seen[i], &y = b.seen[i];
      if (may_part(a, b, i)) return true;
      if (x.what != y.what || x.text != y.text) return false;
      if (!x.value.defined() || !y.value.defined() || is_close(x.value, y.value)) continue;
      for (const Trail* other : {&truth, &moved})
        if (i >= other->seen.size() || other->seen[i].what != x.what || !other->seen[i].value.defined()) return false;
      const Tensor& exact = truth.seen[i].value;
      // Eager execution's own error may be small by luck: eight units in the last place of the largest terms.
      const double error = std::max(distance(x.value, exact), distance(moved.seen[i].value, x.value));
      if (!(distance(y.value, exact) <= 4 * error + 8 * unit * term)) return false;
    }
    return a.seen.size() == b.seen.size() || a.comparable < SIZE_MAX;
  };
  return agree(wide, truth, run(wide, mode)) && agree(program, eager, compiled);
}

// Programs set no stance and stay below the limit, so nothing may run eagerly, but for a backward that is replayed.
// Nor may a region break, or run an op as a library call, without a reason (breaks.h).
std::string ran_eagerly(const Trail& trail) {
  if (!trail.unlisted.empty()) return trail.unlisted;
  for (const compile::RegionReport& report : trail.reports) {
    if (report.eager_runs > 0)
      return absl::StrCat("region ", report.name, " ran eagerly ", report.eager_runs, " times; ",
                          report.failed_compilations, " compilations failed: ", report.last_failed_compilation);
  }
  return "";
}

}  // namespace

std::string difference(const Program& program, const Check& check) {
  const Trail eager = run(program, Mode::kEager);
  std::string what;
  std::optional<Trail> exact;
  last_error().clear();
  auto with_error = [](const std::string& text) {
    return last_error().empty() ? text : text + "\n  last exception: " + last_error();
  };
  if (check.exact) {
    exact = run(program, Mode::kExact);
    first_difference(eager, *exact, true, what);
    if (!what.empty() && !is_rounding(program, eager, *exact, Mode::kExact) &&
        !has_what_was_overwritten(program, eager, *exact, 0))
      return with_error("exact mode: " + what);
    what = ran_eagerly(*exact);
    if (!what.empty()) return "exact mode: " + what;
  }
  if (!check.default_mode) return "";
  const Trail relaxed = run(program, Mode::kDefault);
  if (what = ran_eagerly(relaxed); !what.empty()) return "default mode: " + what;
  const double unit = coarsest_unit(program);
  const size_t at = first_difference(eager, relaxed, false, what, unit);
  if (!what.empty()) {
    // Where the last bits of the inputs decide (a comparison, a cancellation), rounding may, too.
    std::string ignored;
    // A flag or an index is no more than such a decision; exact mode has shown that it is made in the same way. Beside
    // 1e20 any rounding is visible.
    const Tensor &x = eager.seen[at].value, &y = relaxed.seen[std::min(at, relaxed.seen.size() - 1)].value;
    const bool special = std::ranges::any_of(program.leaves, [](const Leaf& l) { return l.fill == Fill::kSpecial; });
    const bool decided = exact && x.defined() && y.defined() && x.sizes() == y.sizes() && x.dtype() == y.dtype() &&
                         (!is_floating(x.dtype()) || (special && same_kind(x, y)));
    const auto moves = [&](double perturbation) {
      return first_difference(eager, run(program, Mode::kEager, perturbation * unit), false, ignored, unit) <= at;
    };
    if (!decided && !moves(1.5) && !moves(2) && !moves(2.5) && !moves(3) &&
        !is_rounding(program, eager, relaxed, Mode::kDefault) &&
        !has_what_was_overwritten(program, eager, relaxed, unit))
      return with_error("default mode: " + what);
  }
  // What a program reads of a result may round to another number, and be another recording; tuning measures.
  const bool varies = program.options.mode == compile::Mode::kMaxAutotune ||
                      std::ranges::any_of(program.steps, [](const Step& step) { return step.kind->has(kReads); });
  if (!exact || varies || exact->orders_sums || exact->joins != relaxed.joins) return "";
  const auto count = [&](StepFlags what) {
    return static_cast<int>(std::ranges::count_if(program.steps, [&](const Step& s) { return s.kind->has(what); }));
  };
  return difference_in_kernels(exact->reports, relaxed.reports, program.layers > 1 || count(kMerges) > 0,
                               program.layers * count(kImages));
}

}  // namespace rondo::fuzz
