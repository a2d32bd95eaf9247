#include "rondo/compile/jit/kernel_table.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <set>

namespace rondo::compile {
namespace {

// What kernels of different sizes have in common: everything but the extents that may vary.
using Structure = std::vector<uint64_t>;

Structure structure_of(const LoopKernel& kernel) {
  Structure s;
  const auto add = [&](auto value) { s.push_back(static_cast<uint64_t>(value)); };
  add(kernel.split_columns);
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

struct Variant {
  std::vector<int64_t> sizes;  // as compiled; those that vary stand for any
  std::vector<bool> varying;
  CompiledKernel kernel;

  // How many sizes stand in the way of serving `wanted`.
  int64_t differences(const std::vector<int64_t>& wanted) const {
    int64_t count = 0;
    for (size_t i = 0; i < sizes.size(); ++i) count += !varying[i] && sizes[i] != wanted[i];
    return count;
  }
};

class KernelTable {
 public:
  CompiledKernels find_or_compile(std::span<const LoopKernel> kernels, Sizes sizes) {
    CompiledKernels result;
    result.kernels.resize(kernels.size());
    // Compilation holds the lock: two threads that ask for one kernel want it compiled once.
    std::lock_guard lock(mutex_);
    std::vector<LoopKernel> missing;
    std::vector<size_t> position(kernels.size());  // of kernels[i] in missing; one past the end where it is there
    std::vector<Wanted> wanted;
    for (const LoopKernel& kernel : kernels) wanted.push_back({structure_of(kernel), extents(kernel)});
    for (size_t i = 0; i < kernels.size(); ++i) {
      const Variant* best = nearest(wanted[i]);
      if (best != nullptr && best->differences(wanted[i].sizes) == 0) {
        position[i] = SIZE_MAX;
        result.kernels[i] = best->kernel;
        continue;
      }
      LoopKernel kernel = kernels[i];
      kernel.varying = always_varying(kernel, wanted[i].sizes.size());
      if (sizes == Sizes::kAny) kernel.varying.assign(kernel.varying.size(), true);
      if (best != nullptr && sizes == Sizes::kVarying)
        for (size_t k = 0; k < kernel.varying.size(); ++k)
          if (best->varying[k] || best->sizes[k] != wanted[i].sizes[k]) kernel.varying[k] = true;
      position[i] = missing.size();
      // The same kernel twice in one program.
      for (size_t k = 0; k < i; ++k)
        if (position[k] != SIZE_MAX && wanted[k] == wanted[i]) position[i] = position[k];
      if (position[i] < missing.size()) continue;
      kernel.name = "kernel" + std::to_string(missing.size());
      missing.push_back(std::move(kernel));
    }
    if (missing.empty()) return result;
    const std::shared_ptr<Executable> code = compile_kernels(missing);
    result.compiled = static_cast<int>(missing.size());
    for (size_t i = 0; i < kernels.size(); ++i) {
      if (position[i] == SIZE_MAX) continue;
      result.kernels[i] = {code->entry(static_cast<int>(position[i])), code};
      std::vector<Variant>& variants = variants_[wanted[i].structure];
      Variant made{std::move(wanted[i].sizes), missing[position[i]].varying, result.kernels[i]};
      if (std::any_of(variants.begin(), variants.end(), [&](const Variant& v) { return v.differences(made.sizes) == 0; }))
        continue;
      variants.push_back(std::move(made));
      ++size_;
    }
    if (size_ > kCapacity) forget_unused();
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
    bool operator==(const Wanted&) const = default;
  };

  const Variant* nearest(const Wanted& wanted) const {
    const auto found = variants_.find(wanted.structure);
    if (found == variants_.end()) return nullptr;
    const auto closer = [&](const Variant& a, const Variant& b) {
      return a.differences(wanted.sizes) < b.differences(wanted.sizes);
    };
    return &*std::min_element(found->second.begin(), found->second.end(), closer);
  }

  void forget_unused() {
    // An executable is shared by the kernels that were compiled together.
    std::map<const Executable*, long> held;
    for (const auto& [structure, variants] : variants_)
      for (const Variant& v : variants) ++held[v.kernel.code.get()];
    std::set<const Executable*> unused;  // all of them before any is dropped, which changes the counts
    for (const auto& [structure, variants] : variants_)
      for (const Variant& v : variants)
        if (v.kernel.code.use_count() == held[v.kernel.code.get()]) unused.insert(v.kernel.code.get());
    for (auto it = variants_.begin(); it != variants_.end();) {
      std::erase_if(it->second, [&](const Variant& v) { return unused.contains(v.kernel.code.get()); });
      it = it->second.empty() ? variants_.erase(it) : std::next(it);
    }
    size_ = 0;
    for (const auto& [structure, variants] : variants_) size_ += variants.size();
  }

  std::mutex mutex_;
  std::map<Structure, std::vector<Variant>> variants_;
  size_t size_ = 0;
};

// Never destroyed: compiled code is callable until the process ends.
KernelTable& table() {
  static auto* table = new KernelTable;
  return *table;
}

}  // namespace

CompiledKernels find_or_compile(std::span<const LoopKernel> kernels, Sizes sizes) {
  return table().find_or_compile(kernels, sizes);
}
void forget_unused_kernels() {
  table().forget_unused_kernels();
  forget_code();
}

}  // namespace rondo::compile
