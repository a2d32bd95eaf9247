#include "rondo/compile/codegen/interpret.h"

#include <bit>
#include <concepts>
#include <cstring>
#include <limits>

#include "rondo/compile/codegen/loop_verify.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/ops/bitwise.h"
#include "rondo/runtime/ops/elementwise_body.h"
#include "rondo/runtime/ops/reduction_order.h"
#include "rondo/runtime/ops/scalar_math.h"
#include "rondo/runtime/random/random.h"
#include "rondo/runtime/random/random_state.h"

namespace rondo::compile {
namespace {

// One register. The instruction's type says which member is used (f32 for the 16-bit floats).
struct Register {
  float f32 = 0;
  double f64 = 0;
  int64_t integer = 0;  // i64, i32 and u8
  bool truth = false;

  template <class T> T get() const {
    if constexpr (std::is_same_v<T, float>) return f32;
    else if constexpr (std::is_integral_v<T>) return static_cast<T>(integer);
    else return f64;
  }
  template <class T> void set(T v) {
    if constexpr (std::is_same_v<T, float>) f32 = v;
    else if constexpr (std::is_integral_v<T>) integer = v;
    else f64 = v;
  }
};

// Returns the register of `type` that holds `value`, rounded if `type` is a 16-bit float.
template <class T> Register make(DType type, T value) {
  Register r;
  switch (type) {
    case kBool: r.truth = value != T(0); break;
    case kF64: r.f64 = static_cast<double>(value); break;
    case kBF16: r.f32 = BFloat16(static_cast<float>(value)); break;
    case kF16: r.f32 = Float16(static_cast<float>(value)); break;
    case kI64: r.integer = ops::convert<int64_t>(value); break;
    case kI32: r.integer = ops::convert<int32_t>(value); break;
    case kU8: r.integer = ops::convert<uint8_t>(value); break;
    default: r.f32 = static_cast<float>(value);
  }
  return r;
}

Register convert(const Register& from, DType from_type, DType type) {
  if (from_type == kBool) return make(type, from.truth ? 1.0f : 0.0f);
  if (is_integer(from_type)) return make(type, from.integer);
  return from_type == kF64 ? make(type, from.f64) : make(type, from.f32);
}

class Interpreter {
 public:
  Interpreter(const LoopKernel& kernel, void* const* operands, const double* scalars, int64_t begin,
              const RowOrder& order)
      : k_(kernel),
        operands_(operands),
        scalars_(scalars),
        registers_(kernel.instrs.size()),
        begin_(begin),
        order_(order) {}

  void run(int64_t end) {
    if (k_.starts >= 0) {
      const auto* const starts = static_cast<const int64_t*>(operands_[k_.starts]);
      for (chunk_ = begin_; chunk_ < end; ++chunk_) {
        start_column_reductions();
        for (int64_t row = starts[chunk_]; row < starts[chunk_ + 1]; ++row) run_row(row, 0, k_.cols);
        add_onto();
      }
      return;
    }
    if (k_.chunk_rows > 0) chunk_ = begin_ / k_.chunk_rows;
    start_column_reductions();
    if (k_.split_columns) return run_row(0, begin_, end);
    for (int64_t row = begin_; row < end; ++row) run_row(row, 0, k_.cols);
  }

 private:
  using Lanes = std::vector<Register>;

  void start_column_reductions() const {
    for (const Instr& i : k_.instrs)
      if (is_column_reduction(i.op))
        for (int64_t column = 0; column < k_.cols; ++column)
          store(k_.operands[i.index].dtype, identity(along_row(i.op), i.type), i.type, address(i.index, 0, column));
  }

  // Adds the operand that Operand::onto names to the sums of the current segment.
  void add_onto() const {
    for (const Instr& i : k_.instrs) {
      if (!is_column_reduction(i.op) || k_.operands[i.index].onto < 0) continue;
      const auto size = static_cast<int64_t>(size_of(i.type));
      for (int64_t column = 0; column < k_.cols; ++column) {
        const char* onto = static_cast<const char*>(operands_[k_.operands[i.index].onto]) +
                           (chunk_ * k_.cols + column) * size;
        char* const sum = address(i.index, 0, column);
        store(i.type, combine(LoopOp::kReduceSum, i.type, load(i, onto), load(i, sum)), i.type, sum);
      }
    }
  }

