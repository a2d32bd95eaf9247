// Expressions. Precedences, from loose to tight: if-else, or, and, not, comparison, + -, ~, * / // %, **, sign, then
// what follows a value: attributes, calls, filters and tests. The precedences are those of Jinja 3.1.
#include "rondo/runtime/chat/jinja/parser_impl.h"

namespace rondo::text::jinja {

ExpressionPtr Parser::tuple(bool conditional, bool in_parentheses, std::string_view end_name) {
  const int line = now().line;
  Expressions parts;
  bool is_tuple = false;
  for (;;) {
    if (!parts.empty()) expect_sign(",");
    if (now().type == Token::kOutputEnd || now().type == Token::kBlockEnd || is_sign(")") ||
        (!end_name.empty() && is_name(end_name)))
      break;
    parts.push_back(expression(conditional));
    if (!is_sign(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) {
    if (!parts.empty()) return std::move(parts[0]);
    if (!in_parentheses) fail(now().line, absl::StrCat("expected an expression, found ", shown(now())));
  }
  return make(Expression::kTuple, line, std::move(parts));
}

ExpressionPtr Parser::conditional_expression() {
  const Deeper deeper(*this, expression_depth_, kDeepestExpression);
  const int line = now().line;
  ExpressionPtr value = or_expression();
  while (take_name("if")) {
    ExpressionPtr condition = or_expression();
    ExpressionPtr otherwise = take_name("else") ? conditional_expression() : nullptr;
    value = make(Expression::kConditional, line, list(std::move(condition), std::move(value), std::move(otherwise)));
  }
  return value;
}

ExpressionPtr Parser::or_expression() {
  const int line = now().line;
  ExpressionPtr left = and_expression();
  while (take_name("or")) {
    ExpressionPtr right = and_expression();
    left = make(Expression::kOr, line, list(std::move(left), std::move(right)));
  }
  return left;
}

ExpressionPtr Parser::and_expression() {
  const int line = now().line;
  ExpressionPtr left = not_expression();
  while (take_name("and")) {
    ExpressionPtr right = not_expression();
    left = make(Expression::kAnd, line, list(std::move(left), std::move(right)));
  }
  return left;
}

ExpressionPtr Parser::not_expression() {
  const Deeper deeper(*this, expression_depth_, kDeepestExpression);
  if (!is_name("not")) return comparison();
  const int line = take().line;
  return make(Expression::kNot, line, list(not_expression()));
}

ExpressionPtr Parser::comparison() {
  const int line = now().line;
  static constexpr std::pair<std::string_view, Expression::Operator> kOperators[] = {
      {"==", Expression::kEq}, {"!=", Expression::kNe}, {"<", Expression::kLt},
      {"<=", Expression::kLe}, {">", Expression::kGt},  {">=", Expression::kGe}};
  Expressions parts = list(sum());
  List<Expression::Operator> operators;
  for (;;) {
    const auto* found = std::find_if(std::begin(kOperators), std::end(kOperators),
                                     [&](const auto& one) { return is_sign(one.first); });
    if (found != std::end(kOperators)) {
      take();
      operators.push_back(found->second);
    } else if (take_name("in")) {
      operators.push_back(Expression::kIn);
    } else if (is_name("not") && after().type == Token::kName && after().text == "in") {
      take(), take();
      operators.push_back(Expression::kNotIn);
    } else {
      break;
    }
    parts.push_back(sum());
  }
  if (operators.empty()) return std::move(parts[0]);
  ExpressionPtr out = make(Expression::kCompare, line, std::move(parts));
  out->operators = std::move(operators);
  return out;
}

ExpressionPtr Parser::sum() {
  ExpressionPtr left = concat();
  while (is_sign("+") || is_sign("-")) {
    const Token sign = take();
    ExpressionPtr right = concat();
    left = make(Expression::kArithmetic, sign.line, list(std::move(left), std::move(right)));
    left->operators = {sign.text == "+" ? Expression::kAdd : Expression::kSub};
  }
  return left;
}

ExpressionPtr Parser::concat() {
  const int line = now().line;
  Expressions parts = list(product());
  while (take_sign("~")) parts.push_back(product());
  return parts.size() == 1 ? std::move(parts[0]) : make(Expression::kConcat, line, std::move(parts));
}

ExpressionPtr Parser::product() {
  ExpressionPtr left = power();
  while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) {
    const Token sign = take();
    ExpressionPtr right = power();
    left = make(Expression::kArithmetic, sign.line, list(std::move(left), std::move(right)));
    left->operators = {sign.text == "*"    ? Expression::kMul
                       : sign.text == "/"  ? Expression::kDiv
                       : sign.text == "//" ? Expression::kFloorDiv
                                           : Expression::kMod};
  }
  return left;
}

// True if jinja2 may compute the expression when it compiles the template.
static bool is_constant(const Expression& e) {
  Budget::step();
  if (e.type == Expression::kName || e.type == Expression::kCall) return false;
  const auto constant = [](const ExpressionPtr& part) { return part == nullptr || is_constant(*part); };
  return std::all_of(e.parts.begin(), e.parts.end(), constant) &&
         std::all_of(e.arguments.positional.begin(), e.arguments.positional.end(), constant);
}

ExpressionPtr Parser::power() {
  ExpressionPtr left = unary();
  while (is_sign("**")) {
    const int line = take().line;
    ExpressionPtr right = unary();
    // jinja2 compiles the template to Python code. If it has already computed the left side, for example -2, it writes
    // -2 ** n, which Python reads as -(2 ** n).
    if (left->type != Expression::kConstant && is_constant(*left) && !is_constant(*right))
      fail(line, "a computed constant to the power of a variable is not supported: jinja2 reads -2 ** n as -(2 ** n)");
    left = make(Expression::kArithmetic, line, list(std::move(left), std::move(right)));
    left->operators = {Expression::kPow};
  }
  return left;
}

ExpressionPtr Parser::unary(bool with_filter) {
  const Deeper deeper(*this, expression_depth_, kDeepestExpression);
  ExpressionPtr value;
  if (is_sign("-") || is_sign("+")) {
    const Token sign = take();
    value = make(sign.text == "-" ? Expression::kNegative : Expression::kPositive, sign.line, list(unary(false)));
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filter ? filters_and_tests(std::move(value)) : std::move(value);
}

ExpressionPtr Parser::primary() {
  const Token token = now();
  const auto constant = [&](Value value) {
    ExpressionPtr out = make(Expression::kConstant, token.line);
    out->constant = std::move(value);
    return out;
  };
  switch (token.type) {
    case Token::kName: {
      take();
      const std::string& name = token.text;
      if (name == "true" || name == "True") return constant(Value::boolean(true));
      if (name == "false" || name == "False") return constant(Value::boolean(false));
      if (name == "none" || name == "None") return constant(Value::none());
      if (macro_parameters_ != nullptr && (name == "caller" || name == "varargs" || name == "kwargs") &&
          macro_parameters_->find(name) == nullptr)
        fail(token.line, absl::StrCat("\"", name, "\" in a macro is not supported"));
      ExpressionPtr out = make(Expression::kName, token.line);
      out->name = name;
      return out;
    }
    case Token::kString: {
      std::string text;
      while (now().type == Token::kString) text += take().text;
      absl::StrAppend(&out_.literals, text, std::string(1, '\0'));
      return constant(Value::string(std::move(text)));
    }
    case Token::kInteger:
    case Token::kFloat: return constant(take().number);
    default: break;
  }
  if (take_sign("(")) {
    ExpressionPtr out = tuple(true, true);
    expect_sign(")");
    return out;
  }
  if (is_sign("[")) return list_literal();
  if (is_sign("{")) return dict_literal();
  fail(token.line, absl::StrCat("unexpected ", shown(token)));
}

ExpressionPtr Parser::list_literal() {
  const int line = take().line;
  Expressions parts;
  while (!is_sign("]")) {
    if (!parts.empty()) expect_sign(",");
    if (is_sign("]")) break;
    parts.push_back(expression());
  }
  take();
  return make(Expression::kList, line, std::move(parts));
}

ExpressionPtr Parser::dict_literal() {
  const int line = take().line;
  Expressions parts;
  while (!is_sign("}")) {
    if (!parts.empty()) expect_sign(",");
    if (is_sign("}")) break;
    parts.push_back(expression());
    expect_sign(":");
    parts.push_back(expression());
  }
  take();
  return make(Expression::kDict, line, std::move(parts));
}

ExpressionPtr Parser::postfix(ExpressionPtr value) {
  for (;;) {
    if (is_sign(".") || is_sign("[")) value = subscript(std::move(value));
    else if (is_sign("(")) value = call(std::move(value));
    else return value;
  }
}

ExpressionPtr Parser::subscript(ExpressionPtr value) {
  const Token token = take();
  if (token.text == ".") {
    const Token name = take();
    if (name.type == Token::kName) {
      ExpressionPtr out = make(Expression::kAttribute, token.line, list(std::move(value)));
      out->name = name.text;
      return out;
    }
    if (name.type != Token::kInteger) fail(name.line, "expected a name or a number behind the point");
    ExpressionPtr index = make(Expression::kConstant, name.line);
    index->constant = name.number;
    return make(Expression::kItem, token.line, list(std::move(value), std::move(index)));
  }
  // [start:stop:step], each may be missing.
  const auto part = [&]() -> ExpressionPtr {
    if (is_sign(":") || is_sign("]") || is_sign(",")) return nullptr;
    return expression();
  };
  if (is_sign("]")) fail(token.line, "an index is missing between the brackets");
  ExpressionPtr first = part();
  ExpressionPtr out;
  if (is_sign(":")) {
    Expressions parts = list(std::move(value), std::move(first));
    for (int i = 0; i < 2; ++i) parts.push_back(take_sign(":") ? part() : nullptr);
    out = make(Expression::kSlice, token.line, std::move(parts));
  } else {
    out = make(Expression::kItem, token.line, list(std::move(value), std::move(first)));
  }
  if (is_sign(",")) fail(token.line, "several indices between brackets are not supported");
  expect_sign("]");
  return out;
}

ExpressionPtr Parser::filters_and_tests(ExpressionPtr value) {
  for (;;) {
    if (is_sign("|")) value = filter(std::move(value));
    else if (is_name("is")) value = test(std::move(value));
    else if (is_sign("(")) value = call(std::move(value));
    else return value;
  }
}

std::string Parser::dotted_name(const char* what) {
  std::string name = expect_name(what);
  while (take_sign(".")) absl::StrAppend(&name, ".", expect_name(what));
  return name;
}

ExpressionPtr Parser::filter(ExpressionPtr value) {
  take();  // |
  ExpressionPtr out = make(Expression::kFilter, now().line, list(std::move(value)));
  out->name = dotted_name("the name of a filter");
  if (is_sign("(")) arguments(*out);
  return out;
}

ExpressionPtr Parser::test(ExpressionPtr value) {
  const int line = take().line;  // is
  const bool negated = take_name("not");
  ExpressionPtr out = make(Expression::kTest, line, list(std::move(value)));
  out->name = dotted_name("the name of a test");
  const Token& next = now();
  if (is_sign("(")) {
    arguments(*out);
  } else if ((next.type == Token::kName && next.text != "else" && next.text != "or" && next.text != "and") ||
             next.type == Token::kString || next.type == Token::kInteger || next.type == Token::kFloat ||
             is_sign("[") || is_sign("{")) {
    if (is_name("is")) fail(next.line, "several tests in a row: put the first one in parentheses");
    const Deeper deeper(*this, expression_depth_, kDeepestExpression);
    ExpressionPtr argument = postfix(primary());
    include(*out, argument);
    out->arguments.positional.push_back(std::move(argument));
  }
  return negated ? make(Expression::kNot, line, list(std::move(out))) : std::move(out);
}

ExpressionPtr Parser::call(ExpressionPtr value) {
  ExpressionPtr out = make(Expression::kCall, now().line, list(std::move(value)));
  arguments(*out);
  return out;
}

void Parser::arguments(Expression& out) {
  const int line = take().line;  // (
  Arguments& arguments = out.arguments;
  const auto ensure = [&](bool holds) {
    if (!holds) fail(line, "the arguments of a call are in an order that Python does not have");
  };
  Value::Dict known;
  for (bool first = true; !is_sign(")"); first = false) {
    if (!first) {
      expect_sign(",");
      if (is_sign(")")) break;
    }
    if (is_sign("**")) fail(line, "\"**\" in the arguments of a call is not supported");
    if (take_sign("*")) {
      ensure(arguments.star == nullptr);
      arguments.star = expression();
      include(out, arguments.star);
    } else if (now().type == Token::kName && after().type == Token::kSign && after().text == "=") {
      Value name = Value::string(take().text);
      take();
      if (!known.set(name, Value()))
        fail(line, absl::StrCat("the argument ", io::shown(name.text()), " is given twice"));
      arguments.named.emplace_back(std::move(name), expression());
      include(out, arguments.named.back().second);
    } else {
      ensure(arguments.star == nullptr && arguments.named.empty());
      arguments.positional.push_back(expression());
      include(out, arguments.positional.back());
    }
  }
  take();
}

}  // namespace rondo::text::jinja
