// Expressions: names, operators, calls.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/chat/jinja/evaluator.h"
#include "rondo/runtime/chat/jinja/python_text.h"
#include "rondo/runtime/io/json.h"

namespace rondo::text::jinja {
namespace {

const char* spelling(Expression::Operator op) {
  constexpr const char* kSpellings[] = {"==", "!=", "<", "<=", ">",  ">=", "in", "not in",
                                        "+",  "-",  "*", "/",  "//", "%",  "**"};
  return kSpellings[op];
}

[[noreturn]] void refuse_operands(Expression::Operator op, const Value& a, const Value& b) {
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) throw Error(value->reason());
  throw Error(absl::StrCat("unsupported operand type(s) for ", spelling(op), ": '", a.type_name(), "' and '",
                           b.type_name(), "'"));
}

[[noreturn]] void overflow() { throw Error("an integer beyond 64 bits is not supported"); }

int64_t floor_div(int64_t a, int64_t b) {
  if (a == INT64_MIN && b == -1) overflow();
  const int64_t quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Value integer_arithmetic(Expression::Operator op, int64_t a, int64_t b) {
  int64_t out = 0;
  switch (op) {
    case Expression::kAdd:
      if (__builtin_add_overflow(a, b, &out)) overflow();
      return Value::integer(out);
    case Expression::kSub:
      if (__builtin_sub_overflow(a, b, &out)) overflow();
      return Value::integer(out);
    case Expression::kMul:
      if (__builtin_mul_overflow(a, b, &out)) overflow();
      return Value::integer(out);
    case Expression::kDiv:
      if (b == 0) throw Error("division by zero");
      if (std::abs(static_cast<double>(a)) > 0x1p53 || std::abs(static_cast<double>(b)) > 0x1p53)
        throw Error("the quotient of integers beyond 53 bits is not supported");
      return Value::real(static_cast<double>(a) / static_cast<double>(b));
    case Expression::kFloorDiv:
      if (b == 0) throw Error("integer division or modulo by zero");
      return Value::integer(floor_div(a, b));
    case Expression::kMod:
      if (b == 0) throw Error("integer modulo by zero");
      if (b == -1) return Value::integer(0);
      out = a % b;
      return Value::integer(out != 0 && (out < 0) != (b < 0) ? out + b : out);
    case Expression::kPow: {
      if (b < 0) {
        if (a == 0) throw Error("0.0 cannot be raised to a negative power");
        return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)));
      }
      int64_t power = 1, base = a;
      for (int64_t left = b; left > 0; left >>= 1) {
        if ((left & 1) != 0 && __builtin_mul_overflow(power, base, &power)) overflow();
        if (left > 1 && __builtin_mul_overflow(base, base, &base)) overflow();
      }
      return Value::integer(power);
    }
    default: throw_internal("no arithmetic");
  }
}

Value real_arithmetic(Expression::Operator op, double a, double b) {
  switch (op) {
    case Expression::kAdd: return Value::real(a + b);
    case Expression::kSub: return Value::real(a - b);
    case Expression::kMul: return Value::real(a * b);
    case Expression::kDiv:
      if (b == 0) throw Error("float division by zero");
      return Value::real(a / b);
    case Expression::kFloorDiv:
    case Expression::kMod: {
      if (b == 0) throw Error("float floor division or modulo by zero");
      // As in Python: the remainder has the divisor's sign, and the quotient is computed from the exact remainder.
      double remainder = std::fmod(a, b), quotient = (a - remainder) / b;
      if (remainder != 0 && (b < 0) != (remainder < 0)) remainder += b, quotient -= 1;
      if (remainder == 0) remainder = std::copysign(0.0, b);
      double floored = std::floor(quotient);
      if (quotient - floored > 0.5) floored += 1;
      if (quotient == 0) floored = std::copysign(0.0, a / b);
      return Value::real(op == Expression::kMod ? remainder : floored);
    }
    case Expression::kPow:
      if (a == 0 && b < 0) throw Error("0.0 cannot be raised to a negative power");
      if (a < 0 && b != std::floor(b)) throw Error("complex numbers are not supported");
      if (const double power = std::pow(a, b); !std::isinf(power) || std::isinf(a) || std::isinf(b))
        return Value::real(power);
      throw Error("(34, 'Numerical result out of range')");
    default: throw_internal("no arithmetic");
  }
}

}  // namespace

int64_t to_integer(const Value& value) {
  if (value.is_integral()) return value.integral();
  if (value.is_undefined()) throw Error(value.reason());
  throw Error(absl::StrCat("'", value.type_name(), "' object cannot be interpreted as an integer"));
}

