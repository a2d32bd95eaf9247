#include "rondo/compile/jit/kernel_table.h"
#include "rondo/runtime/memory.h"

#include <algorithm>
#include <bit>
#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <tuple>

namespace rondo::compile {
namespace {

// What kernels of different sizes have in common: everything but the extents that may vary.
using Structure = std::vector<uint64_t>;

Structure structure_of(const LoopKernel& kernel, const Target& target) {
  Structure s{reinterpret_cast<uint64_t>(&target)};
  const auto add = [&](auto value) { s.push_back(static_cast<uint64_t>(value)); };
  add(kernel.per_item << 1 | kernel.split_columns);
  add(kernel.rows == 1);
  for (int64_t extent : extents(kernel)) add(may_vary(extent) ? 2 : extent);
  for (const Operand& operand : kernel.operands) {
    add(operand.dtype);
    add(operand.is_output << 1 | operand.is_partial);
    add(operand.axes.size());
    for (const OperandAxis& axis : operand.axes) add(wraps(kernel, axis));
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

// Reading these at run time costs nothing: the end of a loop, or a divisor once a call.
std::vector<bool> always_varying(const LoopKernel& kernel, size_t n) {
  std::vector<bool> varying(n, false);
  varying[0] = kernel.split_columns;  // cols
  varying[1] = true;                  // chunk_rows
  return varying;
}

// The range of an extent that is always `extent`.
ExtentRange exactly(int64_t extent) { return {extent, extent, extent}; }

// A kernel's code, from the moment that a thread has decided to make it.
struct Slot {
  enum class State : uint8_t { kPending, kReady, kFailed } state = State::kPending;
  CompiledKernel kernel;  // of kReady
};

struct Variant {
  std::vector<int64_t> sizes;  // as compiled; those that vary stand for any
  std::vector<bool> varying;
  std::vector<ExtentRange> ranges;  // of those that vary
  std::shared_ptr<Slot> slot;

  bool same_code(const Variant& other) const {
    for (size_t i = 0; i < sizes.size(); ++i)
      if (varying[i] != other.varying[i] || (varying[i] ? !(ranges[i] == other.ranges[i]) : sizes[i] != other.sizes[i]))
        return false;
    return true;
  }
  // How many extents stand in the way of serving `use`.
  int64_t differences(const KernelUse& use) const {
    int64_t count = 0;
    for (size_t i = 0; i < sizes.size(); ++i)
      count += varying[i] ? !use[i].implies(ranges[i]) : !(use[i] == exactly(sizes[i]));
    return count;
  }
  // How much it leaves open that code with this hint would know. (Of what is not known to vary, nothing: as without
  // hints.)
  int64_t leaves_open(const KernelHint* hint) const {
    int64_t count = 0;
    for (size_t i = 0; hint != nullptr && i < sizes.size(); ++i)
      count += varying[i] && hint->varying[i] && !ranges[i].implies(hint->ranges[i]);
    return count;
  }
};

class KernelTable {
 public:
  CompiledKernels find_or_compile(std::span<const LoopKernel> kernels, Sizes sizes, std::span<const KernelHint> hints,
                                  std::span<const KernelUse> uses, const Target& target) {
    CompiledKernels result;
    for (bool all_there = false; !all_there;) {
      std::vector<std::shared_ptr<Slot>> slots(kernels.size());  // of each kernel
      std::vector<LoopKernel> missing;
      std::vector<std::shared_ptr<Slot>> made;  // of each missing one
      claim(kernels, sizes, hints, uses, target, slots, missing, made);
      // Without the lock: meanwhile other threads find what is there, make what they miss themselves, and wait for
      // these.
      if (!missing.empty()) result.compiled += make(missing, made, target);
      result.added += static_cast<int>(missing.size());
      std::unique_lock lock(mutex_);
      result.kernels.clear();
      all_there = true;
      for (const std::shared_ptr<Slot>& slot : slots) {
        ready_.wait(lock, [&] { return slot->state != Slot::State::kPending; });
        // Where another thread's compilation has failed, this one tries, and gets an error of its own.
        all_there = all_there && slot->state == Slot::State::kReady;
        result.kernels.push_back(slot->kernel);
      }
    }
    return result;
  }

  std::optional<CompiledKernels> find(std::span<const LoopKernel> kernels, const Target& target) {
    CompiledKernels result;
    std::lock_guard lock(mutex_);
    for (const LoopKernel& kernel : kernels) {
      const Wanted wanted{structure_of(kernel, target), extents(kernel), exact_use(kernel), nullptr};
      const Variant* best = nearest(wanted);
      if (best == nullptr || best->differences(wanted.use) > 0 || best->slot->state != Slot::State::kReady)
        return std::nullopt;
      result.kernels.push_back(best->slot->kernel);
    }
    return result;
  }

  void forget_unused_kernels() {
    std::lock_guard lock(mutex_);
    forget_unused();
  }

 private:
  static constexpr size_t kCapacity = 4096;
  struct Wanted {
    Structure structure;
    std::vector<int64_t> sizes;
    KernelUse use;
    const KernelHint* hint;
    bool same_code(const Wanted& other) const {
      return structure == other.structure && sizes == other.sizes && use == other.use &&
             (hint == other.hint || (hint->varying == other.hint->varying && hint->ranges == other.hint->ranges));
    }
  };

  // Finds the slot of each kernel; kernels that have none get one, for the caller to fill.
  void claim(std::span<const LoopKernel> kernels, Sizes sizes, std::span<const KernelHint> hints,
             std::span<const KernelUse> uses, const Target& target, std::vector<std::shared_ptr<Slot>>& slots,
             std::vector<LoopKernel>& missing, std::vector<std::shared_ptr<Slot>>& made) {
    std::vector<Wanted> wanted;
    for (size_t i = 0; i < kernels.size(); ++i)
      wanted.push_back({structure_of(kernels[i], target), extents(kernels[i]),
                        uses.empty() ? exact_use(kernels[i]) : uses[i], hints.empty() ? nullptr : &hints[i]});
    std::vector<size_t> position(kernels.size(), SIZE_MAX);  // of kernels[i] in missing
    std::lock_guard lock(mutex_);
    if (size_ > kCapacity) forget_unused();
    for (size_t i = 0; i < kernels.size(); ++i) {
      const Variant* best = nearest(wanted[i]);
      if (best != nullptr && best->differences(wanted[i].use) == 0 && best->leaves_open(wanted[i].hint) == 0 &&
          (sizes != Sizes::kOwn || best->varying == specialize(kernels[i], wanted[i], nullptr, sizes).varying)) {
        slots[i] = best->slot;
        continue;
      }
      position[i] = missing.size();
      // The same kernel twice in one program.
      for (size_t k = 0; k < i; ++k)
        if (position[k] != SIZE_MAX && wanted[k].same_code(wanted[i])) position[i] = position[k];
      if (position[i] == missing.size()) {
        missing.push_back(specialize(kernels[i], wanted[i], best, sizes));
        if (missing.back().name.empty()) missing.back().name = "kernel" + std::to_string(position[i]);
        made.push_back(std::make_shared<Slot>());
      }
      slots[i] = made[position[i]];
    }
    for (size_t i = 0; i < kernels.size(); ++i) {
      if (position[i] == SIZE_MAX) continue;
      std::vector<Variant>& variants = variants_[wanted[i].structure];
      const LoopKernel& kernel = missing[position[i]];
      Variant variant{std::move(wanted[i].sizes), kernel.varying, kernel.ranges, slots[i]};
      if (std::any_of(variants.begin(), variants.end(), [&](const Variant& v) { return v.same_code(variant); }))
        continue;
      variants.push_back(std::move(variant));
      ++size_;
    }
  }

  // Returns how many had to be compiled.
  int make(const std::vector<LoopKernel>& missing, const std::vector<std::shared_ptr<Slot>>& made,
           const Target& target) {
    std::shared_ptr<Executable> code;
    try {
      code = compile_kernels(missing, {}, target);
    } catch (...) {
      std::lock_guard lock(mutex_);
      for (const std::shared_ptr<Slot>& slot : made) slot->state = Slot::State::kFailed;
      forget([](const Variant& v) { return v.slot->state == Slot::State::kFailed; });
      ready_.notify_all();
      throw;
    }
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < made.size(); ++i)
      *made[i] = {Slot::State::kReady, {code->handle(static_cast<int>(i)), code}};
    ready_.notify_all();
    return code->compiled();
  }

  // The one that takes the most for granted of those that serve; else, of those that serve best.
  const Variant* nearest(const Wanted& wanted) const {
    const auto found = variants_.find(wanted.structure);
    if (found == variants_.end()) return nullptr;
    const auto rank = [&](const Variant& v) {
      const auto open = std::count(v.varying.begin(), v.varying.end(), true);
      const auto known = std::count_if(v.ranges.begin(), v.ranges.end(),
                                       [](const ExtentRange& r) { return !(r == ExtentRange{}); });
      return std::tuple(v.differences(wanted.use), v.leaves_open(wanted.hint), open, -known);
    };
    return &*std::min_element(found->second.begin(), found->second.end(),
                              [&](const Variant& a, const Variant& b) { return rank(a) < rank(b); });
  }

  // What is compiled for `kernel`. `best`: the nearest that is there, or null.
  static LoopKernel specialize(const LoopKernel& kernel, const Wanted& wanted, const Variant* best, Sizes sizes) {
    const size_t n = wanted.sizes.size();
    LoopKernel made = kernel;
    made.varying = always_varying(kernel, n);
    made.ranges.resize(n);
    if (sizes == Sizes::kAny) made.varying.assign(n, true);
    for (size_t k = 0; k < n; ++k) {
      if (wanted.hint != nullptr && wanted.hint->varying[k]) made.varying[k] = true;
      if (best != nullptr && sizes == Sizes::kVarying && (best->varying[k] || best->sizes[k] != wanted.sizes[k]))
        made.varying[k] = true;
      // Strides that need 64 bits hardly exist: taken for granted until one is met.
      if (made.varying[k] && k > 0) made.ranges[k] = useful_range(kernel, k, {.min = 0, .max = wanted.sizes[k]});
      if (wanted.hint != nullptr && wanted.hint->varying[k]) made.ranges[k] = wanted.hint->ranges[k];
      if (wanted.use[k] == exactly(wanted.sizes[k])) continue;
      // The code may assume only what holds for every extent that the caller declared.
      made.varying[k] = true;
      made.ranges[k] = useful_range(kernel, k, wanted.use[k]);
    }
    return made;
  }

  void forget_unused() {
    // An executable is shared by the kernels that were compiled together.
    std::map<const Executable*, long> held;
    for (const auto& [structure, variants] : variants_)
      for (const Variant& v : variants) ++held[v.slot->kernel.code.get()];
    std::set<const Executable*> unused;  // all of them before any is dropped, which changes the counts
    for (const auto& [structure, variants] : variants_)
      for (const Variant& v : variants) {
        const std::shared_ptr<Executable>& code = v.slot->kernel.code;
        if (code != nullptr && code.use_count() == held[code.get()]) unused.insert(code.get());
      }
    forget([&](const Variant& v) { return unused.contains(v.slot->kernel.code.get()); });
  }

  template <class Which> void forget(Which which) {
    for (auto it = variants_.begin(); it != variants_.end();) {
      std::erase_if(it->second, which);
      it = it->second.empty() ? variants_.erase(it) : std::next(it);
    }
    size_ = 0;
    for (const auto& [structure, variants] : variants_) size_ += variants.size();
  }

  std::mutex mutex_;  // of all below, and of what the slots hold
  std::condition_variable ready_;
  std::map<Structure, std::vector<Variant>> variants_;
  size_t size_ = 0;
};

// Never destroyed: compiled code is callable until the process ends.
KernelTable& table() {
  static auto* table = [] {
    memory::on_trim(&forget_unused_kernels);
    return new KernelTable;
  }();
  return *table;
}

}  // namespace

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
  if (then.empty()) return hint;  // another kernel altogether: all may vary
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
CompiledKernels find_or_compile(std::span<const LoopKernel> kernels, Sizes sizes, std::span<const KernelHint> hints,
                                std::span<const KernelUse> uses, const Target& target) {
  return table().find_or_compile(kernels, sizes, hints, uses, target);
}
std::optional<CompiledKernels> find_kernels(std::span<const LoopKernel> kernels, const Target& target) {
  return table().find(kernels, target);
}
void forget_unused_variants() { table().forget_unused_kernels(); }
void forget_unused_kernels() {
  forget_unused_variants();
  forget_code();
}

}  // namespace rondo::compile
