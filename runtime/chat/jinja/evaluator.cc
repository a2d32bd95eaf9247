#include "rondo/runtime/chat/jinja/evaluator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/chat/jinja/parser.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/utf8.h"

namespace rondo::text::jinja {

// ---- Loops

bool LoopState::next() {
  std::optional<Value> item;
  if (after) {
    item = std::exchange(after, std::nullopt);
  } else if (!ended) {
    Value drawn;
    if (iterator.iterator().next(drawn)) item = std::move(drawn);
    else ended = true;
  }
  if (!item) return false;
  ++index0;
  before = std::exchange(current, std::move(item));
  return true;
}

const std::optional<Value>& LoopState::peek() {
  if (!after && !ended) {
    Value drawn;
    if (iterator.iterator().next(drawn)) after = std::move(drawn);
    else ended = true;
  }
  return after;
}

int64_t LoopState::count() {
  if (length) return *length;
  switch (iterable.kind()) {
    case Kind::kString:
    case Kind::kIterator: break;
    case Kind::kRange: return *(length = iterable.range().size());
    case Kind::kDict: return *(length = static_cast<int64_t>(iterable.dict().items.size()));
    case Kind::kUndefined: return *(length = 0);
    default: return *(length = static_cast<int64_t>(iterable.items().size()));
  }
  // As in Python, the length is known only after all remaining items are drawn.
  Values rest;
  for (Value drawn; !ended;) {
    if (iterator.iterator().next(drawn)) rest.push_back(std::move(drawn));
    else ended = true;
  }
  const auto left = static_cast<int64_t>(rest.size());
  length = left + index0 + 1 + (after ? 1 : 0);
  ended = false;
  iterator = Value::iterator([rest = std::move(rest), at = size_t{0}](Value& out) mutable {
    if (at >= rest.size()) return false;
    out = rest[at++];
    return true;
  });
  return *length;
}

// ---- Statements

Evaluator::Scope& Evaluator::Scope::hide(const Values& unset) {
  for (const Value& name : unset) {
    Budget::step();
    names.set(name, Value::undefined(absl::StrCat("'", abbreviated(name.text()), "' is undefined")));
  }
  return *this;
}

Rendered Evaluator::run(const Parsed& parsed, const std::vector<std::pair<std::string, Value>>& variables) {
  for (const auto& [name, value] : variables) variables_.set(Value::string(name), value);
  root_.hide(parsed.unset);
  run_body(parsed.body, root_);
  // Frees all values before the text is copied, to keep the peak of memory low.
  root_.names = {};
  for (Value::Dict& fields : namespaces_) fields = {};
  return {.text = std::string(text_), .generation = {generation_.begin(), generation_.end()}};
}

void Evaluator::write(std::string_view text) { *out_ += text; }

Evaluator::Flow Evaluator::run_body(const Body& body, Scope& scope) {
  for (const auto& statement : body)
    if (const Flow flow = run_statement(*statement, scope); flow != Flow::kOn) return flow;
  return Flow::kOn;
}

Evaluator::Flow Evaluator::run_statement(const Statement& statement, Scope& scope) {
  line_ = statement.line;
  Budget::step();
  switch (statement.type) {
    case Statement::kText: write(statement.text); return Flow::kOn;
    case Statement::kOutput: write(str(evaluate(*statement.expression, scope))); return Flow::kOn;
    case Statement::kFor: return run_for(statement, scope);
    case Statement::kIf:
      for (const Statement::Branch& branch : statement.branches)
        if (branch.condition == nullptr || is_true(evaluate(*branch.condition, scope)))
          return run_body(branch.body, scope);
      return Flow::kOn;
    case Statement::kSet: assign(statement.target, evaluate(*statement.expression, scope), scope); return Flow::kOn;
    case Statement::kSetBlock:
    case Statement::kFilterBlock: {
      Flow flow = Flow::kOn;
      Scope own{.outer = &scope};
      own.hide(statement.unset);
      Value value = Value::string(captured(statement.body, own, flow));
      if (flow != Flow::kOn) return flow;
      if (statement.expression != nullptr) {
        // The filters read the body's text from a variable whose name no template can write.
        Scope inner{.outer = &scope};
        inner.names.set(filtered_name_, std::move(value));
        value = evaluate(*statement.expression, inner);
      }
      if (statement.type == Statement::kSetBlock) assign(statement.target, std::move(value), scope);
      else write(str(value));
      return Flow::kOn;
    }
    case Statement::kWith: {
      Scope inner{.outer = &scope};
      inner.hide(statement.unset);
      for (const auto& [target, value] : statement.assignments) assign(target, evaluate(*value, scope), inner);
      return run_body(statement.body, inner);
    }
    case Statement::kMacro:
      scope.names.set(statement.macro->name, Value::macro(statement.macro.get()));
      return Flow::kOn;
    case Statement::kGeneration: run_generation(statement, scope); return Flow::kOn;
    case Statement::kBreak: return Flow::kBreak;
    case Statement::kContinue: return Flow::kContinue;
  }
  return Flow::kOn;
}

Text Evaluator::captured(const Body& body, Scope& inner, Flow& flow) {
  Text text;
  Text* const outer = std::exchange(out_, &text);
  try {
    flow = run_body(body, inner);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  return text;
}

void Evaluator::run_generation(const Statement& statement, Scope& scope) {
  const bool tracked = options_.track_generation;
  if (tracked && (out_ != &text_ || in_generation_))
    throw Error(
        "a generation block inside a macro, a set, a filter or another generation block has no place in the text "
        "that is known; put it around the call");
  in_generation_ = true;
  const size_t begin = text_.size();
  Flow flow = Flow::kOn;
  Scope inner{.outer = &scope};
  inner.hide(statement.unset);
  const Text text = captured(statement.body, inner, flow);
  in_generation_ = false;
  write(text);
  if (tracked) generation_.emplace_back(begin, begin + text.size());
}

Evaluator::Flow Evaluator::run_for(const Statement& statement, Scope& scope) {
  auto loop = shared<LoopState>();
  loop->iterable = evaluate(*statement.expression, scope);
  line_ = statement.line;
  loop->iterator = iterate(loop->iterable);
  if (statement.condition != nullptr) {
    // The condition is evaluated when the loop comes to the item, as in Python's generators.
    const Value source = std::exchange(loop->iterator, Value());
    loop->iterator = Value::iterator(
        [this, source, &statement, &scope](Value& out) {
          while (source.iterator().next(out)) {
            Scope inner{.outer = &scope};
            assign(statement.target, out, inner);
            if (is_true(evaluate(*statement.condition, inner))) return true;
          }
          return false;
        },
        {source});
    loop->iterable = loop->iterator;
  }
  bool any = false;
  while (loop->next()) {
    any = true;
    Scope inner{.outer = &scope};
    inner.hide(statement.unset);
    inner.names.set(loop_name_, Value::loop(loop));
    assign(statement.target, *loop->current, inner);
    const Flow flow = run_body(statement.body, inner);
    if (flow == Flow::kBreak) break;
  }
  // A loop object that outlives the loop draws no more items: the loop's condition would read destroyed scopes.
  loop->ended = true;
  if (any) return Flow::kOn;
  Scope inner{.outer = &scope};
  inner.hide(statement.otherwise_unset);
  return run_body(statement.otherwise, inner);
}

void Evaluator::assign(const Target& target, Value value, Scope& scope) {
  Budget::step();
  if (target.is_tuple) {
    const Values items = to_items(value);
    if (items.size() != target.parts.size())
      throw Error(absl::StrCat(items.size() < target.parts.size() ? "not enough" : "too many",
                               " values to unpack: expected ", target.parts.size(), ", got ", items.size()));
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
    return;
  }
  if (target.field.is_string()) {
    const Value space = lookup(target.name.text(), scope);
    if (!space.is(Kind::kNamespace))
      throw Error(
          absl::StrCat("cannot assign attribute on ", abbreviated(target.name.text()), ": it is no namespace object"));
    if (target.field.text().starts_with('_')) throw Error("a namespace has no field that begins with \"_\"");
    if (value.is(Kind::kLoop)) throw Error("the loop object inside a namespace is not supported");
    space.fields().set(target.field, std::move(value));
    return;
  }
  scope.names.set(target.name, std::move(value));
}

Value Evaluator::call_macro(const Macro& macro, Given given) {
  Budget::step();
  const int line = line_;
  const Values& names = macro.parameters;
  const auto fail = [&](const std::string& what) {
    throw Error(absl::StrCat("macro '", abbreviated(macro.name.text()), "' ", what));
  };
  if (given.positional.size() > names.size()) fail(absl::StrCat("takes not more than ", names.size(), " argument(s)"));
  Scope scope{.outer = &root_};
  // Declares all parameters before the first default is computed: a default never sees outer variables of these names.
  size_t named = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    std::optional<Value> value;
    if (i < given.positional.size()) value = given.positional[i];
    if (const Value* found = given.named.find(names[i])) {
      if (value) fail(absl::StrCat("got two values for ", io::shown(names[i].text())));
      value = *found;
      ++named;
    }
    if (!value) value = Value::undefined(absl::StrCat("parameter ", io::shown(names[i].text()), " was not provided"));
    scope.names.set(names[i], *std::move(value));
  }
  for (const auto& [name, value] : given.named.items)
    if (named < given.named.items.size() && scope.names.find(name) == nullptr)
      fail(absl::StrCat("takes no keyword argument ", io::shown(name.text())));
  scope.hide(macro.unset);
  const size_t first_default = names.size() - macro.defaults.size();
  for (size_t i = std::max(first_default, given.positional.size()); i < names.size(); ++i)
    if (given.named.find(names[i]) == nullptr)
      scope.names.set(names[i], evaluate(*macro.defaults[i - first_default], scope));
  Flow flow = Flow::kOn;
  Text text = captured(macro.body, scope, flow);
  line_ = line;
  return Value::string(std::move(text));
}

// ---- Template

struct Template::Impl {
  std::string name;
  Parsed parsed;
  size_t bytes = 0;  // bytes of the tree
};

Template::Template(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Template Template::parse(std::string_view source, std::string name, const Limits& limits) {
  auto impl = std::make_unique<Impl>();
  impl->name = std::move(name);
  Budget budget(limits);
  try {
    if (source.size() > limits.source)
      throw TemplateError(1, absl::StrCat("the template has ", source.size(), " bytes; the limit is ", limits.source));
    if (!io::is_valid_utf8(source)) throw TemplateError(1, "the template is not valid UTF-8");
    impl->parsed = parse_template(source);
  } catch (const TemplateError& error) {
    throw TemplateError(impl->name, error.line(), error.reason());
  }
  impl->bytes = budget.held();
  return Template(std::move(impl));
}

Rendered Template::render(const std::vector<std::pair<std::string, Value>>& variables,
                          const RenderOptions& options) const {
  Budget budget(options.limits, impl_->bytes, options.stop, options.used);
  int line = 1;
  try {
    return Evaluator(options, line).run(impl_->parsed, variables);
  } catch (const Error& error) {
    if (budget.cancelled()) throw TemplateCancelled(impl_->name, line, error.what());
    throw TemplateError(impl_->name, line, error.what());
  }
}

bool Template::has_generation() const { return impl_->parsed.has_generation; }
const std::string& Template::literal_text() const { return impl_->parsed.literals; }

}  // namespace rondo::text::jinja
