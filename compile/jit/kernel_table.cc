#include "rondo/compile/jit/kernel_table.h"

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>

#include "rondo/compile/jit/code_store.h"
#include "rondo/compile/jit/kernel_variants.h"
#include "rondo/runtime/device/memory.h"

namespace rondo::compile {
namespace {

class KernelTable {
 public:
  CompiledKernels find_or_compile(std::span<const LoopKernel> kernels, Sizes sizes, std::span<const KernelHint> hints,
                                  std::span<const KernelUse> uses, const Target& target) {
    CompiledKernels result;
    size_t found = 0;
    for (bool all_there = false; !all_there;) {
      std::vector<std::shared_ptr<KernelSlot>> slots(kernels.size());  // by kernel: its slot
      std::vector<LoopKernel> missing;
      std::vector<std::shared_ptr<KernelSlot>> made;  // by kernel in `missing`: its slot
      claim(kernels, sizes, hints, uses, target, slots, missing, made);
      // Compiles without the lock. Meanwhile other threads find existing kernels, make the ones they miss themselves,
      // and wait for those that are made here.
      if (!missing.empty()) {
        const std::shared_ptr<const Executable> code = make(missing, made, target);
        result.compiled += code->compiled();
        result.fresh += code->fresh();
      }
      result.added += static_cast<int>(missing.size());
      found = kernels.size() - missing.size();
      std::unique_lock lock(mutex_);
      result.kernels.clear();
      all_there = true;
      for (const std::shared_ptr<KernelSlot>& slot : slots) {
        ready_.wait(lock, [&] { return slot->state != KernelSlot::State::kPending; });
        // If another thread's compilation has failed, this thread tries again, and gets the error itself.
        all_there = all_there && slot->state == KernelSlot::State::kReady;
        result.kernels.push_back(slot->kernel);
      }
    }
    if (found > 0) CodeStore::of(target).count_from_memory(static_cast<int64_t>(found));
    return result;
  }

  std::optional<CompiledKernels> find(std::span<const LoopKernel> kernels, const Target& target) {
    CompiledKernels result;
    std::lock_guard lock(mutex_);
    for (const LoopKernel& kernel : kernels) {
      const WantedKernel wanted{structure_of(kernel, target), extents(kernel), exact_use(kernel), nullptr};
      const KernelVariant* best = nearest(variants_of(wanted.structure), wanted);
      if (best == nullptr || best->differences(wanted.use) > 0 || best->slot->state != KernelSlot::State::kReady)
        return std::nullopt;
      result.kernels.push_back(best->slot->kernel);
    }
    return result;
  }

  void forget_unused_variants() {
    std::lock_guard lock(mutex_);
    forget_unused();
  }

 private:
  static constexpr size_t kCapacity = 4096;
  // Finds the slot of each kernel. A kernel that has no slot gets a new one, which the caller fills.
  void claim(std::span<const LoopKernel> kernels, Sizes sizes, std::span<const KernelHint> hints,
             std::span<const KernelUse> uses, const Target& target, std::vector<std::shared_ptr<KernelSlot>>& slots,
             std::vector<LoopKernel>& missing, std::vector<std::shared_ptr<KernelSlot>>& made) {
    std::vector<WantedKernel> wanted;
    for (size_t i = 0; i < kernels.size(); ++i)
      wanted.push_back({structure_of(kernels[i], target), extents(kernels[i]),
                        uses.empty() ? exact_use(kernels[i]) : uses[i], hints.empty() ? nullptr : &hints[i]});
    std::vector<size_t> position(kernels.size(), SIZE_MAX);  // by kernel: its position in `missing`
    std::lock_guard lock(mutex_);
    if (size_ > kCapacity) forget_unused();
    for (size_t i = 0; i < kernels.size(); ++i) {
      const KernelVariant* best = nearest(variants_of(wanted[i].structure), wanted[i]);
      if (best != nullptr && serves(*best, kernels[i], wanted[i], sizes)) {
        slots[i] = best->slot;
        continue;
      }
      position[i] = missing.size();
      // The program may contain the same kernel twice.
      for (size_t k = 0; k < i; ++k)
        if (position[k] != SIZE_MAX && wanted[k].same_code(wanted[i])) position[i] = position[k];
      if (position[i] == missing.size()) {
        missing.push_back(specialize(kernels[i], wanted[i], best, sizes));
        if (missing.back().name.empty()) missing.back().name = "kernel" + std::to_string(position[i]);
        made.push_back(std::make_shared<KernelSlot>());
      }
      slots[i] = made[position[i]];
    }
    // A thread that finds a slot waits until the slot is filled. So everything that can throw is done before the table
    // contains the first new slot.
    std::vector<std::pair<std::vector<KernelVariant>*, KernelVariant>> fresh;
    for (size_t i = 0; i < kernels.size(); ++i) {
      if (position[i] == SIZE_MAX) continue;
      std::vector<KernelVariant>& variants = variants_[wanted[i].structure];
      const LoopKernel& kernel = missing[position[i]];
      KernelVariant variant{std::move(wanted[i].sizes), kernel.varying, kernel.ranges, slots[i]};
      const auto is_same = [&](const KernelVariant& v) { return v.same_code(variant); };
      if (std::any_of(variants.begin(), variants.end(), is_same) ||
          std::any_of(fresh.begin(), fresh.end(),
                      [&](const auto& other) { return other.first == &variants && is_same(other.second); }))
        continue;
      fresh.emplace_back(&variants, std::move(variant));
      variants.reserve(variants.size() + fresh.size());
    }
    for (auto& [variants, variant] : fresh) variants->push_back(std::move(variant));
    size_ += fresh.size();
  }