  // Returns the offset of an element. `picked`: the index of the operand's picked axis, if it has one.
  int64_t offset(const Operand& operand, int64_t row, int64_t column, int64_t picked = 0) const {
    int64_t offset = column * operand.col_stride;
    if (operand.is_partial) offset += chunk_ * k_.cols;
    else
      for (const OperandAxis& axis : operand.axes) {
        if (!is_picked(axis)) offset += row / axis.divisor % axis.size * axis.stride;
        else if (picked >= 0 && picked < axis.size) offset += picked * axis.stride;
      }
    return offset;
  }
  char* address(int operand_index, int64_t row, int64_t column, int64_t picked = 0) const {
    const Operand& operand = k_.operands[operand_index];
    return static_cast<char*>(operands_[operand_index]) +
           offset(operand, row, column, picked) * static_cast<int64_t>(size_of(operand.dtype));
  }

  Register random(const Instr& i, int64_t row, int64_t column) const {
    const Operand& operand = k_.operands[i.index];
    uint64_t state[2];
    std::memcpy(state, operands_[i.index], sizeof(state));
    const auto element = static_cast<uint64_t>(offset(operand, row, column));
    const uint64_t stream = state[1] + static_cast<uint64_t>(operand.increment);
    Register out;
    if (i.op == LoopOp::kRandomKeep) {
      const double p = registers_[i.a].f64;
      out.truth = p < 1 && philox(state[0], element / 4, stream)[element % 4] >= DropoutRule(p).threshold;
    } else {
      out.f32 = uniform_from_bits(philox(state[0], element, stream)[i.op == LoopOp::kRandomFirst ? 0 : 1]);
    }
    return out;
  }

  void run_row(int64_t row, int64_t first, int64_t last) {
    for (const Stage& stage : k_.stages) {
      for (int32_t id : stage.row) execute(id, row, 0);
      std::vector<Lanes> lanes(stage.reductions.size());
      for (size_t n = 0; n < lanes.size(); ++n)
        lanes[n].assign(static_cast<size_t>(order_.lanes),
                        identity(k_.instrs[stage.reductions[n]].op, k_.instrs[stage.reductions[n]].type));
      for (int32_t id : stage.column)
        if (k_.instrs[id].op == LoopOp::kScan) registers_[id] = Register();
      std::vector<Lanes> totals = lanes;
      const std::vector<Lanes> identities = lanes;
      for (int64_t column = first; column < last; ++column) {
        if ((column - first) % order_.block == 0) end_block(stage, totals, std::exchange(lanes, identities));
        for (int32_t id : stage.column) execute(id, row, column);
        for (size_t n = 0; n < lanes.size(); ++n) {
          const Instr& i = k_.instrs[stage.reductions[n]];
          Register& lane = lanes[n][column % order_.lanes];
          lane = combine(i.op, i.type, lane, registers_[i.a]);
        }
      }
      end_block(stage, totals, lanes);
      for (size_t n = 0; n < totals.size(); ++n) {
        const int32_t id = stage.reductions[n];
        registers_[id] = tree(k_.instrs[id], std::move(totals[n]));
      }
    }
  }

  void end_block(const Stage& stage, std::vector<Lanes>& totals, const std::vector<Lanes>& lanes) const {
    for (size_t n = 0; n < totals.size(); ++n)
      for (size_t lane = 0; lane < totals[n].size(); ++lane)
        totals[n][lane] = combine(k_.instrs[stage.reductions[n]].op, k_.instrs[stage.reductions[n]].type,
                                  totals[n][lane], lanes[n][lane]);
  }

  static Register identity(LoopOp reduction, DType type) { return make(type, identity_of(reduction, type)); }
  static Register combine(LoopOp reduction, DType type, const Register& a, const Register& b) {
    Register out;
    const auto apply = [&]<class T>(T x, T y) {
      if constexpr (std::is_floating_point_v<T>)
        out.set(reduction == LoopOp::kReduceSum   ? x + y
                : reduction == LoopOp::kReduceMax ? scalar::maximum(x, y)
                                                  : scalar::minimum(x, y));
      else
        out.integer = reduction == LoopOp::kReduceSum   ? convert(wrapped(x, y), kI64, type).integer
                      : reduction == LoopOp::kReduceMax ? std::max(x, y)
                                                        : std::min(x, y);
    };
    if (type == kBool) out.truth = reduction == LoopOp::kReduceMax ? a.truth || b.truth : a.truth && b.truth;
    else if (type == kF64) apply(a.f64, b.f64);
    else if (is_integer(type)) apply(a.integer, b.integer);
    else apply(a.f32, b.f32);
    return out;
  }
  static Register wrapped(int64_t x, int64_t y) {
    Register sum;
    sum.integer = static_cast<int64_t>(static_cast<uint64_t>(x) + static_cast<uint64_t>(y));
    return sum;
  }
  Register tree(const Instr& i, Lanes lanes) const {
    for (int32_t k : order_.distances)
      for (size_t n = 0; n + static_cast<size_t>(k) < lanes.size(); ++n)
        lanes[n] = combine(i.op, i.type, lanes[n], lanes[n + static_cast<size_t>(k)]);
    return lanes[0];
  }

