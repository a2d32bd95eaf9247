// Precedences, from loose to tight: if-else, or, and, not, comparison, + -, ~, * / // %, **, sign, then what stands
// behind a value: attributes, calls, filters and tests. They are those of Jinja 3.1.
#include "rondo/runtime/text/jinja/parser.h"

#include <algorithm>
#include <span>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/text/jinja/lexer.h"
#include "rondo/runtime/text/template_error.h"

namespace rondo::text::jinja {
namespace {

constexpr int kDeepestExpression = 150, kDeepestStatement = 60;

using Names = std::span<const std::string_view>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}
  Parsed parse() {
    out_.body = body({});
    return std::move(out_);
  }

 private:
  // ---- Tokens
  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() {
    Token token = now();
    if (at_ + 1 < tokens_.size()) ++at_;
    return token;
  }
  [[noreturn]] void fail(int line, const std::string& what) const { throw TemplateError(line, what); }
  static std::string shown(const Token& token) {
    switch (token.type) {
      case Token::kEnd: return "the end of the template";
      case Token::kOutputEnd: return "\"}}\"";
      case Token::kBlockEnd: return "\"%}\"";
      default: return io::shown(token.text);
    }
  }
  bool is_sign(std::string_view sign) const { return now().type == Token::kSign && now().text == sign; }
  bool is_name(std::string_view name) const { return now().type == Token::kName && now().text == name; }
  bool take_sign(std::string_view sign) { return is_sign(sign) && (take(), true); }
  bool take_name(std::string_view name) { return is_name(name) && (take(), true); }
  void expect_sign(std::string_view sign) {
    if (!take_sign(sign)) fail(now().line, absl::StrCat("expected \"", std::string(sign), "\", found ", shown(now())));
  }
  std::string expect_name(const char* what) {
    if (now().type != Token::kName) fail(now().line, absl::StrCat("expected ", what, ", found ", shown(now())));
    return take().text;
  }
  void expect_end_of_block() {
    take_sign(":");  // Python's, which Jinja allows
    if (now().type != Token::kBlockEnd) fail(now().line, absl::StrCat("expected \"%}\", found ", shown(now())));
    take();
  }

  // ---- Trees of bounded depth
  ExpressionPtr make(Expression::Type type, int line, Expressions parts = {}) const {
    auto out = std::make_unique<Expression>();
    out->type = type;
    out->line = line;
    out->parts = std::move(parts);
    for (const ExpressionPtr& part : out->parts) include(*out, part);
    return out;
  }
  void include(Expression& out, const ExpressionPtr& part) const {
    if (part == nullptr) return;
    out.depth = std::max(out.depth, part->depth + 1);
    if (out.depth > kDeepestExpression)
      fail(out.line, absl::StrCat("an expression is nested more than ", kDeepestExpression, " deep"));
  }
  template <class... Parts> static Expressions list(Parts... parts) {
    Expressions out;
    (out.push_back(std::move(parts)), ...);
    return out;
  }
  // Bounds the recursion of the parser itself.
  class Deeper {
   public:
    Deeper(Parser& parser, int& depth, int most) : depth_(depth) {
      if (++depth_ > most) {
        --depth_;
        parser.fail(parser.now().line, absl::StrCat("the template is nested more than ", most, " deep"));
      }
    }
    ~Deeper() { --depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    int& depth_;
  };

  // ---- Statements
  Body body(Names ends);
  std::unique_ptr<Statement> statement();
  std::unique_ptr<Statement> for_statement(int line);
  std::unique_ptr<Statement> if_statement(int line);
  std::unique_ptr<Statement> set_statement(int line);
  std::unique_ptr<Statement> with_statement(int line);
  std::unique_ptr<Statement> macro_statement(int line);
  std::unique_ptr<Statement> filter_statement(int line);
  std::unique_ptr<Statement> generation_statement(int line);
  // A body in which names are local. Ends with, and takes, {% end %}.
  Body local_body(std::string_view end);
  Target target(bool with_namespace, bool ends_at_in);
  Target primary_target(bool with_namespace);

