// Statements of templates.
#include "rondo/runtime/chat/jinja/parser.h"

#include "rondo/runtime/chat/jinja/parser_impl.h"
#include "rondo/runtime/chat/jinja/unset_names.h"

namespace rondo::text::jinja {

Body Parser::body(Names ends) {
  const Deeper deeper(*this, statement_depth_, kDeepestStatement);
  Body out;
  for (;;) {
    const int line = line_ = now().line;
    switch (now().type) {
      case Token::kEnd:
        if (!ends.empty())
          fail(line, absl::StrCat("the template ends where {% ", std::string(ends.back()), " %} is missing"));
        return out;
      case Token::kText: {
        auto text = std::make_unique<Statement>();
        text->type = Statement::kText;
        text->line = line;
        text->text = take().text;
        absl::StrAppend(&out_.literals, text->text, std::string(1, '\0'));
        out.push_back(std::move(text));
        break;
      }
      case Token::kOutputBegin: {
        take();
        auto output = std::make_unique<Statement>();
        output->type = Statement::kOutput;
        output->line = line;
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
  ++for_depth_;
  static constexpr std::string_view kEnds[] = {"else", "endfor"};
  out->body = body(kEnds);
  --loops_;
  --scopes_;
  if (take().text == "else") {
    expect_end_of_block();
    out->otherwise = local_body("endfor");
  }
  --for_depth_;
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

bool Parser::names_loop(const Target& target) {
  if (!target.is_tuple) return target.name.text() == "loop" && !target.field.is_string();
  return std::any_of(target.parts.begin(), target.parts.end(), names_loop);
}

std::unique_ptr<Statement> Parser::set_statement(int line) {
  auto out = std::make_unique<Statement>();
  out->line = line;
  out->target = target(true, false);
  if (for_depth_ > 0 && names_loop(out->target)) fail(line, "can't assign to the loop variable in a for loop");
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
  macro.name = Value::string(expect_name("the name of a macro"));
  expect_sign("(");
  Value::Dict known;
  macro_parameters_ = &known;
  while (!is_sign(")")) {
    if (!macro.parameters.empty()) expect_sign(",");
    macro.parameters.push_back(Value::string(expect_name("the name of a parameter")));
    if (!known.set(macro.parameters.back(), Value()))
      fail(line, absl::StrCat("a macro has two parameters ", io::shown(macro.parameters.back().text())));
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
  // Filters as after a value, but without the first "|".
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
  Target out{.name = Value::string(expect_name("the name of a variable"))};
  for (const char* word : {"true", "false", "none", "True", "False", "None"})
    if (out.name.text() == word) fail(line, absl::StrCat("can't assign to ", word));
  if (with_namespace && take_sign(".")) out.field = Value::string(expect_name("the name of a field"));
  return out;
}

Target Parser::target(bool with_namespace, bool ends_at_in) {
  const int line = now().line;
  Target first = primary_target(with_namespace);
  if (is_sign(",")) {
    Target out{.is_tuple = true};
    out.parts.push_back(std::move(first));
    while (take_sign(",")) {
      if (ends_at_in && is_name("in")) fail(line, "expected the name of a variable behind the comma");
      if (now().type == Token::kBlockEnd) break;
      out.parts.push_back(primary_target(with_namespace));
    }
    first = std::move(out);
  }
  if (ends_at_in && names_loop(first)) fail(line, "can't assign to the loop variable in a for loop's target");
  return first;
}

Parsed parse_template(std::string_view source) {
  int line = 1;
  try {
    Parser parser(tokenize(source), line);
    Parsed parsed = parser.parse();
    find_unset_names(parsed);
    return parsed;
  } catch (const TemplateError&) {
    throw;
  } catch (const Error& error) {  // thrown by the budget
    throw TemplateError(line, error.what());
  }
}

}  // namespace rondo::text::jinja
