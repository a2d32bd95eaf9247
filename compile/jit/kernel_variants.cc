#include "rondo/compile/jit/kernel_variants.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>

#include "rondo/compile/jit/targets.h"

namespace rondo::compile {
namespace {

// Marks the extents that cost nothing to read at run time: the end of a loop, or a divisor used once in a call.
std::vector<bool> always_varying(const LoopKernel& kernel, size_t n) {
  std::vector<bool> varying(n, false);
  varying[0] = kernel.split_columns;  // cols
  varying[1] = true;                  // chunk_rows
  return varying;
}

// Returns the range of an extent that is always `extent`.
ExtentRange exactly(int64_t extent) { return {extent, extent, extent}; }

}  // namespace

Structure structure_of(const LoopKernel& kernel, const Target& target) {
  Structure s{reinterpret_cast<uint64_t>(&target)};
  const auto add = [&](auto value) { s.push_back(static_cast<uint64_t>(value)); };
  add(kernel.streams << 2 | kernel.per_item << 1 | kernel.split_columns);
  add(kernel.rows == 1);
  add(kernel.inner > 1);
  add(kernel.starts);
  for (int64_t extent : extents(kernel)) add(may_vary(extent) ? 2 : extent);
  for (const Operand& operand : kernel.operands) {
    add(operand.dtype);
    add(operand.is_check << 4 | operand.is_index << 3 | operand.is_random << 2 | operand.is_output << 1 |
        operand.is_partial);
    add(operand.increment);
    add(operand.onto);
    add(operand.axes.size());
    for (const OperandAxis& axis : operand.axes)
      add(wraps(kernel, axis) | static_cast<uint64_t>(along_inner(axis, kernel.inner)) << 1);
  }
  for (const Instr& i : kernel.instrs) {
    add(static_cast<uint64_t>(i.op) << 8 | static_cast<uint64_t>(i.type));
    for (int32_t field : {i.a, i.b, i.c, i.index}) add(static_cast<uint32_t>(field));
    add(std::bit_cast<uint64_t>(i.value));
  }
  for (const Stage& stage : kernel.stages) {
    for (const std::vector<int32_t>* list : {&stage.row, &stage.column, &stage.reductions}) {
      add(list->size());
      for (int32_t id : *list) add(id);
    }
  }
  return s;
}

bool WantedKernel::same_code(const WantedKernel& other) const {
  return structure == other.structure && sizes == other.sizes && use == other.use &&
         (hint == other.hint || (hint->varying == other.hint->varying && hint->ranges == other.hint->ranges));
}

bool KernelVariant::same_code(const KernelVariant& other) const {
  for (size_t i = 0; i < sizes.size(); ++i)
    if (varying[i] != other.varying[i] || (varying[i] ? !(ranges[i] == other.ranges[i]) : sizes[i] != other.sizes[i]))
      return false;
  return true;
}

int64_t KernelVariant::differences(const KernelUse& use) const {
  int64_t count = 0;
  for (size_t i = 0; i < sizes.size(); ++i)
    count += varying[i] ? !use[i].implies(ranges[i]) : !(use[i] == exactly(sizes[i]));
  return count;
}

int64_t KernelVariant::leaves_open(const KernelHint* hint) const {
  int64_t count = 0;
  for (size_t i = 0; hint != nullptr && i < sizes.size(); ++i)
    count += varying[i] && hint->varying[i] && !ranges[i].implies(hint->ranges[i]);
  return count;
}

const KernelVariant* nearest(std::span<const KernelVariant> variants, const WantedKernel& wanted) {
  if (variants.empty()) return nullptr;
  const auto rank = [&](const KernelVariant& v) {
    const auto open = std::count(v.varying.begin(), v.varying.end(), true);
    const auto known = std::count_if(v.ranges.begin(), v.ranges.end(),
                                     [](const ExtentRange& r) { return !(r == ExtentRange{}); });
    return std::tuple(v.differences(wanted.use), v.leaves_open(wanted.hint), open, -known);
  };
  return &*std::min_element(variants.begin(), variants.end(),
                            [&](const KernelVariant& a, const KernelVariant& b) { return rank(a) < rank(b); });
}

bool serves(const KernelVariant& best, const LoopKernel& kernel, const WantedKernel& wanted, Sizes sizes) {
  return best.differences(wanted.use) == 0 && best.leaves_open(wanted.hint) == 0 &&
         (sizes != Sizes::kOwn || best.varying == specialize(kernel, wanted, nullptr, sizes).varying);
}

LoopKernel specialize(const LoopKernel& kernel, const WantedKernel& wanted, const KernelVariant* best, Sizes sizes) {
  const size_t n = wanted.sizes.size();
  LoopKernel made = kernel;
  made.varying = always_varying(kernel, n);
  made.ranges.resize(n);
  if (sizes == Sizes::kAny) made.varying.assign(n, true);
  for (size_t k = 0; k < n; ++k) {
    if (wanted.hint != nullptr && wanted.hint->varying[k]) made.varying[k] = true;
    if (best != nullptr && sizes == Sizes::kVarying && (best->varying[k] || best->sizes[k] != wanted.sizes[k]))
      made.varying[k] = true;
    // Strides that need 64 bits are rare, so code assumes that there are none until one is met.
    if (made.varying[k] && k > 0) made.ranges[k] = useful_range(kernel, k, {.min = 0, .max = wanted.sizes[k]});
    if (wanted.hint != nullptr && wanted.hint->varying[k]) made.ranges[k] = wanted.hint->ranges[k];
    if (wanted.use[k] == exactly(wanted.sizes[k])) continue;
    // The code may assume only what holds for every extent that the caller declared.
    made.varying[k] = true;
    made.ranges[k] = useful_range(kernel, k, wanted.use[k]);
  }
  return made;
}

KernelHint compare_sizes(const LoopKernel& here, const LoopKernel* next, const LoopKernel* smallest,
                         const LoopKernel* largest) {
  const std::vector<int64_t> now = extents(here);
  const Target& any = target_of(kCPU);
  const Structure structure = structure_of(here, any);
  const auto extents_of = [&](const LoopKernel* kernel) {
    return kernel != nullptr && structure_of(*kernel, any) == structure ? extents(*kernel) : std::vector<int64_t>();
  };
  const std::vector<int64_t> then = extents_of(next), low = extents_of(smallest), high = extents_of(largest);
  KernelHint hint{std::vector<bool>(now.size(), true), std::vector<ExtentRange>(now.size())};
  if (then.empty()) return hint;  // the next sizes give a different kernel: all extents may vary
  for (size_t i = 0; i < now.size(); ++i) {
    hint.varying[i] = then[i] != now[i];
    if (!hint.varying[i] || !may_vary(now[i])) continue;
    ExtentRange known{.multiple_of = std::max<int64_t>(std::gcd(now[i], then[i]), 1)};
    if (!low.empty()) known.min = std::min(low[i], now[i]);
    if (!high.empty()) known.max = std::max(high[i], now[i]);
    else if (i > 0) known.max = std::max(then[i], now[i]);  // small strides, as in specialize()
    hint.ranges[i] = useful_range(here, i, known);
  }
  return hint;
}

KernelUse exact_use(const LoopKernel& kernel) {
  KernelUse use;
  for (int64_t extent : extents(kernel)) use.push_back(exactly(extent));
  return use;
}

}  // namespace rondo::compile
