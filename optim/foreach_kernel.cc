#include "rondo/optim/foreach_kernel.h"

#include <bit>
#include <map>
#include <tuple>

#include "rondo/optim/block8.h"
#include "rondo/runtime/base/error.h"

namespace rondo::optim {
namespace {

using compile::Instr;
using compile::LoopKernel;
using compile::Operand;
using compile::Stage;

// Stands for a size that is read at run time (kernel_table.h). Any number but 0 and 1 would do.
constexpr int64_t kAnySize = int64_t{1} << 20;

class KernelBuilder final : public LoopBuilder {
 public:
  KernelBuilder(const Body& body, std::span<const ArraySpec> arrays, std::span<const int> scale_operand, DType compute,
                bool by_rows, int64_t row_width)
      : body_(body), arrays_(arrays), scale_operand_(scale_operand), compute_(compute), by_rows_(by_rows) {
    kernel_.name = body.name;
    kernel_.n_scalars = body.n_scalars;
    kernel_.per_item = true;
    kernel_.split_columns = !by_rows;
    kernel_.rows = by_rows ? 2 : 1;
    kernel_.cols = row_width > 0 ? row_width : kAnySize;
  }

  LoopKernel run(uint32_t& written) {
    begin_stage();
    trace_written();
    written = written_;
    add_operands();
    kernel_.instrs.clear();
    kernel_.stages.clear();
    begin_stage();
    load_row_values();
    bool codes = false;
    for (size_t k = 0; k < arrays_.size(); ++k) codes = codes || writes_codes(k);
    std::vector<LoopValue> values = apply();
    if (codes) {
      // The new scale is known only after a sweep over the row. So the values are computed twice, and not stored.
      std::map<size_t, int32_t> largest;
      for (size_t k = 0; k < arrays_.size(); ++k)
        if (writes_codes(k)) largest[k] = reduce_row(LoopOp::kReduceMax, scalar::abs(values[k]));
      store_sums(values);
      begin_stage();
      for (const auto& [k, id] : largest) store_row(scale_operand_[k], id, kF32);
      finish_sums();
      values = apply();
      for (const auto& [k, id] : largest) {
        const LoopValue inverse = inverse8(LoopValue{this, id, kF32});
        const LoopValue code = arrays_[k].format == Format::kSigned8 ? encode8<true>(values[k], inverse)
                                                                     : encode8<false>(values[k], inverse);
        store(static_cast<int>(k), code);
      }
      store_values(values);
    } else {
      store_sums(values);
      store_values(values);
      if (!sums_.empty()) {
        begin_stage();
        finish_sums();
      }
    }
    prune();
    return std::move(kernel_);
  }

  // ---- LoopBuilder: the functions that formulas call
  LoopValue emit(LoopOp op, DType type, LoopValue a, LoopValue b, LoopValue c) override {
    return append({.op = op, .type = type, .a = a.id, .b = b.id, .c = c.id}, stage().column);
  }
  LoopValue constant(double value, DType type) override {
    return append({.op = LoopOp::kConst, .type = type, .value = value}, stage().column);
  }
  LoopValue input(int) override { throw_internal("a formula reads its arguments only"); }
  bool has_input(int) const override { return false; }
  LoopValue scalar(int) override { throw_internal("a formula reads its arguments only"); }
  int64_t integer(int) const override { throw_internal("a formula reads its arguments only"); }
  LoopValue reduce(LoopOp, LoopValue) override { throw_internal("a formula works on one element"); }
  void output(int, LoopValue) override { throw_internal("a formula reads its arguments only"); }

 private:
  using InstrKey = std::tuple<LoopOp, DType, int32_t, int32_t, int32_t, int32_t, uint64_t>;  // last: bits of the value