  void execute(int32_t id, int64_t row, int64_t column) {
    const Instr& i = k_.instrs[id];
    Register& out = registers_[id];
    switch (i.op) {
      case LoopOp::kConst: out = make(i.type, i.value); return;
      case LoopOp::kScalar: out = make(i.type, scalars_[i.index]); return;
      case LoopOp::kLoad: out = load(i, address(i.index, row, column)); return;
      case LoopOp::kPick: out = load(i, address(i.index, row, column, registers_[i.a].integer)); return;
      case LoopOp::kRandomKeep:
      case LoopOp::kRandomFirst:
      case LoopOp::kRandomSecond: out = random(i, row, column); return;
      case LoopOp::kCheckIndex: check_index(i, registers_[i.a].integer); return;
      case LoopOp::kStore: store(i, address(i.index, row, column)); return;
      case LoopOp::kCast: out = convert(registers_[i.a], k_.instrs[i.a].type, i.type); return;
      case LoopOp::kIndex: out.integer = offset(k_.operands[i.index], row, column); return;
      case LoopOp::kSelect: out = registers_[i.a].truth ? registers_[i.b] : registers_[i.c]; return;
      case LoopOp::kScan: out = combine(LoopOp::kReduceSum, i.type, out, registers_[i.a]); return;
      case LoopOp::kColumnSum:
      case LoopOp::kColumnMax:
      case LoopOp::kColumnMin: combine_into(i, address(i.index, row, column)); return;
      default: break;
    }
    const DType type = k_.instrs[i.a].type;
    if (type == kBool) out.truth = of_truths(i.op, registers_[i.a].truth, i.b >= 0 && registers_[i.b].truth);
    else if (type == kF64) arithmetic<double>(i, out);
    else if (type == kI64) arithmetic<int64_t>(i, out);
    else if (type == kI32) arithmetic<int32_t>(i, out);
    else if (type == kU8) arithmetic<uint8_t>(i, out);
    else arithmetic<float>(i, out);
  }

  static bool of_truths(LoopOp op, bool a, bool b) {
    switch (op) {
      case LoopOp::kAnd: return a && b;
      case LoopOp::kOr: return a || b;
      case LoopOp::kXor: return a != b;
      case LoopOp::kNot: return !a;
      default: return compare(op, a, b);
    }
  }
  template <class T> static bool compare(LoopOp op, T a, T b) {
    switch (op) {
      case LoopOp::kLt: return a < b;
      case LoopOp::kLe: return a <= b;
      case LoopOp::kEq: return a == b;
      default: return a != b;
    }
  }

  // Integer arithmetic, which wraps around.
  template <std::integral T> void arithmetic(const Instr& i, Register& out) const {
    const auto argument = [&](int32_t id) { return id < 0 ? T(0) : registers_[id].get<T>(); };
    const T a = argument(i.a), b = argument(i.b);
    const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    switch (i.op) {
      case LoopOp::kAdd: return out.set(static_cast<T>(x + y));
      case LoopOp::kSub: return out.set(static_cast<T>(x - y));
      case LoopOp::kMul: return out.set(static_cast<T>(x * y));
      case LoopOp::kNeg: return out.set(static_cast<T>(0 - x));
      case LoopOp::kAbs: return out.set(a < T(0) ? static_cast<T>(0 - x) : a);
      case LoopOp::kShiftLeft: return out.set(ops::shift_left(a, b));
      case LoopOp::kShiftRight: return out.set(ops::shift_right(a, b));
      case LoopOp::kAnd: return out.set(static_cast<T>(x & y));
      case LoopOp::kOr: return out.set(static_cast<T>(x | y));
      case LoopOp::kXor: return out.set(static_cast<T>(x ^ y));
      case LoopOp::kNot: return out.set(static_cast<T>(~x));
      default: out.truth = compare(i.op, a, b);
    }
  }

