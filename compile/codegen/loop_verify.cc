#include "rondo/compile/codegen/loop_verify.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile {
namespace {

struct OpInfo {
  const char* name;
  int n_args;
};

OpInfo info(LoopOp op) {
  switch (op) {
    case LoopOp::kConst: return {"const", 0};
    case LoopOp::kScalar: return {"scalar", 0};
    case LoopOp::kLoad: return {"load", 0};
    case LoopOp::kAdd: return {"add", 2};
    case LoopOp::kSub: return {"sub", 2};
    case LoopOp::kMul: return {"mul", 2};
    case LoopOp::kDiv: return {"div", 2};
    case LoopOp::kFma: return {"fma", 3};
    case LoopOp::kSqrt: return {"sqrt", 1};
    case LoopOp::kAbs: return {"abs", 1};
    case LoopOp::kNeg: return {"neg", 1};
    case LoopOp::kRoundEven: return {"round_even", 1};
    case LoopOp::kFloor: return {"floor", 1};
    case LoopOp::kExp2Int: return {"exp2_int", 1};
    case LoopOp::kExponent: return {"exponent", 1};
    case LoopOp::kMantissa: return {"mantissa", 1};
    case LoopOp::kLt: return {"lt", 2};
    case LoopOp::kLe: return {"le", 2};
    case LoopOp::kEq: return {"eq", 2};
    case LoopOp::kNe: return {"ne", 2};
    case LoopOp::kAnd: return {"and", 2};
    case LoopOp::kOr: return {"or", 2};
    case LoopOp::kNot: return {"not", 1};
    case LoopOp::kSelect: return {"select", 3};
    case LoopOp::kCast: return {"cast", 1};
    case LoopOp::kStore: return {"store", 1};
    case LoopOp::kReduceSum: return {"reduce_sum", 1};
    case LoopOp::kReduceMax: return {"reduce_max", 1};
    case LoopOp::kColumnSum: return {"column_sum", 1};
  }
  return {"?", 0};
}

bool is_reduction(LoopOp op) { return op == LoopOp::kReduceSum || op == LoopOp::kReduceMax; }
bool is_comparison(LoopOp op) { return op >= LoopOp::kLt && op <= LoopOp::kNe; }
bool is_logical(LoopOp op) { return op >= LoopOp::kAnd && op <= LoopOp::kNot; }

// f32 registers hold the 16-bit floats too.
DType register_of(DType type) { return is_low_precision(type) ? kF32 : type; }

class Verifier {
 public:
  explicit Verifier(const LoopKernel& kernel)
      : k_(kernel), seen_(kernel.instrs.size(), kNowhere), summed_(kernel.operands.size(), false) {}

  std::string run() {
    if (std::string problem = check_shape(); !problem.empty()) return problem;
    for (size_t s = 0; s < k_.stages.size(); ++s) {
      const Stage& stage = k_.stages[s];
      const auto row = [&](int32_t id) { return check(id, Place::kRow, static_cast<int>(s)); };
      const auto column = [&](int32_t id) { return check(id, Place::kColumn, static_cast<int>(s)); };
      const auto reduction = [&](int32_t id) { return check(id, Place::kReduction, static_cast<int>(s)); };
      if (std::string problem = for_each(stage.row, row); !problem.empty()) return problem;
      if (std::string problem = for_each(stage.column, column); !problem.empty()) return problem;
      if (std::string problem = for_each(stage.reductions, reduction); !problem.empty()) return problem;
    }
    return "";
  }

 private:
  enum class Place : uint8_t { kRow, kColumn, kReduction };
  struct Position {
    Place place;
    int stage;  // -1: not met yet
  };
  static constexpr Position kNowhere{Place::kRow, -1};

  template <class Check> std::string for_each(const std::vector<int32_t>& ids, Check check) {
    for (int32_t id : ids) {
      if (id < 0 || id >= std::ssize(k_.instrs)) return absl::StrCat("no instruction %", id);
      if (std::string problem = check(id); !problem.empty())
        return absl::StrCat("%", id, " = ", info(k_.instrs[id].op).name, ": ", problem);
    }
    return "";
  }

  std::string check_shape() {
    if (k_.name.empty()) return "no name";
    if (k_.rows < 1 || k_.cols < 1) return "empty iteration space";
    if (k_.split_columns && (k_.rows != 1 || k_.stages.size() != 1)) return "split_columns needs one row and one stage";
    if (k_.split_columns && !k_.stages[0].reductions.empty()) return "split_columns with a reduction";
    for (const Operand& operand : k_.operands) {
      for (const OperandAxis& axis : operand.axes)
        if (axis.divisor < 1 || axis.size < 1) return "an operand axis with divisor or size below 1";
      if (operand.is_partial && (operand.dtype != compute_dtype(operand.dtype) || !is_floating(operand.dtype) ||
                                 operand.col_stride != 1 || k_.chunk_rows < 1 || k_.split_columns))
        return "a partial operand must be dense f32 or f64, in a kernel with chunk_rows";
    }
    return "";
  }