  Stage& stage() { return kernel_.stages.back(); }
  void begin_stage() {
    kernel_.stages.emplace_back();
    numbering_.clear();
  }
  // Appends an instruction, unless the stage has an equal one already.
  LoopValue append(const Instr& instr, std::vector<int32_t>& list) {
    const auto next = static_cast<int32_t>(kernel_.instrs.size());
    if (instr.op != LoopOp::kStore) {
      const InstrKey key{
          instr.op, instr.type, instr.a, instr.b, instr.c, instr.index, std::bit_cast<uint64_t>(instr.value)};
      const auto [found, added] = numbering_.try_emplace(key, next);
      if (!added) return {this, found->second, instr.type};
    }
    kernel_.instrs.push_back(instr);
    list.push_back(next);
    return {this, next, instr.type};
  }

  // Finds the operands that the formula changes: their value has another id afterwards.
  void trace_written() {
    std::vector<LoopValue> values;
    for (int k = 0; k < body_.n_values + body_.n_sums; ++k)
      values.push_back(append({.op = LoopOp::kLoad, .type = compute_, .index = k}, stage().column));
    const std::vector<LoopValue> before = values;
    body_.build(body_.context, values.data(), scalars().data());
    for (size_t k = 0; k < arrays_.size(); ++k) {
      const bool is_value = static_cast<int>(k) < body_.n_values;
      if (!is_value || arrays_[k].zero || values[k].id != before[k].id) written_ |= 1u << k;
    }
  }

  std::vector<LoopValue> scalars() {
    std::vector<LoopValue> list;
    for (int k = 0; k < body_.n_scalars; ++k)
      list.push_back(append({.op = LoopOp::kScalar, .type = compute_, .index = k}, stage().column));
    return list;
  }

  bool writes_codes(size_t k) const { return arrays_[k].format != Format::kPlain && (written_ >> k & 1) != 0; }

  void add_operands() {
    kernel_.operands.resize(arrays_.size());
    for (size_t k = 0; k < arrays_.size(); ++k) {
      const ArraySpec& a = arrays_[k];
      Operand& operand = kernel_.operands[k];
      operand.dtype = a.role == Role::kSum ? kF64 : a.format != Format::kPlain ? kU8 : a.dtype;
      operand.is_output = (written_ >> k & 1) != 0;
      const bool per_row = a.role == Role::kSum || a.layout == Layout::kPerRow;
      operand.col_stride = per_row ? 0 : 1;
      if (by_rows_ && a.layout != Layout::kPerColumn) operand.axes = {{1, kernel_.rows, per_row ? 1 : kernel_.cols}};
    }
    for (size_t k = 0; k < arrays_.size(); ++k) {
      if (scale_operand_[k] < 0) continue;
      Operand scale;
      scale.col_stride = 0;
      scale.axes = {{1, kernel_.rows, 1}};
      scale.is_output = writes_codes(k);
      kernel_.operands.push_back(scale);
    }
  }

  // Scales and values that belong to a row are read once, in the first stage. All stages see them.
  void load_row_values() {
    row_values_.resize(arrays_.size());
    for (size_t k = 0; k < arrays_.size(); ++k) {
      const int index = arrays_[k].layout == Layout::kPerRow ? static_cast<int>(k) : scale_operand_[k];
      if (index >= 0) row_values_[k] = append({.op = LoopOp::kLoad, .type = compute_, .index = index}, stage().row);
    }
  }

  // Applies the formula to the current element. Returns the values of all arrays: also averages, copies and zeros.
  std::vector<LoopValue> apply() {
    const std::vector<LoopValue> scalars = this->scalars();
    std::vector<LoopValue> values(arrays_.size());
    for (size_t k = 0; k < arrays_.size(); ++k) {
      const ArraySpec& a = arrays_[k];
      if (a.layout == Layout::kPerRow) {
        values[k] = row_values_[k];
        continue;
      }
      if (a.role == Role::kCopy) continue;
      if (a.role == Role::kSum) {
        values[k] = constant(0, compute_);
        continue;
      }
      values[k] = append({.op = LoopOp::kLoad, .type = compute_, .index = static_cast<int32_t>(k)}, stage().column);
      if (a.format == Format::kSigned8) values[k] = decode8<true>(values[k], row_values_[k]);
      if (a.format == Format::kUnsigned8) values[k] = decode8<false>(values[k], row_values_[k]);
    }
    body_.build(body_.context, values.data(), scalars.data());
    for (size_t k = 0; k < arrays_.size(); ++k) {
      if (arrays_[k].role == Role::kAverage) values[k] = scalar::fma(scalars[1], values[0] - values[k], values[k]);
      if (arrays_[k].role == Role::kCopy) values[k] = values[0];
      if (arrays_[k].zero) values[k] = constant(0, compute_);
    }
    return values;
  }

