#include "rondo/runtime/text/jinja/evaluator.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/utf8.h"
#include "rondo/runtime/text/jinja/depth.h"
#include "rondo/runtime/text/jinja/parser.h"

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
  // Python has to draw all that is left to know.
  Values rest;
  for (Value drawn; !ended;) {
    Budget::spend(1);
    if (iterator.iterator().next(drawn)) rest.push_back(std::move(drawn));
    else ended = true;
  }
  const auto left = static_cast<int64_t>(rest.size());
  length = left + index0 + 1 + (after ? 1 : 0);
  ended = false;
  iterator = Value::iterator(
      [rest = std::move(rest), at = size_t{0}](Value& out) mutable {
        if (at >= rest.size()) return false;
        out = rest[at++];
        return true;
      },
      {});
  return *length;
}

// ---- Statements

Evaluator::Evaluator(const std::vector<std::pair<std::string, Value>>& variables, const RenderOptions& options)
    : variables_(variables), options_(options) {}

Rendered Evaluator::run(const Body& body) {
  const Budget budget(options_.limits.steps);
  try {
    run_body(body, root_);
  } catch (const TemplateError&) {
    throw;
  } catch (const FileError&) {
    throw;
  } catch (const Error& error) {
    throw TemplateError(line_, error.what());
  }
  // Values that namespaces hold may point to other namespaces.
  root_.names.clear();
  for (Value::NamespaceFields& fields : namespaces_) fields.clear();
  return std::move(rendered_);
}

void Evaluator::write(std::string_view text) {
  Budget::spend_bytes(text.size());
  check_size(out_->size() + text.size());
  *out_ += text;
}

void Evaluator::check_size(uint64_t bytes) const {
  if (bytes > options_.limits.text)
    throw Error(absl::StrCat("a text of ", bytes, " bytes is longer than the limit of ", options_.limits.text));
}

Evaluator::Flow Evaluator::run_body(const Body& body, Scope& scope) {
  for (const auto& statement : body)
    if (const Flow flow = run_statement(*statement, scope); flow != Flow::kOn) return flow;
  return Flow::kOn;
}

Evaluator::Flow Evaluator::run_statement(const Statement& statement, Scope& scope) {
  const Depth depth(*this, statement.line);
  Budget::spend(1);
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
      Value value = Value::string(captured(statement.body, scope, flow));
      if (flow != Flow::kOn) return flow;
      if (statement.expression != nullptr) {
        // The filters draw from what the body made, under a name that no template can write.
        Scope inner{.outer = &scope};
        inner.names.emplace_back("", std::move(value));
        value = evaluate(*statement.expression, inner);
      }
      if (statement.type == Statement::kSetBlock) assign(statement.target, std::move(value), scope);
      else write(str(value));
      return Flow::kOn;
    }
    case Statement::kWith: {
      Scope inner{.outer = &scope};
      for (const auto& [target, value] : statement.assignments) assign(target, evaluate(*value, scope), inner);
      return run_body(statement.body, inner);
    }
    case Statement::kMacro: store(statement.macro->name, Value::macro(statement.macro.get()), scope); return Flow::kOn;
    case Statement::kGeneration: run_generation(statement, scope); return Flow::kOn;
    case Statement::kBreak: return Flow::kBreak;
    case Statement::kContinue: return Flow::kContinue;
  }
  return Flow::kOn;
}

std::string Evaluator::captured(const Body& body, Scope& scope, Flow& flow) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  Scope inner{.outer = &scope};
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
  if (tracked && (out_ != &rendered_.text || in_generation_))
    throw Error(
        "a generation block inside a macro, a set, a filter or another generation block has no place in the text "
        "that is known; put it around the call");
  in_generation_ = true;
  const size_t begin = rendered_.text.size();
  Flow flow = Flow::kOn;
  const std::string text = captured(statement.body, scope, flow);
  in_generation_ = false;
  write(text);
  if (tracked) rendered_.generation.emplace_back(begin, begin + text.size());
}