  template <std::floating_point T> void arithmetic(const Instr& i, Register& out) const {
    auto argument = [&](int32_t id) { return id < 0 ? T(0) : registers_[id].get<T>(); };
    const T a = argument(i.a), b = argument(i.b), c = argument(i.c);
    switch (i.op) {
      case LoopOp::kAdd: return out.set(a + b);
      case LoopOp::kSub: return out.set(a - b);
      case LoopOp::kMul: return out.set(a * b);
      case LoopOp::kDiv: return out.set(a / b);
      case LoopOp::kFma: return out.set(scalar::fma(a, b, c));
      case LoopOp::kSqrt: return out.set(scalar::sqrt(a));
      case LoopOp::kAbs: return out.set(scalar::abs(a));
      case LoopOp::kNeg: return out.set(-a);
      case LoopOp::kRoundEven: return out.set(scalar::round_even(a));
      case LoopOp::kFloor: return out.set(scalar::floor(a));
      case LoopOp::kExp2Int: return out.set(scalar::exp2_int(a));
      case LoopOp::kExponent: return out.set(scalar::exponent(a));
      case LoopOp::kMantissa: return out.set(scalar::mantissa(a));
      default: out.truth = compare(i.op, a, b);
    }
  }

  void check_index(const Instr& i, int64_t index) const {
    if (index < 0 || index >= k_.operands[i.index].axes[0].size) *static_cast<int64_t*>(operands_[i.index]) = 1;
  }

  Register load(const Instr& i, const char* from) const {
    Register out;
    visit_dtype(k_.operands[i.index].dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (std::is_same_v<T, bool>) {
        out = make(i.type, *from != 0 ? 1.0f : 0.0f);
      } else {
        T value;
        std::memcpy(&value, from, sizeof(T));
        if constexpr (sizeof(T) == 2) out = make(i.type, static_cast<float>(value));
        else if constexpr (std::is_integral_v<T>) out = make(i.type, static_cast<int64_t>(value));
        else out = make(i.type, value);
      }
    });
    return out;
  }

  void store(const Instr& i, char* to) const {
    store(k_.operands[i.index].dtype, registers_[i.a], k_.instrs[i.a].type, to);
  }
  static void store(DType memory, const Register& value, DType type, char* to) {
    if (memory == kU8 && type == kF32) {
      const auto byte = static_cast<uint8_t>(std::bit_cast<uint32_t>(value.f32 + 0x1.8p23f));
      std::memcpy(to, &byte, 1);
      return;
    }
    const bool as_byte = memory == kBool || (memory == kU8 && type == kBool);
    const Register r = convert(value, type, as_byte ? kBool : memory);
    auto write = [&](auto value) { std::memcpy(to, &value, sizeof(value)); };
    if (as_byte) write(static_cast<uint8_t>(r.truth));
    else if (memory == kF64) write(r.f64);
    else if (memory == kI64) write(r.integer);
    else if (memory == kI32) write(static_cast<int32_t>(r.integer));
    else if (memory == kU8) write(static_cast<uint8_t>(r.integer));
    else if (memory == kBF16) write(BFloat16(r.f32));
    else if (memory == kF16) write(Float16(r.f32));
    else write(r.f32);
  }

  // Combines one element into a column reduction's partial result, which is at `to` and has the reduction's type.
  void combine_into(const Instr& i, char* to) const {
    store(i.type, combine(along_row(i.op), i.type, load(i, to), registers_[i.a]), i.type, to);
  }

  const LoopKernel& k_;
  void* const* operands_;
  const double* scalars_;
  std::vector<Register> registers_;
  int64_t begin_, chunk_ = 0;  // the first row or segment; the current chunk or segment
  const RowOrder& order_;
};

}  // namespace

void interpret(const LoopKernel& kernel, void* const* operands, const double* scalars, int64_t begin, int64_t end,
               const RowOrder& order) {
  if (const std::string problem = verify(kernel); !problem.empty()) throw_internal(kernel.name + ": " + problem);
  if (kernel.split_columns)
    invariant(begin % kSplitGrain == 0 && (end % kSplitGrain == 0 || end == kernel.cols), "splits inside of a grain");
  // Kernels with `inner` above 1 use the order of Note [Column order] in ops/reduction_order.h.
  const RowOrder along_rows{.lanes = 1, .block = column_chunk_rows(kernel.cols), .distances = {}};
  if (begin < end) Interpreter(kernel, operands, scalars, begin, kernel.inner > 1 ? along_rows : order).run(end);
}

}  // namespace rondo::compile