  std::string check(int32_t id, Place place, int stage) {
    const Instr& i = k_.instrs[id];
    if (seen_[id].stage >= 0) return "listed twice";
    const std::array<int32_t, 3> args{i.a, i.b, i.c};
    const int n_args = info(i.op).n_args;
    for (int n = 0; n < 3; ++n) {
      if (n >= n_args) {
        if (args[n] >= 0) return "too many arguments";
        continue;
      }
      if (args[n] < 0 || args[n] >= std::ssize(k_.instrs)) return "too few arguments";
      const Position from = seen_[args[n]];
      if (from.stage < 0) return absl::StrCat("reads %", args[n], " before it is defined");
      const LoopOp source = k_.instrs[args[n]].op;
      if (source == LoopOp::kStore || source == LoopOp::kColumnSum) return absl::StrCat("reads the effect %", args[n]);
      if (from.place == Place::kColumn && (from.stage != stage || place == Place::kRow))
        return absl::StrCat("reads the column value %", args[n], " outside of its stage's columns");
      if (from.place == Place::kReduction && from.stage == stage)
        return absl::StrCat("reads the reduction %", args[n], " in its own stage");
    }
    seen_[id] = {place, stage};
    if (is_reduction(i.op) != (place == Place::kReduction)) return "a reduction in the wrong list, or the reverse";
    if (std::string problem = check_types(i); !problem.empty()) return problem;
    return check_index(i, place);
  }

  std::string check_types(const Instr& i) {
    if (i.type == kI64 || i.type == kI32 || i.type == kU8) return "integer registers do not exist";
    auto type = [&](int32_t id) { return register_of(k_.instrs[id].type); };
    const DType result = register_of(i.type);
    if (is_comparison(i.op)) return result == kBool && type(i.a) == type(i.b) ? "" : "types do not compare";
    if (is_logical(i.op)) {
      const bool ok = result == kBool && type(i.a) == kBool && (i.op == LoopOp::kNot || type(i.b) == kBool);
      return ok ? "" : "not boolean";
    }
    if (i.op == LoopOp::kSelect)
      return type(i.a) == kBool && type(i.b) == result && type(i.c) == result ? "" : "types of the choices differ";
    const bool any_type = info(i.op).n_args == 0 || i.op == LoopOp::kCast || i.op == LoopOp::kStore;
    if (any_type) return "";
    for (int32_t id : {i.a, i.b, i.c})
      if (id >= 0 && type(id) != result) return "types of arguments and result differ";
    return result == kBool ? "arithmetic on booleans" : "";
  }

  std::string check_index(const Instr& i, Place place) {
    if (i.op == LoopOp::kScalar) return i.index >= 0 && i.index < k_.n_scalars ? "" : "no such scalar";
    if (i.op != LoopOp::kLoad && i.op != LoopOp::kStore && i.op != LoopOp::kColumnSum) return "";
    if (i.index < 0 || i.index >= std::ssize(k_.operands)) return "no such operand";
    const Operand& operand = k_.operands[i.index];
    if (operand.is_partial != (i.op == LoopOp::kColumnSum)) return "only column_sum touches a partial operand";
    if (i.op == LoopOp::kLoad) return "";
    const DType source = k_.instrs[i.a].type;
    if (i.op == LoopOp::kColumnSum) {
      if (place != Place::kColumn) return "outside of a column list";
      if (register_of(source) != operand.dtype) return "partial operand of another type";
      if (summed_[i.index]) return "two column_sums into one operand";
      summed_[i.index] = true;
      return "";
    }
    if (!operand.is_output) return "stores to an input";
    if (!is_floating(operand.dtype) && !(operand.dtype == kBool || (operand.dtype == kU8 && source == kBool)))
      return "stores of this type do not exist";
    if (place == Place::kColumn && operand.col_stride == 0 && k_.cols > 1) return "every column stores to one element";
    return "";
  }

  const LoopKernel& k_;
  std::vector<Position> seen_;
  std::vector<bool> summed_;
};

std::string print_instr(const LoopKernel& kernel, int32_t id) {
  const Instr& i = kernel.instrs[id];
  std::string text = absl::StrCat("    %", id, ":", std::string(name_of(i.type)), " = ", info(i.op).name);
  if (i.op == LoopOp::kConst) absl::StrAppend(&text, " ", absl::StrFormat("%a", i.value));
  for (int32_t arg : {i.a, i.b, i.c})
    if (arg >= 0) absl::StrAppend(&text, " %", arg);
  if (i.index >= 0) absl::StrAppend(&text, " @", i.index);
  return text + "\n";
}

}  // namespace

std::string verify(const LoopKernel& kernel) { return Verifier(kernel).run(); }

std::string print(const LoopKernel& kernel) {
  std::string text = absl::StrCat("kernel ", kernel.name, " rows=", kernel.rows, " cols=", kernel.cols);
  if (kernel.split_columns) absl::StrAppend(&text, " split_columns");
  if (kernel.chunk_rows > 0) absl::StrAppend(&text, " chunk_rows=", kernel.chunk_rows);
  absl::StrAppend(&text, " scalars=", kernel.n_scalars, "\n");
  for (size_t n = 0; n < kernel.operands.size(); ++n) {
    const Operand& operand = kernel.operands[n];
    absl::StrAppend(&text, "  @", n, ":", std::string(name_of(operand.dtype)));
    for (const OperandAxis& axis : operand.axes)
      absl::StrAppend(&text, " {/", axis.divisor, " %", axis.size, " *", axis.stride, "}");
    absl::StrAppend(&text, " col*", operand.col_stride, operand.is_output ? " output" : "",
                    operand.is_partial ? " partial" : "", "\n");
  }
  for (const Stage& stage : kernel.stages) {
    absl::StrAppend(&text, "  stage\n");
    for (int32_t id : stage.row) absl::StrAppend(&text, "   row", print_instr(kernel, id));
    for (int32_t id : stage.column) absl::StrAppend(&text, "   col", print_instr(kernel, id));
    for (int32_t id : stage.reductions) absl::StrAppend(&text, "   red", print_instr(kernel, id));
  }
  return text;
}

}  // namespace rondo::compile