Evaluator::Flow Evaluator::run_for(const Statement& statement, Scope& scope) {
  auto loop = std::make_shared<LoopState>();
  loop->iterable = evaluate(*statement.expression, scope);
  line_ = statement.line;
  loop->iterator = iterate(loop->iterable);
  if (statement.condition != nullptr) {
    // Asked item by item, when the loop comes to it, as Python's generators do.
    const Value source = std::exchange(loop->iterator, Value());
    loop->iterator = Value::iterator(
        [this, source, &statement, &scope](Value& out) {
          while (source.iterator().next(out)) {
            Budget::spend(1);
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
    Budget::spend(1);
    any = true;
    Scope inner{.outer = &scope};
    inner.names.emplace_back("loop", Value::loop(loop));
    assign(statement.target, *loop->current, inner);
    const Flow flow = run_body(statement.body, inner);
    if (flow == Flow::kBreak) break;
  }
  // A loop object that outlives the loop draws no more: the filter would read scopes that are gone.
  loop->ended = true;
  if (any) return Flow::kOn;
  Scope inner{.outer = &scope};
  return run_body(statement.otherwise, inner);
}

void Evaluator::assign(const Target& target, Value value, Scope& scope) {
  if (target.is_tuple) {
    const Values items = to_items(value);
    if (items.size() != target.parts.size())
      throw Error(absl::StrCat(items.size() < target.parts.size() ? "not enough" : "too many",
                               " values to unpack: expected ", target.parts.size(), ", got ", items.size()));
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i], scope);
    return;
  }
  if (!target.field.empty()) {
    const Value space = lookup(target.name, scope);
    if (!space.is(Kind::kNamespace))
      throw Error(absl::StrCat("cannot assign attribute on ", target.name, ": it is no namespace object"));
    if (target.field.starts_with('_')) throw Error("a namespace has no field that begins with \"_\"");
    if (value.is(Kind::kLoop)) throw Error("the loop object inside a namespace is not supported");
    Value::NamespaceFields& fields = space.fields();
    const auto found = std::find_if(fields.begin(), fields.end(),
                                    [&](const auto& field) { return field.first == target.field; });
    if (found == fields.end()) fields.emplace_back(target.field, std::move(value));
    else found->second = std::move(value);
    return;
  }
  store(target.name, std::move(value), scope);
}

void Evaluator::store(const std::string& name, Value value, Scope& scope) {
  for (auto& [known, old] : scope.names)
    if (known == name) {
      old = std::move(value);
      return;
    }
  scope.names.emplace_back(name, std::move(value));
}

Value Evaluator::call_macro(const Macro& macro, Given given) {
  const Depth depth(*this, line_);
  const int line = line_;
  const auto& names = macro.parameters;
  if (given.positional.size() > names.size())
    throw Error(absl::StrCat("macro '", macro.name, "' takes not more than ", names.size(), " argument(s)"));
  Scope scope{.outer = &root_};
  for (size_t i = 0; i < names.size(); ++i) {
    std::optional<Value> value;
    if (i < given.positional.size()) value = given.positional[i];
    for (auto& [name, named] : given.named)
      if (name == names[i]) {
        if (value) throw Error(absl::StrCat("macro '", macro.name, "' got two values for '", name, "'"));
        value = std::move(named);
        name.clear();
      }
    const size_t first_default = names.size() - macro.defaults.size();
    if (!value && i >= first_default) value = evaluate(*macro.defaults[i - first_default], scope);
    if (!value) value = Value::undefined(absl::StrCat("parameter '", names[i], "' was not provided"));
    scope.names.emplace_back(names[i], *std::move(value));
  }
  for (const auto& [name, value] : given.named)
    if (!name.empty()) throw Error(absl::StrCat("macro '", macro.name, "' takes no keyword argument '", name, "'"));
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  try {
    run_body(macro.body, scope);
  } catch (...) {
    out_ = outer;
    throw;
  }
  out_ = outer;
  line_ = line;
  return Value::string(std::move(text));
}

// ---- Template

struct Template::Impl {
  std::string name;
  Parsed parsed;
};

Template::Template(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Template Template::parse(std::string_view source, std::string name, const Limits& limits) {
  auto impl = std::make_unique<Impl>();
  impl->name = std::move(name);
  try {
    if (source.size() > limits.source)
      throw TemplateError(1, absl::StrCat("the template has ", source.size(), " bytes; the limit is ", limits.source));
    if (!io::is_valid_utf8(source)) throw TemplateError(1, "the template is not valid UTF-8");
    impl->parsed = parse_template(source);
  } catch (const TemplateError& error) {
    throw TemplateError(impl->name, error.line(), error.reason());
  }
  return Template(std::move(impl));
}

Rendered Template::render(const std::vector<std::pair<std::string, Value>>& variables,
                          const RenderOptions& options) const {
  try {
    return Evaluator(variables, options).run(impl_->parsed.body);
  } catch (const TemplateError& error) {
    throw TemplateError(impl_->name, error.line(), error.reason());
  }
}

bool Template::has_generation() const { return impl_->parsed.has_generation; }
const std::string& Template::literal_text() const { return impl_->parsed.literals; }

}  // namespace rondo::text::jinja