Value Evaluator::evaluate(const Expression& expression, Scope& scope) {
  line_ = expression.line;
  Budget::step();
  const Expressions& parts = expression.parts;
  const auto part = [&](size_t i) { return evaluate(*parts[i], scope); };
  const auto parts_of = [&] {
    Values items;
    items.reserve(parts.size());
    for (const ExpressionPtr& one : parts) items.push_back(evaluate(*one, scope));
    return items;
  };
  switch (expression.type) {
    case Expression::kConstant: return expression.constant;
    case Expression::kName: return lookup(expression.name, scope);
    case Expression::kTuple: return Value::tuple(parts_of());
    case Expression::kList: return Value::list(parts_of());
    case Expression::kDict: {
      Value::Items items;
      for (size_t i = 0; i < parts.size(); i += 2) {
        Value key = part(i);
        items.emplace_back(std::move(key), part(i + 1));
      }
      return Value::dict(std::move(items));
    }
    case Expression::kAttribute: {
      const Value value = part(0);
      line_ = expression.line;
      return attribute(value, expression.name);
    }
    case Expression::kItem: {
      const Value value = part(0), key = part(1);
      line_ = expression.line;
      return item(value, key);
    }
    case Expression::kSlice: return evaluate_slice(expression, scope);
    case Expression::kCall: return evaluate_call(expression, scope);
    case Expression::kFilter: {
      const Value value = parts[0] == nullptr ? lookup("", scope) : part(0);
      Given given = evaluate_arguments(expression.arguments, scope);
      line_ = expression.line;
      return filter(expression.name, value, std::move(given));
    }
    case Expression::kTest: {
      const Value value = part(0);
      const Given given = evaluate_arguments(expression.arguments, scope);
      line_ = expression.line;
      return Value::boolean(test(expression.name, value, given));
    }
    case Expression::kNot: return Value::boolean(!is_true(part(0)));
    case Expression::kNegative:
    case Expression::kPositive: {
      const Value value = part(0);
      line_ = expression.line;
      if (value.is_undefined()) throw Error(value.reason());
      if (!value.is_number()) throw Error(absl::StrCat("bad operand type for a sign: '", value.type_name(), "'"));
      const bool negative = expression.type == Expression::kNegative;
      if (value.is(Kind::kFloat)) return Value::real(negative ? -value.number() : value.number());
      return negative ? integer_arithmetic(Expression::kSub, 0, value.integral()) : Value::integer(value.integral());
    }
    case Expression::kAnd: {
      Value left = part(0);
      return is_true(left) ? part(1) : left;
    }
    case Expression::kOr: {
      Value left = part(0);
      return is_true(left) ? left : part(1);
    }
    case Expression::kConditional:
      if (is_true(part(0))) return part(1);
      if (parts[2] != nullptr) return part(2);
      return Value::undefined("the inline if-expression evaluated to false and no else section was defined.");
    case Expression::kConcat: return evaluate_concat(expression, scope);
    case Expression::kCompare: return evaluate_compare(expression, scope);
    case Expression::kArithmetic: {
      const Value left = part(0), right = part(1);
      line_ = expression.line;
      return arithmetic(expression.operators[0], left, right);
    }
  }
  throw_internal("an expression of no type");
}

Value Evaluator::lookup(std::string_view name, const Scope& scope) const {
  for (const Scope* at = &scope; at != nullptr; at = at->outer)
    if (const Value* found = at->names.find(name)) return *found;
  if (const Value* found = variables_.find(name)) return *found;
  if (is_global_function(name)) return Value::function(name);
  if (name == "self") throw Error("the variable \"self\" is not supported");
  return Value::undefined(absl::StrCat("'", abbreviated(name), "' is undefined"));
}

Value Evaluator::evaluate_concat(const Expression& expression, Scope& scope) {
  Text text;
  for (const ExpressionPtr& part : expression.parts) {
    const Value value = evaluate(*part, scope);
    if (value.is_string()) text += value.text();
    else text += str(value);
  }
  return Value::string(std::move(text));
}

Value Evaluator::evaluate_compare(const Expression& expression, Scope& scope) {
  Value left = evaluate(*expression.parts[0], scope);
  for (size_t i = 0; i < expression.operators.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1], scope);
    line_ = expression.line;
    bool holds = false;
    switch (expression.operators[i]) {
      case Expression::kEq: holds = equals(left, right); break;
      case Expression::kNe: holds = !equals(left, right); break;
      case Expression::kLt: holds = is_less(left, right); break;
      case Expression::kGt: holds = is_less(right, left); break;
      // <= and >= are not written as !(a > b) and !(a < b), which would hold for NaN.
      case Expression::kLe: holds = is_less(left, right) || (!is_less(right, left) && equals(left, right)); break;
      case Expression::kGe: holds = is_less(right, left) || (!is_less(left, right) && equals(left, right)); break;
      case Expression::kIn: holds = contains(right, left); break;
      case Expression::kNotIn: holds = !contains(right, left); break;
      default: throw_internal("no comparison");
    }
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

