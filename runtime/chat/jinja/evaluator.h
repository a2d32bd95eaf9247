// Runs a parsed template. One Evaluator renders once.
//
// Names are looked up as Jinja's compiled templates do: in the current scope, the scopes around it, the
// variables that render() was given, and the globals of the language. Loops, blocks and macros have scopes of
// their own; an if has none.
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/runtime/chat/jinja/syntax.h"
#include "rondo/runtime/chat/jinja/template.h"
#include "rondo/runtime/chat/jinja/value.h"

namespace rondo::text::jinja {

// The arguments of a call.
struct Given {
  Values positional{};
  Value::Dict named{};  // keys are strings
};

// The state of a running loop. Templates read it through the variable `loop`.
struct LoopState {
  Value iterable;
  Value iterator;  // kIterator
  int64_t index0 = -1;
  std::optional<int64_t> length;
  std::optional<Value> current, before, after;
  bool ended = false;
  std::optional<Value> last_changed;

  // Moves to the next item; false if there is none.
  bool next();
  const std::optional<Value>& peek();
  int64_t count();
};

class Evaluator {
 public:
  // `line` always holds the line that is being evaluated. REQUIRES: a Budget in force while this object lives.
  Evaluator(const RenderOptions& options, int& line) : options_(options), line_(line) {}
  // Renders the template with the given variables. Throws Error.
  Rendered run(const Parsed& parsed, const std::vector<std::pair<std::string, Value>>& variables);

 private:
  struct Scope {
    Scope* outer = nullptr;
    Value::Dict names{};
    // Makes the names in `unset` undefined in this scope until they are set: Statement::unset.
    Scope& hide(const Values& unset);
  };
  enum class Flow { kOn, kBreak, kContinue };

  // ---- Statements (evaluator.cc)
  Flow run_body(const Body& body, Scope& scope);
  Flow run_statement(const Statement& statement, Scope& scope);
  Flow run_for(const Statement& statement, Scope& scope);
  void run_generation(const Statement& statement, Scope& scope);
  // Returns the text that a body renders.
  Text captured(const Body& body, Scope& inner, Flow& flow);
  void write(std::string_view text);
  void assign(const Target& target, Value value, Scope& scope);
  Value call_macro(const Macro& macro, Given given);

  // ---- Expressions (expressions.cc)
  Value evaluate(const Expression& expression, Scope& scope);
  Value lookup(std::string_view name, const Scope& scope) const;
  Value evaluate_compare(const Expression& expression, Scope& scope);
  Value evaluate_slice(const Expression& expression, Scope& scope);
  Value evaluate_call(const Expression& expression, Scope& scope);
  Value evaluate_concat(const Expression& expression, Scope& scope);
  Given evaluate_arguments(const Arguments& arguments, Scope& scope);
  Value arithmetic(Expression::Operator op, const Value& a, const Value& b);
  Value repeated(const Value& value, int64_t times);
  Value percent_format(const Value& format, const Value& values);
  bool contains(const Value& container, const Value& value);
  Value call(const Value& callee, Given given);

  // ---- Access (access.cc). As in jinja2's sandbox, attribute() prefers methods, item() the items of a container.
  Value attribute(const Value& value, std::string_view name);
  Value item(const Value& value, const Value& key);
  std::optional<Value> python_attribute(const Value& value, std::string_view name);
  std::optional<Value> subscript(const Value& value, const Value& key);
  // Looks up a path such as "a.b.0", for the filters map, sort, join ...
  Value path(const Value& value, const Value& names);

  // ---- Iteration (access.cc)
  // Returns an iterator (kIterator) over `value`. Throws Error if Python cannot iterate over it.
  Value iterate(const Value& value);
  Values to_items(const Value& value);
  int64_t length(const Value& value);

  // ---- Filters, tests, methods and functions (filters.cc, sequence_filters.cc, functions.cc, text_methods.cc)
  Value filter(std::string_view name, const Value& value, Given given);
  std::optional<Value> text_filter(std::string_view name, const Value& value, Given& given);
  std::optional<Value> number_filter(std::string_view name, const Value& value, Given& given);
  // The next three return nullopt if `name` is the name of another filter.
  std::optional<Value> sequence_filter(std::string_view name, const Value& value, Given& given);
  std::optional<Value> ordering_filter(std::string_view name, const Value& value, Given& given);
  std::optional<Value> position_filter(std::string_view name, const Value& value, Given& given);
  Value select(std::string_view name, const Value& value, Given& given);
  Value map(const Value& value, Given& given);
  template <class Change> Value mapped(const Value& value, const Values& held, Change change);
  Value unique(const Value& value, const Value& attribute_name, bool case_sensitive);
  bool test(std::string_view name, const Value& value, const Given& given);
  Value call_method(const Value& self, std::string_view name, Given given);
  Value call_text_method(std::string_view text, std::string_view name, Given given);
  // These two return nullopt if `name` is the name of another method.
  std::optional<Value> search_text(std::string_view text, std::string_view name, Given& given);
  std::optional<Value> pad_text(std::string_view text, std::string_view name, Given& given);
  Value call_function(std::string_view name, Given given);

  const RenderOptions& options_;
  const Value loop_name_ = Value::string("loop"), filtered_name_ = Value::string("");
  Value::Dict variables_;
  Scope root_;
  Text text_;
  Text* out_ = &text_;
  bool in_generation_ = false;
  List<std::pair<size_t, size_t>> generation_;
  int& line_;
  std::deque<Value::Dict, Charged<Value::Dict>> namespaces_;  // values hold pointers to the elements
};

// Returns the arguments of a call in the order of `names`; unset: not given. As in Python, throws Error if there are
// too many, if a name is unknown, or if one of the first `required` is missing.
using Bound = List<std::optional<Value>>;
Bound bind(Given given, std::initializer_list<const char*> names, size_t required = 0);
// Throws Error if a call of `name`, which takes no keyword arguments in Python, has one.
void refuse_named(std::string_view name, const Given& given);
// True if an optional argument was given and is not None.
inline bool given(const std::optional<Value>& value) { return value && !value->is_none(); }
// Returns the text of a string. Throws Error, with `what` in its message, if `value` is no string.
std::string_view need_text(const Value& value, const char* what);
// As Python's text.replace(from, to, most). most < 0: no limit.
Text replace_text(std::string_view text, std::string_view from, std::string_view to, int64_t most);
// Throws Error for a value that Python does not take as an integer.
int64_t to_integer(const Value& value);
bool is_global_function(std::string_view name);

}  // namespace rondo::text::jinja
