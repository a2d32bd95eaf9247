#include "rondo/runtime/chat/jinja/unset_names.h"

// Names that jinja2 treats as undefined although the caller gave a variable of that name. When jinja2 compiles a
// template, it decides in which scope each name lives (jinja2/idtracking.py):
//
//   {% for m in messages %}{{ tools }}{% endfor %}{% set tools = 1 %}    prints nothing: `tools` is the name set below
//
// If a body sets a name before it reads the name, it owns the name from its first statement on: inner bodies see the
// name as undefined until it is set. A body that reads the name first, sets it in an if, or lies inside of a body that
// knows the name, uses the outer variable until it sets the name. The body of an if owns no names.
#include <optional>

namespace rondo::text::jinja {
namespace {

// The names that one body sets or reads, without its inner bodies. kUnset: the body owns the name (see above).
// kUnsetAndRead: it owns the name, and an inner body reads it. kKnown: all other names.
struct Frame {
  enum Use { kKnown, kUnset, kUnsetAndRead };

  explicit Frame(Frame* around) : outer(around) {}
  void know(std::string_view name, Use use) {
    Budget::step();
    if (names.find(name) == nullptr) names.set(Value::string(name), Value::integer(use));
  }
  Frame* owner(std::string_view name) {
    for (Frame* at = this; at != nullptr; at = at->outer) {
      Budget::step();
      if (at->names.find(name) != nullptr) return at;
    }
    return nullptr;
  }
  // Called when a statement of the body reads `name`.
  void load(std::string_view name) {
    Frame* const at = owner(name);
    if (at == nullptr) know(name, kKnown);
    else if (at != this && at->names.find(name)->integral() == kUnset)
      at->names.set(Value::string(name), Value::integer(kUnsetAndRead));
  }
  void store(std::string_view name, bool in_branch) {
    know(name, in_branch || (outer != nullptr && outer->owner(name) != nullptr) ? kKnown : kUnset);
  }
  void parameter(std::string_view name) { know(name, kKnown); }
  Values unset() const {
    Values out;
    for (const auto& [name, use] : names.items)
      if (use.integral() == kUnsetAndRead) out.push_back(name);
    return out;
  }

  Frame* const outer;
  Value::Dict names;
};

void load(const Expression* expression, Frame& frame);

void load(const Arguments& arguments, Frame& frame) {
  for (const ExpressionPtr& one : arguments.positional) load(one.get(), frame);
  for (const auto& [name, one] : arguments.named) load(one.get(), frame);
  load(arguments.star.get(), frame);
}

void load(const Expression* expression, Frame& frame) {
  if (expression == nullptr) return;
  Budget::step();
  if (expression->type == Expression::kName) frame.load(expression->name);
  for (const ExpressionPtr& part : expression->parts) load(part.get(), frame);
  load(expression->arguments, frame);
}

// Notes that an assignment sets the names in `target`. `ns.field = ...` sets no name: it reads `ns`.
void store(const Target& target, Frame& frame, bool in_branch) {
  for (const Target& part : target.parts) store(part, frame, in_branch);
  if (target.is_tuple) return;
  if (target.field.is_string()) frame.load(target.name.text());
  else frame.store(target.name.text(), in_branch);
}
void declare(const Target& target, Frame& frame) {
  for (const Target& part : target.parts) declare(part, frame);
  if (!target.is_tuple) frame.parameter(target.name.text());
}

// Collects the names that a body's own statements use, in order; names in inner bodies are left out.
void collect(const Body& body, Frame& frame, bool in_branch) {
  for (const auto& statement : body) {
    Budget::step();
    switch (statement->type) {
      case Statement::kOutput:
      case Statement::kFor:
      case Statement::kFilterBlock: load(statement->expression.get(), frame); break;
      case Statement::kIf:
        for (const Statement::Branch& branch : statement->branches) {
          load(branch.condition.get(), frame);
          collect(branch.body, frame, true);
        }
        break;
      case Statement::kSet:
        load(statement->expression.get(), frame);
        store(statement->target, frame, in_branch);
        break;
      case Statement::kSetBlock: store(statement->target, frame, in_branch); break;
      case Statement::kWith:
        for (const auto& [target, value] : statement->assignments) load(value.get(), frame);
        break;
      case Statement::kMacro: frame.store(statement->macro->name.text(), in_branch); break;
      default: break;
    }
  }
}

void enter(const Body& body, Frame& frame);

// Handles a body with names of its own. `more`: an expression that the body reads, too. Returns the names that the body
// has to unset.
Values inner_body(const Body& body, Frame& frame, const Expression* more = nullptr) {
  collect(body, frame, false);
  load(more, frame);
  enter(body, frame);
  return frame.unset();
}

// Handles the inner bodies of `body`. REQUIRES: collect() has collected the names of `body` into `frame`.
void enter(const Body& body, Frame& frame) {
  for (const auto& statement : body) {
    Budget::step();
    Frame inner(&frame);
    switch (statement->type) {
      case Statement::kIf:
        for (const Statement::Branch& branch : statement->branches) enter(branch.body, frame);
        break;
      case Statement::kFor: {
        inner.parameter("loop");
        declare(statement->target, inner);
        statement->unset = inner_body(statement->body, inner);
        Frame condition(&frame), otherwise(&frame);
        declare(statement->target, condition);
        load(statement->condition.get(), condition);
        statement->otherwise_unset = inner_body(statement->otherwise, otherwise);
        break;
      }
      case Statement::kSetBlock:
      case Statement::kFilterBlock:
        statement->unset = inner_body(statement->body, inner, statement->expression.get());
        break;
      case Statement::kWith:
        for (const auto& [target, value] : statement->assignments) declare(target, inner);
        statement->unset = inner_body(statement->body, inner);
        break;
      case Statement::kMacro:
        for (const Value& name : statement->macro->parameters) inner.parameter(name.text());
        for (const ExpressionPtr& one : statement->macro->defaults) load(one.get(), inner);
        statement->macro->unset = inner_body(statement->macro->body, inner);
        break;
      case Statement::kGeneration: statement->unset = inner_body(statement->body, inner); break;
      default: break;
    }
  }
}

}  // namespace

void find_unset_names(Parsed& parsed) {
  Frame root(nullptr);
  root.parameter("self");
  parsed.unset = inner_body(parsed.body, root);
}

}  // namespace rondo::text::jinja
