#include "rondo/compile/codegen/loop_verify.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "rondo/compile/codegen/loop_text.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::compile {
namespace {

bool is_comparison(LoopOp op) { return op >= LoopOp::kLt && op <= LoopOp::kNe; }
bool is_logical(LoopOp op) { return op >= LoopOp::kAnd && op <= LoopOp::kNot; }

bool needs_integers(LoopOp op) { return op == LoopOp::kShiftLeft || op == LoopOp::kShiftRight; }
// True for the arithmetic operations that exist for integers.
bool has_integers(LoopOp op) {
  return op == LoopOp::kAdd || op == LoopOp::kSub || op == LoopOp::kMul || op == LoopOp::kNeg || op == LoopOp::kAbs ||
         needs_integers(op) || is_reduction(op) || is_column_reduction(op) || op == LoopOp::kScan;
}

// 16-bit floats are held in f32 registers.
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
    int stage;  // -1: not seen yet
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
    if (k_.inner < 1 || k_.rows % k_.inner != 0) return "rows are no multiple of inner";
    const bool in_segments = k_.starts >= 0;
    if (in_segments) {
      if (k_.starts >= std::ssize(k_.operands) || k_.segments < 1 || k_.chunk_rows > 0 || k_.split_columns ||
          k_.inner > 1 || k_.per_item)
        return "segments need starts, and whole rows that are in no chunks";
      const Operand& starts = k_.operands[static_cast<size_t>(k_.starts)];
      if (starts.dtype != kI64 || starts.is_output || starts.is_partial || !has_elements(starts) ||
          !starts.axes.empty())
        return "starts of segments are a dense list of i64";
      for (const Stage& stage : k_.stages)
        if (!stage.reductions.empty()) return "a kernel of segments with reductions along rows";
    }
    for (const Operand& operand : k_.operands) {
      if (operand.is_partial && in_segments && !operand.is_output) return "the sums of segments are results";
      if (operand.onto >= 0 || operand.onto < -1) {
        if (!in_segments || !operand.is_partial || operand.onto < 0 || operand.onto >= std::ssize(k_.operands))
          return "only the sums of segments are added to an operand";
        const Operand& onto = k_.operands[static_cast<size_t>(operand.onto)];
        if (onto.dtype != operand.dtype || onto.is_output || onto.is_partial || !has_elements(onto) ||
            !onto.axes.empty() || onto.col_stride != 1)
          return "what the sums of segments are added to is dense, and of their type";
      }
      if (k_.inner > 1 && (operand.is_partial || k_.split_columns || k_.chunk_rows > 0 || k_.per_item))
        return "a kernel along inner rows with column sums, split columns or items";
      for (size_t a = 0; a < operand.axes.size(); ++a)
        if (operand.axes[a].divisor < (a == 0 ? 0 : 1) || operand.axes[a].size < (operand.is_check && a == 0 ? 0 : 1))
          return "an operand axis with divisor or size below 1";
      if (is_picked(operand) && operand.is_output) return "outputs have no picked axis";
      if (operand.is_partial && ((operand.dtype != kF32 && operand.dtype != kF64 && operand.dtype != kI64) ||
                                 operand.col_stride != 1 || (k_.chunk_rows < 1 && !in_segments) || k_.split_columns))
        return "a partial operand must be dense f32, f64 or i64, in a kernel with chunk_rows";
      if (operand.is_index && (operand.dtype != kI64 || operand.is_output || operand.is_partial || operand.is_random))
        return "places are i64, and read only";
      if (operand.is_check && (operand.dtype != kI64 || operand.is_output || operand.is_partial || operand.is_random ||
                               operand.is_index || !is_picked(operand)))
        return "a check is of i64 and has a picked axis";
      if (operand.is_random && (operand.dtype != kI64 || operand.is_output || operand.is_partial))
        return "a random state is i64, and read only";
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
      if (is_effect(source)) return absl::StrCat("reads the effect %", args[n]);
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
    auto type = [&](int32_t id) { return register_of(k_.instrs[id].type); };
    const DType result = register_of(i.type);
    if (is_comparison(i.op)) return result == kBool && type(i.a) == type(i.b) ? "" : "types do not compare";
    if (is_logical(i.op)) {
      const bool ok = (result == kBool || is_integer(result)) && type(i.a) == result &&
                      (i.op == LoopOp::kNot || type(i.b) == result);
      return ok ? "" : "neither boolean nor integers of one type";
    }
    if (i.op == LoopOp::kSelect)
      return type(i.a) == kBool && type(i.b) == result && type(i.c) == result ? "" : "types of the choices differ";
    if (i.op == LoopOp::kPick || i.op == LoopOp::kCheckIndex) return type(i.a) == kI64 ? "" : "an index must be i64";
    if (i.op == LoopOp::kRandomKeep) {
      const LoopOp source = k_.instrs[static_cast<size_t>(i.a)].op;
      const bool of_run = source == LoopOp::kScalar || source == LoopOp::kConst;
      return result == kBool && type(i.a) == kF64 && of_run ? "" : "needs a probability, an f64 of the run";
    }
    if (is_random(i.op)) return i.type == kF32 ? "" : "random numbers are f32";
    if (i.op == LoopOp::kIndex) return i.type == kI64 ? "" : "a place is i64";
    const bool any_type = info(i.op).n_args == 0 || i.op == LoopOp::kCast || i.op == LoopOp::kStore;
    if (any_type) return "";
    for (int32_t id : {i.a, i.b, i.c})
      if (id >= 0 && type(id) != result) return "types of arguments and result differ";
    if (is_integer(result) && !has_integers(i.op)) return "integers do not have this operation";
    if (needs_integers(i.op) && !is_integer(result)) return "shifts are of integers";
    if (i.op == LoopOp::kScan && result != kF64 && result != kF32 && result != kI64)
      return "running sums are f32, f64 or i64";
    if ((i.op == LoopOp::kReduceSum || is_column_reduction(i.op)) && is_integer(result) && result != kI64)
      return "integers are added up in i64";
    const bool of_truths = i.op == LoopOp::kReduceMax || i.op == LoopOp::kReduceMin;
    return result == kBool && !of_truths ? "arithmetic on booleans" : "";
  }

