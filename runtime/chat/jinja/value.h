// Values of a template: Python's, as far as chat templates see them.
//
// Containers are immutable and so never hold themselves. Objects that a template can change (namespaces) belong to the
// evaluator: values only point to them, so no cycle can leak memory. Nesting is bounded by kMaxNesting, which bounds
// the recursion of printing, comparing and freeing. All memory and all work is charged to the budget in force. Thread
// safety: values of data (all kinds up to kRange) may be read from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "rondo/runtime/chat/jinja/budget.h"
#include "rondo/runtime/io/json.h"

namespace rondo::text::jinja {

struct Macro;
struct LoopState;
class Value;
using Values = List<Value>;

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
  kIterator,  // gives its items one by one, and only once: map(), select(), reversed()
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
    const char* view = "";  // kView: the view's name in Python
  };
  struct Dict;
  struct Range {
    int64_t start = 0, stop = 0, step = 1;
    int64_t size() const;
  };
  class Iterator;
  using Items = List<std::pair<Value, Value>>;
  struct Method;

  Value() = default;  // undefined, without a reason
  // Makes an undefined value. `reason`: the message of the error that a use of this value raises.
  static Value undefined(std::string_view reason, bool unsafe = false);
  static Value none() { return Value(Kind::kNone); }
  static Value boolean(bool b);
  static Value integer(int64_t i);
  static Value real(double d);
  // REQUIRES: valid UTF-8.
  static Value string(Text&& text, bool markup = false);
  static Value string(std::string_view text, bool markup = false) { return string(Text(text), markup); }
  static Value string(const char* text, bool markup = false) { return string(Text(text), markup); }
  static Value list(Values items) { return sequence(Kind::kList, std::move(items), ""); }
  static Value tuple(Values items) { return sequence(Kind::kTuple, std::move(items), ""); }
  static Value view(Values items, const char* name) { return sequence(Kind::kView, std::move(items), name); }
  // Makes a dict. Later values of a key replace earlier ones, in place. Throws Error for a key that Python cannot hash.
  static Value dict(Items items);
  static Value range(int64_t start, int64_t stop, int64_t step);
  // An iterator that gets its items from `draw`, a bool(Value&) that returns false at the end. `held`: the values that
  // `draw` keeps; they count as nested in the iterator.
  template <class Draw>
  static Value iterator(Draw draw, const Values& held = {}, const char* python_name = "generator");
  static Value name_space(Dict* fields);
  static Value loop(std::shared_ptr<LoopState> state);
  static Value macro(const Macro* node);
  static Value function(std::string_view name);
  static Value method(Value self, std::string_view name);
  // Parses JSON. Throws FileError, which names `path`, if the text is malformed or nested too deep, or has an integer
  // beyond 64 bits.
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

  // REQUIRES: the value is of the kind that the function reads. integral() also reads a bool, number() any number.
  int64_t integral() const { return integer_; }
  double number() const { return kind_ == Kind::kFloat ? real_ : static_cast<double>(integer_); }
  std::string_view text() const { return *static_cast<const Text*>(object_.get()); }
  const Values& items() const { return static_cast<const Sequence*>(object_.get())->items; }
  const char* view_name() const { return static_cast<const Sequence*>(object_.get())->view; }
  const Dict& dict() const { return *static_cast<const Dict*>(object_.get()); }
  const Range& range() const { return *static_cast<const Range*>(object_.get()); }
  Iterator& iterator() const { return *static_cast<Iterator*>(object_.get()); }
  Dict& fields() const { return *static_cast<Dict*>(object_.get()); }
  LoopState& loop() const { return *static_cast<LoopState*>(object_.get()); }
  const Macro& macro() const { return *static_cast<const Macro*>(object_.get()); }
  const Method& method() const { return *static_cast<const Method*>(object_.get()); }
  // Returns the name of a kFunction.
  std::string_view function() const { return text(); }
  // True if the two values are the same object, for `is sameas`.
  bool same_object(const Value& other) const;

  // Returns Python's name of the type, for messages.
  std::string type_name() const;
  // Returns the message for a use of an undefined value.
  std::string reason() const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}
  static Value sequence(Kind kind, Values items, const char* name);
  static Value iterator_of(std::shared_ptr<Iterator> iterator, const Values& held);

  Kind kind_ = Kind::kUndefined;
  bool markup_ = false, unsafe_ = false;
  uint8_t depth_ = 0;
  union {
    int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<void> object_;
};

// A sequence that Python computes item by item.
class Value::Iterator {
 public:
  explicit Iterator(const char* name) : python_name(name) {}
  virtual ~Iterator() = default;
  // Returns false if there are no more items.
  bool next(Value& out) {
    Budget::step();
    return draw(out);
  }
  const char* const python_name;

 private:
  virtual bool draw(Value& out) = 0;
};

template <class Draw> Value Value::iterator(Draw draw, const Values& held, const char* python_name) {
  struct Drawing final : Iterator {
    Drawing(Draw&& from, const char* name) : Iterator(name), drawn_by(std::move(from)) {}
    bool draw(Value& out) override { return drawn_by(out); }
    Draw drawn_by;
  };
  return iterator_of(shared<Drawing>(std::move(draw), python_name), held);
}

// Maps keys to values, in insertion order. Also holds the variables of a scope and the fields of a namespace.
struct Value::Dict {
  Items items;
  // Returns null if there is no such key. REQUIRES: a hashable key.
  const Value* find(std::string_view name) const;
  const Value* find(const Value& key) const;
  // Sets the value of `key`. Returns true if the key is new.
  bool set(Value key, Value value);

 private:
  struct Slot {
    uint32_t hash = 0, place = 0;  // the item's index + 1; 0: free
  };
  template <class Key> size_t place_of(const Key& key) const;
  void put(uint32_t hash, size_t place);

  List<Slot> slots_;  // size: a power of two; at most half full; empty for a few items, which are compared one by one
};

struct Value::Method {
  Value self;
  Text name;
};

// ---- Python's operations on values. All throw Error with Python's message, without a line number.

bool is_true(const Value& value);
// As is_true(), for an optional argument. Returns `unset` if it was not given.
inline bool is_true(const std::optional<Value>& value, bool unset) { return value ? is_true(*value) : unset; }
// As Python's ==, which also compares numbers of different types.
bool equals(const Value& a, const Value& b);
// As Python's a < b. Throws Error for types that have no order.
bool is_less(const Value& a, const Value& b);
// True if `value` can be a key of a dict.
bool is_hashable(const Value& value);
// As Python's str() and repr(). Throw Error for values that Python prints as an address.
Text str(const Value& value);
void append_repr(Text& out, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false, multiline = false;
  Text indent{}, item_separator = ", ", key_separator = ": ";
};
// Appends what json.dumps() gives. Throws Error for values that JSON cannot express.
void append_json(Text& out, const Value& value, const JsonStyle& style, int level = 0);
// Returns a text of a template, cut to a readable length for a message.
std::string abbreviated(std::string_view text);

}  // namespace rondo::text::jinja