  std::span<const KernelVariant> variants_of(const Structure& structure) const {
    const auto found = variants_.find(structure);
    return found == variants_.end() ? std::span<const KernelVariant>() : found->second;
  }

  std::shared_ptr<const Executable> make(const std::vector<LoopKernel>& missing,
                                         const std::vector<std::shared_ptr<KernelSlot>>& made, const Target& target) {
    std::vector<KernelSlot> ready;
    std::shared_ptr<Executable> code;
    try {
      code = compile_kernels(missing, {}, target);
      for (size_t i = 0; i < made.size(); ++i)
        ready.push_back({KernelSlot::State::kReady, {code->handle(static_cast<int>(i)), code}});
    } catch (...) {
      std::lock_guard lock(mutex_);
      for (const std::shared_ptr<KernelSlot>& slot : made) slot->state = KernelSlot::State::kFailed;
      forget([](const KernelVariant& v) { return v.slot->state == KernelSlot::State::kFailed; });
      ready_.notify_all();
      throw;
    }
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < made.size(); ++i) *made[i] = std::move(ready[i]);
    ready_.notify_all();
    return code;
  }

  void forget_unused() {
    // An executable is shared by the kernels that were compiled together. It is unused if only this table holds it.
    std::map<const Executable*, long> held;
    for (const auto& [structure, variants] : variants_)
      for (const KernelVariant& v : variants) ++held[v.slot->kernel.code.get()];
    std::set<const Executable*> unused;  // complete before any kernel is dropped, because that changes the counts
    for (const auto& [structure, variants] : variants_)
      for (const KernelVariant& v : variants) {
        const std::shared_ptr<Executable>& code = v.slot->kernel.code;
        if (code != nullptr && code.use_count() == held[code.get()]) unused.insert(code.get());
      }
    forget([&](const KernelVariant& v) { return unused.contains(v.slot->kernel.code.get()); });
  }

  template <class Which> void forget(Which which) {
    for (auto it = variants_.begin(); it != variants_.end();) {
      std::erase_if(it->second, which);
      it = it->second.empty() ? variants_.erase(it) : std::next(it);
    }
    size_ = 0;
    for (const auto& [structure, variants] : variants_) size_ += variants.size();
  }

  std::mutex mutex_;  // guards all below, and what the slots hold
  std::condition_variable ready_;
  std::map<Structure, std::vector<KernelVariant>> variants_;
  size_t size_ = 0;
};

// Never destroyed: compiled code is callable until the process ends.
KernelTable& table() {
  static auto* table = [] {
    memory::on_trim([] { forget_unused_kernels(); });
    return new KernelTable;
  }();
  return *table;
}

}  // namespace

CompiledKernels find_or_compile(std::span<const LoopKernel> kernels, Sizes sizes, std::span<const KernelHint> hints,
                                std::span<const KernelUse> uses, const Target& target) {
  return table().find_or_compile(kernels, sizes, hints, uses, target);
}
std::optional<CompiledKernels> find_kernels(std::span<const LoopKernel> kernels, const Target& target) {
  return table().find(kernels, target);
}
void forget_unused_variants() { table().forget_unused_variants(); }
int64_t forget_unused_kernels() {
  forget_unused_variants();
  return forget_code();
}

}  // namespace rondo::compile