  // ---- Expressions
  ExpressionPtr tuple(bool conditional, bool in_parentheses, std::string_view end_name = "");
  ExpressionPtr expression(bool conditional = true) { return conditional ? conditional_expression() : or_expression(); }
  ExpressionPtr conditional_expression();
  ExpressionPtr or_expression();
  ExpressionPtr and_expression();
  ExpressionPtr not_expression();
  ExpressionPtr comparison();
  ExpressionPtr sum();
  ExpressionPtr concat();
  ExpressionPtr product();
  ExpressionPtr power();
  ExpressionPtr unary(bool with_filter = true);
  ExpressionPtr primary();
  ExpressionPtr list_literal();
  ExpressionPtr dict_literal();
  ExpressionPtr postfix(ExpressionPtr value);
  ExpressionPtr subscript(ExpressionPtr value);
  ExpressionPtr filters_and_tests(ExpressionPtr value);
  ExpressionPtr filter(ExpressionPtr value);
  ExpressionPtr test(ExpressionPtr value);
  ExpressionPtr call(ExpressionPtr value);
  void arguments(Expression& out);
  std::string dotted_name(const char* what);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int expression_depth_ = 0, statement_depth_ = 0;
  int scopes_ = 0;                                        // bodies with names of their own around this place
  int loops_ = 0;                                         // loops that a break here would leave
  std::vector<std::string>* macro_parameters_ = nullptr;  // of the macro around this place
  Parsed out_;
};

// ---- Statements

Body Parser::body(Names ends) {
  const Deeper deeper(*this, statement_depth_, kDeepestStatement);
  Body out;
  for (;;) {
    const Token token = now();
    switch (token.type) {
      case Token::kEnd:
        if (!ends.empty())
          fail(token.line, absl::StrCat("the template ends where {% ", std::string(ends.back()), " %} is missing"));
        return out;
      case Token::kText: {
        auto text = std::make_unique<Statement>();
        text->type = Statement::kText;
        text->line = token.line;
        text->text = take().text;
        absl::StrAppend(&out_.literals, text->text, std::string(1, '\0'));
        out.push_back(std::move(text));
        break;
      }
      case Token::kOutputBegin: {
        take();
        auto output = std::make_unique<Statement>();
        output->type = Statement::kOutput;
        output->line = token.line;
        output->expression = tuple(true, false);
        if (now().type != Token::kOutputEnd) fail(now().line, absl::StrCat("expected \"}}\", found ", shown(now())));
        take();
        out.push_back(std::move(output));
        break;
      }
      default: {
        take();  // {%
        if (now().type == Token::kName && std::find(ends.begin(), ends.end(), now().text) != ends.end()) return out;
        if (auto made = statement()) out.push_back(std::move(made));
        expect_end_of_block();
      }
    }
  }
}

Body Parser::local_body(std::string_view end) {
  ++scopes_;
  const std::string_view ends[] = {end};
  Body out = body(ends);
  --scopes_;
  take();
  return out;
}

std::unique_ptr<Statement> Parser::statement() {
  const int line = now().line;
  if (now().type != Token::kName) fail(line, absl::StrCat("expected the name of a statement, found ", shown(now())));
  const std::string name = take().text;
  if (name == "for") return for_statement(line);
  if (name == "if") return if_statement(line);
  if (name == "set") return set_statement(line);
  if (name == "with") return with_statement(line);
  if (name == "macro") return macro_statement(line);
  if (name == "filter") return filter_statement(line);
  if (name == "generation") return generation_statement(line);
  if (name == "print") {
    auto out = std::make_unique<Statement>();
    out->type = Statement::kOutput;
    out->line = line;
    out->expression = expression();
    if (is_sign(",")) fail(line, "the statement \"print\" with several values is not supported");
    return out;
  }
  if (name == "break" || name == "continue") {
    if (loops_ == 0) fail(line, absl::StrCat("\"", name, "\" is not inside a loop"));
    auto out = std::make_unique<Statement>();
    out->type = name == "break" ? Statement::kBreak : Statement::kContinue;
    out->line = line;
    return out;
  }
  for (const char* known : {"call", "include", "import", "from", "extends", "block", "autoescape", "do", "trans"})
    if (name == known) fail(line, absl::StrCat("the statement \"", name, "\" is not supported"));
  fail(line, absl::StrCat("there is no statement ", io::shown(name), " here"));
}

std::unique_ptr<Statement> Parser::for_statement(int line) {
  auto out = std::make_unique<Statement>();
  out->type = Statement::kFor;
  out->line = line;
  out->target = target(false, true);
  if (!take_name("in")) fail(now().line, absl::StrCat("expected \"in\", found ", shown(now())));
  out->expression = tuple(false, false, "recursive");
  if (take_name("if")) out->condition = expression();
  if (is_name("recursive"))
    fail(line, "a recursive loop (\"recursive\") is not supported; use a macro that calls itself");
  expect_end_of_block();
  ++scopes_;
  ++loops_;
  static constexpr std::string_view kEnds[] = {"else", "endfor"};
  out->body = body(kEnds);
  --loops_;
  --scopes_;
  if (take().text == "else") {
    expect_end_of_block();
    out->otherwise = local_body("endfor");
  }
  return out;
}

std::unique_ptr<Statement> Parser::if_statement(int line) {
  auto out = std::make_unique<Statement>();
  out->type = Statement::kIf;
  out->line = line;
  static constexpr std::string_view kEnds[] = {"elif", "else", "endif"};
  for (bool more = true; more;) {
    Statement::Branch& branch = out->branches.emplace_back();
    branch.condition = tuple(false, false);
    expect_end_of_block();
    branch.body = body(kEnds);
    const std::string end = take().text;
    more = end == "elif";
    if (end == "else") {
      expect_end_of_block();
      static constexpr std::string_view kEnd[] = {"endif"};
      Statement::Branch& last = out->branches.emplace_back();
      last.body = body(kEnd);
      take();
    }
  }
  return out;
}

std::unique_ptr<Statement> Parser::set_statement(int line) {
  auto out = std::make_unique<Statement>();
  out->line = line;
  out->target = target(true, false);
  if (take_sign("=")) {
    out->type = Statement::kSet;
    out->expression = tuple(true, false);
    return out;
  }
  out->type = Statement::kSetBlock;
  while (is_sign("|")) out->expression = filter(std::move(out->expression));
  expect_end_of_block();
  out->body = local_body("endset");
  return out;
}

std::unique_ptr<Statement> Parser::with_statement(int line) {
  auto out = std::make_unique<Statement>();
  out->type = Statement::kWith;
  out->line = line;
  while (now().type != Token::kBlockEnd) {
    if (!out->assignments.empty()) expect_sign(",");
    Target to = target(false, false);
    expect_sign("=");
    ExpressionPtr value = expression();
    out->assignments.emplace_back(std::move(to), std::move(value));
  }
  expect_end_of_block();
  out->body = local_body("endwith");
  return out;
}

std::unique_ptr<Statement> Parser::macro_statement(int line) {
  if (scopes_ > 0) fail(line, "a macro inside a loop, a block or another macro is not supported");
  auto out = std::make_unique<Statement>();
  out->type = Statement::kMacro;
  out->line = line;
  out->macro = std::make_unique<Macro>();
  Macro& macro = *out->macro;
  macro.line = line;
  macro.name = expect_name("the name of a macro");
  expect_sign("(");
  macro_parameters_ = &macro.parameters;
  while (!is_sign(")")) {
    if (!macro.parameters.empty()) expect_sign(",");
    macro.parameters.push_back(expect_name("the name of a parameter"));
    if (take_sign("=")) macro.defaults.push_back(expression());
    else if (!macro.defaults.empty()) fail(line, "a parameter without a default stands behind one with a default");
  }
  take();
  expect_end_of_block();
  const int loops = std::exchange(loops_, 0);
  macro.body = local_body("endmacro");
  loops_ = loops;
  macro_parameters_ = nullptr;
  return out;
}

std::unique_ptr<Statement> Parser::filter_statement(int line) {
  auto out = std::make_unique<Statement>();
  out->type = Statement::kFilterBlock;
  out->line = line;
  // As behind a value, but for the first "|".
  auto first = make(Expression::kFilter, now().line, list(ExpressionPtr()));
  first->name = dotted_name("the name of a filter");
  if (is_sign("(")) arguments(*first);
  out->expression = std::move(first);
  while (is_sign("|")) out->expression = filter(std::move(out->expression));
  expect_end_of_block();
  out->body = local_body("endfilter");
  return out;
}

std::unique_ptr<Statement> Parser::generation_statement(int line) {
  out_.has_generation = true;
  auto out = std::make_unique<Statement>();
  out->type = Statement::kGeneration;
  out->line = line;
  expect_end_of_block();
  const int loops = std::exchange(loops_, 0);
  out->body = local_body("endgeneration");
  loops_ = loops;
  return out;
}

Target Parser::primary_target(bool with_namespace) {
  if (take_sign("(")) {
    Target out;
    while (!is_sign(")")) {
      const Deeper deeper(*this, expression_depth_, kDeepestExpression);
      out.parts.push_back(primary_target(false));
      if (is_sign(")")) break;
      expect_sign(",");
      out.is_tuple = true;
    }
    take();
    if (out.parts.size() == 1 && !out.is_tuple) return Target(std::move(out.parts[0]));
    out.is_tuple = true;
    return out;
  }
  const int line = now().line;
  Target out{.name = expect_name("the name of a variable")};
  for (const char* word : {"true", "false", "none", "True", "False", "None"})
    if (out.name == word) fail(line, absl::StrCat("can't assign to ", out.name));
  if (with_namespace && take_sign(".")) out.field = expect_name("the name of a field");
  return out;
}

Target Parser::target(bool with_namespace, bool ends_at_in) {
  const int line = now().line;
  Target first = primary_target(with_namespace);
  if (is_sign(",")) {
    Target out{.is_tuple = true};
    out.parts.push_back(std::move(first));
    while (take_sign(",")) {
      if ((ends_at_in && is_name("in")) || now().type == Token::kBlockEnd) break;
      out.parts.push_back(primary_target(with_namespace));
    }
    first = std::move(out);
  }
  const auto check_loop = [&](const Target& one, const auto& self) -> void {
    if (ends_at_in && one.name == "loop") fail(line, "can't assign to the loop variable in a for loop's target");
    for (const Target& part : one.parts) self(part, self);
  };
  check_loop(first, check_loop);
  return first;
}

// ---- Expressions

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
  std::vector<Expression::Operator> operators;
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

ExpressionPtr Parser::power() {
  ExpressionPtr left = unary();
  while (is_sign("**")) {
    const int line = take().line;
    ExpressionPtr right = unary();
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
          std::find(macro_parameters_->begin(), macro_parameters_->end(), name) == macro_parameters_->end())
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
      std::string name = take().text;
      take();
      for (const auto& [known, value] : arguments.named)
        if (known == name) fail(line, absl::StrCat("the argument \"", name, "\" is given twice"));
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

}  // namespace

Parsed parse_template(std::string_view source) { return Parser(tokenize(source)).parse(); }

}  // namespace rondo::text::jinja
