// SymFloat: a float attribute of a call, as the rules of ops see it. It is a double that may also be a symbol. While a
// region is compiled, each float of the recording is a symbol, and rules (gradients, decompositions, `infer`) run on
// symbols. The compiler thus learns how each float of a kernel is computed from the floats of a call, and does not run
// the rules again for a call with other floats.
//
//   const SymFloat s = g.scalar(0);
//   g.set(0, call(kPowScalarGrad, {x, grad}, {.floats = {s - 1.0}}) * s);   // s - 1.0 is a new symbol
//   if (s == 2.0) ...                                                       // adds a guard on the outcome
//
// Arithmetic on a symbol makes a symbol. A comparison becomes a guard: the compiled code serves only calls in which the
// comparison has the same outcome. A conversion to double becomes a guard on that one value. So a rule that converts to
// double is correct, but its compiled code serves one value only; a rule that keeps SymFloat also serves other values.
// Outside of compilation no SymFloat is a symbol, and all of this is arithmetic on doubles.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>

#pragma GCC visibility push(default)
namespace rondo {

enum class FloatOp : uint8_t { kAdd, kSub, kMul, kDiv, kNeg, kMin, kMax, kToF32 };  // kNeg and kToF32 ignore `b`
enum class FloatTest : uint8_t { kLess, kLessEqual, kEqual, kSameBits };

constexpr double value_of(FloatOp op, double a, double b) {
  switch (op) {
    case FloatOp::kAdd: return a + b;
    case FloatOp::kSub: return a - b;
    case FloatOp::kMul: return a * b;
    case FloatOp::kDiv: return a / b;
    case FloatOp::kNeg: return -a;
    case FloatOp::kMin: return b < a ? b : a;
    case FloatOp::kMax: return a < b ? b : a;
    case FloatOp::kToF32: break;
  }
  return static_cast<double>(static_cast<float>(a));
}
bool outcome_of(FloatTest test, double a, double b);

class SymFloat {
 public:
  SymFloat() = default;  // leaves the value unset
  template <class T>
  requires std::is_arithmetic_v<T>
  constexpr SymFloat(T value) : value_(static_cast<double>(value)), symbol_(-1) {}
  constexpr SymFloat(double value, int32_t symbol) : value_(value), symbol_(symbol) {}

  // Returns the value, for messages and for the compiler. Adds no guard, so no decision may depend on this value.
  constexpr double value() const { return value_; }
  // Returns the symbol's number, or -1 for a constant.
  constexpr int32_t symbol() const { return symbol_; }
  // Returns the value. For a symbol, adds a guard on this value.
  constexpr operator double() const {
    if (symbol_ >= 0) [[unlikely]]
      test(FloatTest::kSameBits, *this, value_, true);
    return value_;
  }

  constexpr SymFloat operator-() const { return compute(FloatOp::kNeg, *this, 0.0); }

  static constexpr SymFloat compute(FloatOp op, SymFloat a, SymFloat b) {
    const double value = value_of(op, a.value_, b.value_);
    if (a.symbol_ >= 0 || b.symbol_ >= 0) [[unlikely]]
      return trace(op, a, b, value);
    return value;
  }
  static constexpr bool decide(FloatTest test, SymFloat a, SymFloat b, bool outcome) {
    if (a.symbol_ >= 0 || b.symbol_ >= 0) [[unlikely]]
      SymFloat::test(test, a, b, outcome);
    return outcome;
  }

 private:
  // Asks the tracer that is active on this thread for a symbol. Throws InternalError if there is no tracer.
  static SymFloat trace(FloatOp op, SymFloat a, SymFloat b, double value);
  static void test(FloatTest test, SymFloat a, SymFloat b, bool outcome);

  double value_;
  int32_t symbol_;
};

// ---- Arithmetic and comparisons of two SymFloats, or of one and a number

template <class A, class B>
concept SymFloatPair = (std::same_as<A, SymFloat> && (std::same_as<B, SymFloat> || std::is_arithmetic_v<B>)) ||
                       (std::same_as<B, SymFloat> && std::is_arithmetic_v<A>);

template <class A, class B>
requires SymFloatPair<A, B>
constexpr SymFloat operator+(A a, B b) { return SymFloat::compute(FloatOp::kAdd, a, b); }
template <class A, class B>
requires SymFloatPair<A, B>
constexpr SymFloat operator-(A a, B b) { return SymFloat::compute(FloatOp::kSub, a, b); }
template <class A, class B>
requires SymFloatPair<A, B>
constexpr SymFloat operator*(A a, B b) { return SymFloat::compute(FloatOp::kMul, a, b); }
template <class A, class B>
requires SymFloatPair<A, B>
constexpr SymFloat operator/(A a, B b) { return SymFloat::compute(FloatOp::kDiv, a, b); }
template <class A, class B>
requires SymFloatPair<A, B>
constexpr bool operator<(A a, B b) {
  const SymFloat x = a, y = b;
  return SymFloat::decide(FloatTest::kLess, x, y, x.value() < y.value());
}
template <class A, class B>
requires SymFloatPair<A, B>
constexpr bool operator<=(A a, B b) {
  const SymFloat x = a, y = b;
  return SymFloat::decide(FloatTest::kLessEqual, x, y, x.value() <= y.value());
}
template <class A, class B>
requires SymFloatPair<A, B>
constexpr bool operator>(A a, B b) { return SymFloat(b) < SymFloat(a); }
template <class A, class B>
requires SymFloatPair<A, B>
constexpr bool operator>=(A a, B b) { return SymFloat(b) <= SymFloat(a); }
template <class A, class B>
requires SymFloatPair<A, B>
constexpr bool operator==(A a, B b) {
  const SymFloat x = a, y = b;
  return SymFloat::decide(FloatTest::kEqual, x, y, x.value() == y.value());
}

// Return the larger and the smaller operand, as std::max and std::min do.
constexpr SymFloat max(SymFloat a, SymFloat b) { return SymFloat::compute(FloatOp::kMax, a, b); }
constexpr SymFloat min(SymFloat a, SymFloat b) { return SymFloat::compute(FloatOp::kMin, a, b); }
// Returns `a` rounded to a float.
constexpr SymFloat to_f32(SymFloat a) { return SymFloat::compute(FloatOp::kToF32, a, 0.0); }
constexpr bool isfinite(SymFloat a) {
  constexpr double kMost = std::numeric_limits<double>::max();
  return -kMost <= a && a <= kMost;
}

// ---- The interface that a compiler implements (compile/capture/float_trace.h)

class FloatTracer {
 public:
  virtual ~FloatTracer() = default;
  // Returns the symbol of op(a, b). Its value in this recording is `value`.
  virtual int32_t trace(FloatOp op, SymFloat a, SymFloat b, double value) = 0;
  // Limits the compiled code to floats for which `test` has this outcome.
  virtual void guard(FloatTest test, SymFloat a, SymFloat b, bool outcome) = 0;
};

// Returns this thread's tracer, or null.
FloatTracer* active_float_tracer();

// While in scope, this thread's arithmetic on symbols goes to `tracer`.
class FloatTracerScope {
 public:
  explicit FloatTracerScope(FloatTracer* tracer);
  ~FloatTracerScope();
  FloatTracerScope(const FloatTracerScope&) = delete;
  FloatTracerScope& operator=(const FloatTracerScope&) = delete;

 private:
  FloatTracer* outer_;
};

}  // namespace rondo
#pragma GCC visibility pop