bool Evaluator::contains(const Value& container, const Value& value) {
  switch (container.kind()) {
    case Kind::kString:
      if (value.is_undefined()) throw Error(value.reason());
      if (!value.is_string())
        throw Error(absl::StrCat("'in <string>' requires string as left operand, not ", value.type_name()));
      return find_text(container.text(), value.text()) != std::string_view::npos;
    case Kind::kDict:
      if (!is_hashable(value)) throw Error("unhashable type: '" + value.type_name() + "'");
      return container.dict().find(value) != nullptr;
    case Kind::kNamespace: throw Error("argument of type 'Namespace' is not iterable");
    case Kind::kUndefined:
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      if (!container.is_undefined())
        throw Error(absl::StrCat("argument of type '", container.type_name(), "' is not iterable"));
      break;
    default: break;
  }
  const Value source = iterate(container);
  for (Value drawn; source.iterator().next(drawn);)
    if (drawn.same_object(value) || equals(drawn, value)) return true;
  return false;
}

Value Evaluator::evaluate_slice(const Expression& expression, Scope& scope) {
  const Value value = evaluate(*expression.parts[0], scope);
  std::optional<int64_t> bounds[3];
  bool numbers = true;
  for (size_t i = 0; i < 3; ++i) {
    if (expression.parts[i + 1] == nullptr) continue;
    const Value bound = evaluate(*expression.parts[i + 1], scope);
    if (bound.is_none()) continue;
    if (!bound.is_integral()) numbers = false;
    else bounds[i] = bound.integral();
  }
  line_ = expression.line;
  if (value.is_undefined()) throw Error(value.reason());
  const bool sequence = value.is_string() || value.is(Kind::kList) || value.is(Kind::kTuple);
  if (value.is(Kind::kRange)) throw Error("a slice of a range is not supported; put |list behind it");
  // In jinja2 some slices of constants, such as 1[:2], are undefined. They are surely mistakes, so they throw here.
  if (!sequence || !numbers)
    throw Error(sequence ? "slice bounds must be integers or none"
                         : absl::StrCat("'", value.type_name(), "' object cannot be sliced"));
  const int64_t size = length(value);
  // All steps that are longer than the sequence have the same effect, so the step is clamped.
  const int64_t step = std::clamp(bounds[2].value_or(1), -size - 1, size + 1);
  if (step == 0) throw Error("slice step cannot be zero");
  const auto clamp = [&](std::optional<int64_t> bound, int64_t unset) {
    if (!bound) return unset;
    int64_t at = *bound;
    if (at < 0) at = at < -size ? -1 : at + size;
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
    return std::clamp(at, low, std::max(low, high));
  };
  const int64_t start = clamp(bounds[0], step > 0 ? 0 : size - 1), stop = clamp(bounds[1], step > 0 ? size : -1);
  const int64_t count = Value::Range{start, stop, step}.size();
  if (value.is_string()) {
    const std::string_view text = value.text();
    if (count == 0) return Value::string("", value.is_markup());
    if (step != 1) return Value::string(every_point(text, start, step, count), value.is_markup());
    const std::string_view rest = text.substr(byte_of_point(text, start));
    return Value::string(rest.substr(0, byte_of_point(rest, count)), value.is_markup());
  }
  Values items;
  items.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) items.push_back(value.items()[static_cast<size_t>(start + i * step)]);
  return value.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
}

// ---- Calls

Given Evaluator::evaluate_arguments(const Arguments& arguments, Scope& scope) {
  Given given;
  for (const ExpressionPtr& one : arguments.positional) given.positional.push_back(evaluate(*one, scope));
  if (arguments.star != nullptr)
    for (Value& value : to_items(evaluate(*arguments.star, scope))) given.positional.push_back(std::move(value));
  for (const auto& [name, value] : arguments.named) given.named.set(name, evaluate(*value, scope));
  return given;
}

Value Evaluator::evaluate_call(const Expression& expression, Scope& scope) {
  const Value callee = evaluate(*expression.parts[0], scope);
  Given given = evaluate_arguments(expression.arguments, scope);
  line_ = expression.line;
  return call(callee, std::move(given));
}