  std::string check_index(const Instr& i, Place place) {
    if (i.op == LoopOp::kScalar) return i.index >= 0 && i.index < k_.n_scalars ? "" : "no such scalar";
    const bool random = is_random(i.op), loads = i.op == LoopOp::kLoad || i.op == LoopOp::kPick,
               is_index = i.op == LoopOp::kIndex, checks = i.op == LoopOp::kCheckIndex,
               by_columns = is_column_reduction(i.op);
    if (i.op == LoopOp::kScan)
      return place == Place::kColumn && !k_.split_columns
                 ? ""
                 : "a running sum needs whole rows, and stands in a column list";
    if (!random && !loads && !is_index && !checks && i.op != LoopOp::kStore && !by_columns) return "";
    if (i.index < 0 || i.index >= std::ssize(k_.operands)) return "no such operand";
    const Operand& operand = k_.operands[i.index];
    if (operand.is_partial != by_columns) return "only reductions over rows touch a partial operand";
    if (operand.is_index != is_index) return "index reads places, and nothing else does";
    if (operand.is_check != checks) return "check_index has a check, and nothing else does";
    if (is_picked(operand) != (i.op == LoopOp::kPick || checks))
      return "an operand has a picked axis if pick reads it, or a check";
    if (operand.is_random != random) return "random states are read by random numbers, which read nothing else";
    if (random || loads || is_index || checks) return "";
    const DType source = k_.instrs[i.a].type;
    if (by_columns) {
      if (place != Place::kColumn) return "outside of a column list";
      if (register_of(source) != operand.dtype) return "partial operand of another type";
      if (summed_[i.index]) return "two reductions over rows into one operand";
      summed_[i.index] = true;
      return "";
    }
    if (!operand.is_output) return "stores to an input";
    if (!is_floating(operand.dtype) && operand.dtype != kBool && source != operand.dtype &&
        !(operand.dtype == kU8 && (source == kBool || source == kF32)))
      return "stores of this type do not exist";
    if (place == Place::kColumn && operand.col_stride == 0 && k_.cols > 1) return "every column stores to one element";
    return "";
  }

  const LoopKernel& k_;
  std::vector<Position> seen_;
  std::vector<bool> summed_;
};

}  // namespace

std::string verify(const LoopKernel& kernel) { return Verifier(kernel).run(); }

}  // namespace rondo::compile
