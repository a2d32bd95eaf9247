#include "rondo/runtime/base/sym_float.h"

#include <bit>

#include "rondo/runtime/base/error.h"

namespace rondo {
namespace {

thread_local FloatTracer* tracer = nullptr;

FloatTracer& active() {
  invariant(tracer != nullptr, "a symbol outlives the compilation that made it");
  return *tracer;
}

}  // namespace

bool outcome_of(FloatTest test, double a, double b) {
  switch (test) {
    case FloatTest::kLess: return a < b;
    case FloatTest::kLessEqual: return a <= b;
    case FloatTest::kEqual: return a == b;
    case FloatTest::kSameBits: break;
  }
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

SymFloat SymFloat::trace(FloatOp op, SymFloat a, SymFloat b, double value) {
  return {value, active().trace(op, a, b, value)};
}
void SymFloat::test(FloatTest test, SymFloat a, SymFloat b, bool outcome) { active().guard(test, a, b, outcome); }

FloatTracer* active_float_tracer() { return tracer; }
FloatTracerScope::FloatTracerScope(FloatTracer* now) : outer_(tracer) { tracer = now; }
FloatTracerScope::~FloatTracerScope() { tracer = outer_; }

}  // namespace rondo