Value Evaluator::call(const Value& callee, Given given) {
  switch (callee.kind()) {
    case Kind::kUndefined: throw Error(callee.reason());
    case Kind::kMacro: return call_macro(callee.macro(), std::move(given));
    case Kind::kFunction: return call_function(callee.function(), std::move(given));
    case Kind::kMethod: return call_method(callee.method().self, callee.method().name, std::move(given));
    case Kind::kLoop: throw Error("calling the loop object (a recursive loop) is not supported");
    default: throw Error(absl::StrCat("'", callee.type_name(), "' object is not callable"));
  }
}

// ---- Arithmetic

Value Evaluator::arithmetic(Expression::Operator op, const Value& a, const Value& b) {
  if (a.is_markup() || b.is_markup())
    throw Error(absl::StrCat("\"", spelling(op), "\" with a value that is marked safe is not supported"));
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return integer_arithmetic(op, a.integral(), b.integral());
    return real_arithmetic(op, a.number(), b.number());
  }
  if (op == Expression::kAdd && a.kind() == b.kind()) {
    if (a.is_string()) {
      Text text;
      text.reserve(a.text().size() + b.text().size());
      return Value::string(std::move(text.append(a.text()).append(b.text())));
    }
    if (a.is(Kind::kList) || a.is(Kind::kTuple)) {
      Values items;
      items.reserve(a.items().size() + b.items().size());
      items.insert(items.end(), a.items().begin(), a.items().end());
      items.insert(items.end(), b.items().begin(), b.items().end());
      return a.is(Kind::kList) ? Value::list(std::move(items)) : Value::tuple(std::move(items));
    }
  }
  if (op == Expression::kMul) {
    if (b.is_integral()) return repeated(a, b.integral());
    if (a.is_integral()) return repeated(b, a.integral());
  }
  if (op == Expression::kMod && a.is_string()) return percent_format(a, b);
  refuse_operands(op, a, b);
}

Value Evaluator::repeated(const Value& value, int64_t times) {
  if (value.is_string()) return Value::string(repeat_text(value.text(), times));
  if (value.is(Kind::kList) || value.is(Kind::kTuple)) {
    const Values& items = value.items();
    Values out;
    if (times > 0 && !items.empty()) {
      Budget::expect(static_cast<uint64_t>(times), items.size() * sizeof(Value));
      out.reserve(items.size() * static_cast<size_t>(times));
      for (int64_t i = 0; i < times; ++i) out.insert(out.end(), items.begin(), items.end());
    }
    return value.is(Kind::kList) ? Value::list(std::move(out)) : Value::tuple(std::move(out));
  }
  refuse_operands(Expression::kMul, value, Value::integer(times));
}

// Formats as Python's "..." % values. Supports %s, %r, %d, %i, %f with a precision, and %%.
Value Evaluator::percent_format(const Value& format, const Value& values) {
  const std::string_view text = format.text();
  Budget::convert(text.size());
  if (values.is(Kind::kDict) && text.find("%(") != std::string_view::npos)
    throw Error("\"%(name)\" in a format is not supported");
  const Values items = values.is(Kind::kTuple) ? values.items() : Values{values};
  size_t used = 0;
  const auto next = [&]() -> const Value& {
    if (used >= items.size()) throw Error("not enough arguments for format string");
    return items[used++];
  };
  Text out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out.push_back(text[i]);
      continue;
    }
    int precision = -1;
    if (++i < text.size() && text[i] == '.') {
      precision = 0;
      for (++i; i < text.size() && text[i] >= '0' && text[i] <= '9' && precision < 100; ++i)
        precision = precision * 10 + (text[i] - '0');
    }
    const char kind = i < text.size() ? text[i] : '\0';
    if (precision >= 0 && kind != 'f') throw Error("a precision in a format is only supported for %f");
    if (kind == '%') {
      out.push_back('%');
    } else if (kind == 's') {
      out += str(next());
    } else if (kind == 'r') {
      append_repr(out, next());
    } else if (kind == 'd' || kind == 'i') {
      const Value& value = next();
      if (!value.is_integral()) throw Error("%d with a value that is no integer is not supported");
      out += absl::StrCat(value.integral());
    } else if (kind == 'f') {
      const Value& value = next();
      if (!value.is_number() || !std::isfinite(value.number())) throw Error("%f needs a finite number");
      Budget::convert(static_cast<size_t>(std::max(precision, 0)));
      out += formatted("%.*f", precision < 0 ? 6 : precision, value.number());
    } else {
      throw Error("this conversion in a format is not supported: %" +
                  std::string(kind == 0 ? "" : std::string(1, kind)));
    }
  }
  if (used < items.size() && !values.is(Kind::kDict) && !values.is(Kind::kList))
    throw Error("not all arguments converted during string formatting");
  return Value::string(std::move(out));
}

}  // namespace rondo::text::jinja
