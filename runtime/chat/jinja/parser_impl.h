// The class of the parser. parser.cc parses statements, parse_expressions.cc parses expressions.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/chat/jinja/lexer.h"
#include "rondo/runtime/chat/jinja/syntax.h"
#include "rondo/runtime/chat/template_error.h"
#include "rondo/runtime/io/json.h"

namespace rondo::text::jinja {

inline constexpr int kDeepestExpression = 150, kDeepestStatement = 60;

using Names = std::span<const std::string_view>;

class Parser {
 public:
  // `line` always holds the line of the statement that is being parsed.
  Parser(List<Token> tokens, int& line) : tokens_(std::move(tokens)), line_(line) {}
  Parsed parse() {
    out_.body = body({});
    return std::move(out_);
  }

 private:
  // ---- Tokens
  const Token& now() const { return tokens_[at_]; }
  const Token& after() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  // Returns the token and moves on, but never past the last one, kEnd.
  Token take() {
    if (at_ + 1 < tokens_.size()) return std::move(tokens_[at_++]);
    return now();
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
    take_sign(":");  // Python's colon, which Jinja allows
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
      Budget::step();
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
  // Parses a body in which names are local, and the {% end %} after it.
  Body local_body(std::string_view end);
  Target target(bool with_namespace, bool ends_at_in);
  Target primary_target(bool with_namespace);
  static bool names_loop(const Target& target);

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

  List<Token> tokens_;
  size_t at_ = 0;
  int& line_;
  int expression_depth_ = 0, statement_depth_ = 0;
  int scopes_ = 0;                                 // enclosing bodies with names of their own
  int loops_ = 0;                                  // enclosing loops that a break may leave
  int for_depth_ = 0;                              // enclosing {% for %}, also for their else bodies
  const Value::Dict* macro_parameters_ = nullptr;  // parameters of the enclosing macro
  Parsed out_;
};

}  // namespace rondo::text::jinja
