// Values of a template: Python's, as far as chat templates see them.
//
// Containers are immutable and so never hold themselves. Objects that a template can change (namespaces) belong to the
// evaluator: values only point to them, so nothing leaks in a cycle. Nesting is bounded by kMaxNesting, which bounds
// the recursion of printing, comparing and freeing.
// Thread safety: values of data (all kinds up to kRange) may be read from several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rondo/runtime/hash_map.h"
#include "rondo/runtime/io/json.h"

namespace rondo::text::jinja {

struct Macro;
struct LoopState;
class Value;
using Values = std::vector<Value>;

enum class Kind : uint8_t {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kView,  // dict.keys(), values(), items()
  kRange,
  kIterator,  // what Python computes item by item, once: map(), select(), reversed()
  kNamespace,
  kLoop,
  kMacro,
  kFunction,  // a global of the template language
  kMethod,    // "...".strip, not yet called
};

inline constexpr int kMaxNesting = 100;   // containers within containers
inline constexpr int kMaxIterators = 24;  // map() of map() of ...

class Value {
 public:
  struct Sequence {
    Values items;
    const char* view = "";  // kView: its Python name
  };
  struct Dict;
  struct Range {
    int64_t start = 0, stop = 0, step = 1;
    int64_t size() const;
  };
  struct Iterator {
    std::function<bool(Value&)> next;  // false: no more
    const char* python_name = "generator";
  };
  using NamespaceFields = std::vector<std::pair<std::string, Value>>;
  struct Method;

  Value() = default;  // undefined, without a reason
  // `reason` is the error of using it.
  static Value undefined(std::string reason, bool unsafe = false);
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool b);
  static Value integer(int64_t i);
  static Value real(double d);
  // REQUIRES: valid UTF-8.
  static Value string(std::string text, bool markup = false);
  static Value list(Values items) { return sequence(Kind::kList, std::move(items), ""); }
  static Value tuple(Values items) { return sequence(Kind::kTuple, std::move(items), ""); }
  static Value view(Values items, const char* name) { return sequence(Kind::kView, std::move(items), name); }
  // Later values of a key replace earlier ones, in place. Throws Error for a key that Python cannot hash.
  static Value dict(std::vector<std::pair<Value, Value>> items);
  static Value range(int64_t start, int64_t stop, int64_t step);
  // `held`: the values that `next` keeps, which count as nested in the iterator.
  static Value iterator(std::function<bool(Value&)> next, const Values& held, const char* python_name = "generator");
  static Value name_space(NamespaceFields* fields);
  static Value loop(std::shared_ptr<LoopState> state);
  static Value macro(const Macro* node);
  static Value function(std::string_view name);
  static Value method(Value self, std::string name);
  // A JSON text. Throws FileError, which names `path`: malformed, too deep, or an integer beyond 64 bits.
  static Value from_json(const std::string& path, std::string_view json);
  static Value from_json(io::JsonReader& json, int depth = 0);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_number() const { return kind_ == Kind::kBool || kind_ == Kind::kInt || kind_ == Kind::kFloat; }
  bool is_integral() const { return kind_ == Kind::kBool || kind_ == Kind::kInt; }
  bool is_markup() const { return markup_; }
  bool is_unsafe() const { return unsafe_; }
  int depth() const { return depth_; }

  // REQUIRES: of that kind; integral() also of a bool, number() of any number.
  int64_t integral() const { return integer_; }
  double number() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_); }
  const std::string& text() const { return *static_cast<const std::string*>(object_.get()); }
  const Values& items() const { return static_cast<const Sequence*>(object_.get())->items; }
  const char* view_name() const { return static_cast<const Sequence*>(object_.get())->view; }
  const Dict& dict() const { return *static_cast<const Dict*>(object_.get()); }
  const Range& range() const { return *static_cast<const Range*>(object_.get()); }
  Iterator& iterator() const { return *static_cast<Iterator*>(object_.get()); }
  NamespaceFields& fields() const { return *static_cast<NamespaceFields*>(object_.get()); }
  LoopState& loop() const { return *static_cast<LoopState*>(object_.get()); }
  const Macro& macro() const { return *static_cast<const Macro*>(object_.get()); }
  const Method& method() const { return *static_cast<const Method*>(object_.get()); }
  // kFunction's name.
  const std::string& function() const { return text(); }
  // Whether two values are the same object, for `is sameas`.
  bool same_object(const Value& other) const;

  // Python's name of the type, for messages.
  std::string type_name() const;
  // The message for a use of an undefined value.
  std::string reason() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  static Value sequence(Kind kind, Values items, const char* name);

  Kind kind_ = Kind::kUndefined;
  bool markup_ = false, unsafe_ = false;
  uint8_t depth_ = 0;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<void> object_;
};

struct Value::Dict {
  std::vector<std::pair<Value, Value>> items;
  HashMap<std::string_view, size_t> names;  // of keys that are strings
  // Null if it has no such key.
  const Value* find(std::string_view name) const;
  const Value* find(const Value& key) const;
};

struct Value::Method {
  Value self;
  std::string name;
};

// The steps that a rendering has left: every evaluation, item and 32 bytes of text is a step. Values shared by other
// values can make small objects whose comparison never ends, so the functions below count too.
class Budget {
 public:
  // In force on this thread until it is destroyed.
  explicit Budget(uint64_t steps) : left_(steps), outer_(current_) { current_ = this; }
  ~Budget() { current_ = outer_; }
  Budget(const Budget&) = delete;
  Budget& operator=(const Budget&) = delete;
  // Throws Error if nothing is left. Without a budget: does nothing.
  static void spend(uint64_t steps) {
    if (current_ == nullptr) return;
    if (steps > current_->left_) fail();
    current_->left_ -= steps;
  }
  static void spend_bytes(size_t bytes) { spend(1 + bytes / 32); }

 private:
  [[noreturn]] static void fail();
  uint64_t left_;
  Budget* const outer_;
  static inline thread_local Budget* current_ = nullptr;
};

// ---- What Python does with values. All throw Error with Python's reason, without a line.

bool is_true(const Value& value);
// The same for an argument that may be left out.
inline bool is_true(const std::optional<Value>& value, bool unset) { return value ? is_true(*value) : unset; }
// ==, which also compares numbers of different types.
bool equals(const Value& a, const Value& b);
// a < b. Throws for types that have no order.
bool is_less(const Value& a, const Value& b);
// Whether it can be a key of a dict.
bool is_hashable(const Value& value);
// str() and repr(). Throw for values whose text is an address, and for results beyond `most` bytes.
std::string str(const Value& value, size_t most);
void append_repr(std::string& out, const Value& value, size_t most);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false, multiline = false;
  std::string indent{}, item_separator = ", ", key_separator = ": ";
};
// json.dumps(). Throws Error for values that JSON cannot express, and for results beyond `most` bytes.
void append_json(std::string& out, const Value& value, const JsonStyle& style, size_t most, int level = 0);

}  // namespace rondo::text::jinja