  void store(int operand, LoopValue v) {
    append({.op = LoopOp::kStore, .type = v.type, .a = v.id, .index = operand}, stage().column);
  }
  void store_values(const std::vector<LoopValue>& values) {
    for (size_t k = 0; k < arrays_.size(); ++k)
      if ((written_ >> k & 1) != 0 && arrays_[k].role != Role::kSum && arrays_[k].format == Format::kPlain)
        store(static_cast<int>(k), values[k]);
  }
  void store_row(int operand, int32_t id, DType type) {
    append({.op = LoopOp::kStore, .type = type, .a = id, .index = operand}, stage().row);
  }
  int32_t reduce_row(LoopOp op, LoopValue v) {
    return append({.op = op, .type = v.type, .a = v.id}, stage().reductions).id;
  }
  void store_sums(const std::vector<LoopValue>& values) {
    for (size_t k = 0; k < arrays_.size(); ++k) {
      if (arrays_[k].role != Role::kSum) continue;
      LoopValue term = values[k];
      if (term.type != kF64) term = emit(LoopOp::kCast, kF64, term, {}, {});
      sums_.push_back({static_cast<int>(k), reduce_row(LoopOp::kReduceSum, term)});
    }
  }
  void finish_sums() {
    for (const auto& [operand, id] : sums_) store_row(operand, id, kF64);
  }

  // Removes the instructions that no store needs, and renumbers the others.
  void prune() {
    const std::vector<Instr> all = std::move(kernel_.instrs);
    std::vector<bool> used(all.size());
    for (size_t i = all.size(); i-- > 0;) {  // arguments come before the instructions that use them
      if (all[i].op == LoopOp::kStore) used[i] = true;
      if (!used[i]) continue;
      for (int32_t arg : {all[i].a, all[i].b, all[i].c})
        if (arg >= 0) used[static_cast<size_t>(arg)] = true;
    }
    kernel_.instrs.clear();
    std::vector<int32_t> position(all.size(), -1);
    for (Stage& stage : kernel_.stages) {
      for (std::vector<int32_t>* list : {&stage.row, &stage.column, &stage.reductions}) {
        std::erase_if(*list, [&](int32_t id) { return !used[static_cast<size_t>(id)]; });
        for (int32_t& id : *list) {
          Instr instr = all[static_cast<size_t>(id)];
          for (int32_t* arg : {&instr.a, &instr.b, &instr.c})
            if (*arg >= 0) *arg = position[static_cast<size_t>(*arg)];
          position[static_cast<size_t>(id)] = static_cast<int32_t>(kernel_.instrs.size());
          kernel_.instrs.push_back(instr);
          id = position[static_cast<size_t>(id)];
        }
      }
    }
  }

  const Body& body_;
  std::span<const ArraySpec> arrays_;
  std::span<const int> scale_operand_;
  const DType compute_;
  const bool by_rows_;
  LoopKernel kernel_;
  uint32_t written_ = 0;
  std::map<InstrKey, int32_t> numbering_;
  std::vector<LoopValue> row_values_;  // by array
  struct Sum {
    int operand;
    int32_t id;
  };
  std::vector<Sum> sums_;
};

}  // namespace

LoopKernel make_kernel(const Body& body, std::span<const ArraySpec> arrays, std::span<const int> scale_operand,
                       DType compute, bool by_rows, int64_t row_width, uint32_t& written) {
  return KernelBuilder(body, arrays, scale_operand, compute, by_rows, row_width).run(written);
}

}  // namespace rondo::optim
