#include "rondo/runtime/chat/jinja/value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::text::jinja {
namespace {

uint8_t nested(int depth) {
  if (depth >= kMaxNesting) throw Error(absl::StrCat("a value is nested more than ", kMaxNesting, " deep"));
  return static_cast<uint8_t>(depth + 1);
}

// Throws for the one kind of value that a template must not keep inside of others: the state of a loop.
void check_storable(const Value& value) {
  if (value.is(Kind::kLoop)) throw Error("the loop object inside another value is not supported");
}

}  // namespace

int64_t Value::Range::size() const {
  if (step > 0) return start < stop ? (stop - start - 1) / step + 1 : 0;
  return start > stop ? (start - stop - 1) / -step + 1 : 0;
}

Value Value::undefined(std::string_view reason, bool unsafe) {
  Value out(Kind::kUndefined);
  out.object_ = shared<Text>(reason);
  out.unsafe_ = unsafe;
  return out;
}
Value Value::boolean(bool b) {
  Value out(Kind::kBool);
  out.integer_ = b ? 1 : 0;
  return out;
}
Value Value::integer(int64_t i) {
  Value out(Kind::kInt);
  out.integer_ = i;
  return out;
}
Value Value::real(double d) {
  Value out(Kind::kFloat);
  out.real_ = d;
  return out;
}
Value Value::string(Text&& text, bool markup) {
  Value out(Kind::kString);
  out.object_ = shared<Text>(std::move(text));
  out.markup_ = markup;
  return out;
}

Value Value::sequence(Kind kind, Values items, const char* name) {
  Value out(kind);
  int depth = 0;
  for (const Value& item : items) {
    check_storable(item);
    depth = std::max<int>(depth, item.depth_);
  }
  out.depth_ = nested(depth);
  out.object_ = shared<Sequence>(Sequence{std::move(items), name});
  return out;
}

Value Value::dict(Items items) {
  auto made = shared<Dict>();
  int depth = 0;
  made->items.reserve(items.size());
  for (auto& [key, value] : items) {
    check_storable(value);
    if (!is_hashable(key)) throw Error("unhashable type: '" + key.type_name() + "'");
    depth = std::max<int>({depth, key.depth_, value.depth_});
    made->set(std::move(key), std::move(value));
  }
  Value out(Kind::kDict);
  out.depth_ = nested(depth);
  out.object_ = std::move(made);
  return out;
}

Value Value::range(int64_t start, int64_t stop, int64_t step) {
  Value out(Kind::kRange);
  out.object_ = shared<Range>(Range{start, stop, step});
  return out;
}

Value Value::iterator_of(std::shared_ptr<Iterator> iterator, const Values& held) {
  Value out(Kind::kIterator);
  int64_t before = 0;
  int depth = 0;
  for (const Value& value : held) {
    if (value.is(Kind::kIterator)) before = std::max(before, value.integer_);
    depth = std::max<int>(depth, value.depth_);
  }
  if (before + 1 >= kMaxIterators)
    throw Error(absl::StrCat("more than ", kMaxIterators, " filters draw from one another; put |list between them"));
  out.integer_ = before + 1;
  out.depth_ = nested(depth);
  out.object_ = std::move(iterator);
  return out;
}

Value Value::name_space(Dict* fields) {
  Value out(Kind::kNamespace);
  out.object_ = std::shared_ptr<void>(std::shared_ptr<void>(), fields);
  return out;
}
Value Value::loop(std::shared_ptr<LoopState> state) {
  Value out(Kind::kLoop);
  out.object_ = std::move(state);
  return out;
}
Value Value::macro(const Macro* node) {
  Value out(Kind::kMacro);
  out.object_ = std::shared_ptr<void>(std::shared_ptr<void>(), const_cast<Macro*>(node));
  return out;
}
Value Value::function(std::string_view name) {
  Value out(Kind::kFunction);
  out.object_ = shared<Text>(name);
  return out;
}
Value Value::method(Value self, std::string_view name) {
  Value out(Kind::kMethod);
  out.depth_ = nested(self.depth_);
  out.object_ = shared<Method>(Method{std::move(self), Text(name)});
  return out;
}

Value Value::from_json(const std::string& path, std::string_view text) {
  io::JsonReader json(path, text);
  Value out = from_json(json);
  json.finish();
  return out;
}

Value Value::from_json(io::JsonReader& json, int depth) {
  if (depth >= kMaxNesting / 2) json.fail(absl::StrCat("a value is nested more than ", kMaxNesting / 2, " deep"));
  switch (json.peek()) {
    case '"': return string(json.string());
    case '{': {
      Items items;
      json.object([&](std::string& key) {
        Value name = string(key);
        items.emplace_back(std::move(name), from_json(json, depth + 1));
      });
      return dict(std::move(items));
    }
    case '[': {
      Values items;
      json.array([&] { items.push_back(from_json(json, depth + 1)); });
      return list(std::move(items));
    }
    case 't':
    case 'f': return boolean(json.boolean());
    case 'n': json.skip(); return none();
    default: break;
  }
  const std::string_view digits = json.number();
  if (digits.find_first_of(".eE") == std::string_view::npos) {
    int64_t i = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), i);
    if (error != std::errc()) json.fail("an integer beyond 64 bits is not supported");
    return integer(i);
  }
  double d = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), d);
  if (error == std::errc::result_out_of_range) {  // beyond the range of a double: infinity or 0, as in Python
    const bool tiny = digits.find_first_of("eE") != std::string_view::npos &&
                      digits[digits.find_first_of("eE") + 1] == '-';
    d = tiny ? 0 : HUGE_VAL;
    if (digits[0] == '-') d = -d;
  }
  return real(d);
}

bool Value::same_object(const Value& other) const {
  if (kind_ != other.kind_) return false;
  if (object_ != nullptr || other.object_ != nullptr) return object_ == other.object_;
  return kind_ == Kind::kFloat ? real_ == other.real_ : integer_ == other.integer_;
}

std::string Value::type_name() const {
  switch (kind_) {
    case Kind::kUndefined: return "Undefined";
    case Kind::kNone: return "NoneType";
    case Kind::kBool: return "bool";
    case Kind::kInt: return "int";
    case Kind::kFloat: return "float";
    case Kind::kString: return markup_ ? "Markup" : "str";
    case Kind::kList: return "list";
    case Kind::kTuple: return "tuple";
    case Kind::kDict: return "dict";
    case Kind::kView: return view_name();
    case Kind::kRange: return "range";
    case Kind::kIterator: return iterator().python_name;
    case Kind::kNamespace: return "Namespace";
    case Kind::kLoop: return "LoopContext";
    case Kind::kMacro: return "Macro";
    case Kind::kFunction: return "function";
    case Kind::kMethod: return "builtin_function_or_method";
  }
  return "";
}

std::string Value::reason() const { return object_ == nullptr ? "the value is undefined" : std::string(text()); }

// ---- Keys

namespace {

bool same_text(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  Budget::read(a.size());
  return a == b;
}

bool same_key(const Value& key, std::string_view name) { return key.is_string() && same_text(key.text(), name); }
bool same_key(const Value& key, const Value& other) { return equals(key, other); }

template <class T> size_t hashed(const T& value) { return absl::Hash<T>()(value); }

size_t hash_of(std::string_view name) {
  Budget::read(name.size());
  return hashed(name);
}
// Returns a hash that is equal for keys that are equal, whatever their types.
size_t hash_of(const Value& key) {
  Budget::step();
  switch (key.kind()) {
    case Kind::kBool:
    case Kind::kInt: return hashed(key.integral());
    case Kind::kFloat: {
      const double number = key.number();
      if (number == std::floor(number) && std::abs(number) < 0x1p63) return hashed(static_cast<int64_t>(number));
      return hashed(number);
    }
    case Kind::kString: return hash_of(key.text());
    case Kind::kTuple: {
      size_t hash = key.items().size();
      for (const Value& item : key.items()) hash = hashed(std::pair(hash, hash_of(item)));
      return hash;
    }
    case Kind::kRange: return hashed(key.range().size());
    default: return static_cast<size_t>(key.kind());
  }
}

constexpr size_t kFew = 8, kNowhere = SIZE_MAX;

}  // namespace

template <class Key> size_t Value::Dict::place_of(const Key& key) const {
  Budget::step();
  if (slots_.empty()) {
    for (size_t place = 0; place < items.size(); ++place)
      if (same_key(items[place].first, key)) return place;
    return kNowhere;
  }
  const auto hash = static_cast<uint32_t>(hash_of(key));
  for (size_t at = hash;; ++at) {
    const Slot& slot = slots_[at & (slots_.size() - 1)];
    if (slot.place == 0) return kNowhere;
    Budget::steps(1);
    if (slot.hash == hash && same_key(items[slot.place - 1].first, key)) return slot.place - 1;
  }
}

void Value::Dict::put(uint32_t hash, size_t place) {
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].place != 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {.hash = hash, .place = static_cast<uint32_t>(place + 1)};
}

const Value* Value::Dict::find(std::string_view name) const {
  const size_t place = place_of(name);
  return place == kNowhere ? nullptr : &items[place].second;
}

const Value* Value::Dict::find(const Value& key) const {
  const size_t place = place_of(key);
  return place == kNowhere ? nullptr : &items[place].second;
}

bool Value::Dict::set(Value key, Value value) {
  if (const size_t place = place_of(key); place != kNowhere) {
    items[place].second = std::move(value);
    return false;
  }
  items.emplace_back(std::move(key), std::move(value));
  if (items.size() <= kFew) return true;
  if (2 * items.size() <= slots_.size()) {
    put(static_cast<uint32_t>(hash_of(items.back().first)), items.size() - 1);
    return true;
  }
  slots_ = List<Slot>(std::max<size_t>(4 * kFew, 2 * slots_.size()));
  for (size_t place = 0; place < items.size(); ++place) put(static_cast<uint32_t>(hash_of(items[place].first)), place);
  return true;
}

// ---- Truth, equality, order

bool is_true(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return false;
    case Kind::kBool:
    case Kind::kInt: return value.integral() != 0;
    case Kind::kFloat: return value.number() != 0;
    case Kind::kString: return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kView: return !value.items().empty();
    case Kind::kDict: return !value.dict().items.empty();
    case Kind::kRange: return value.range().size() > 0;
    default: return true;
  }
}

namespace {

// Compares exactly, also where a double cannot hold the integer.
int compare_numbers(const Value& a, const Value& b, bool& ordered) {
  ordered = true;
  if (a.is_integral() && b.is_integral()) return a.integral() < b.integral() ? -1 : a.integral() > b.integral() ? 1 : 0;
  const long double x = a.is(Kind::kFloat) ? static_cast<long double>(a.number())
                                           : static_cast<long double>(a.integral());
  const long double y = b.is(Kind::kFloat) ? static_cast<long double>(b.number())
                                           : static_cast<long double>(b.integral());
  ordered = !(std::isnan(x) || std::isnan(y));
  return x < y ? -1 : x > y ? 1 : 0;
}

bool is_sequence(const Value& value) { return value.is(Kind::kList) || value.is(Kind::kTuple); }

}  // namespace

bool equals(const Value& a, const Value& b) {
  Budget::step();
  if (a.is_number() && b.is_number()) {
    bool ordered = true;
    const int order = compare_numbers(a, b, ordered);
    return ordered && order == 0;
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone: return true;
    case Kind::kString: return same_text(a.text(), b.text());
    case Kind::kList:
    case Kind::kTuple:
      if (a.items().size() != b.items().size()) return false;
      Budget::steps(a.items().size());
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(),
                        [](const Value& x, const Value& y) { return x.same_object(y) || equals(x, y); });
    case Kind::kDict: {
      const Value::Dict &x = a.dict(), &y = b.dict();
      return x.items.size() == y.items.size() && std::all_of(x.items.begin(), x.items.end(), [&](const auto& item) {
               const Value* other = y.find(item.first);
               return other != nullptr && equals(item.second, *other);
             });
    }
    case Kind::kView: throw Error(absl::StrCat("comparing ", a.type_name(), " is not supported"));
    case Kind::kRange: {
      const Value::Range &x = a.range(), &y = b.range();
      return x.size() == y.size() && (x.size() == 0 || (x.start == y.start && (x.size() == 1 || x.step == y.step)));
    }
    default: return a.same_object(b);
  }
}

bool is_less(const Value& a, const Value& b) {
  Budget::step();
  if (a.is_number() && b.is_number()) {
    bool ordered = true;
    return compare_numbers(a, b, ordered) < 0 && ordered;
  }
  if (a.is_string() && b.is_string()) {
    Budget::read(std::min(a.text().size(), b.text().size()));
    return a.text() < b.text();  // UTF-8 keeps the order of code points
  }
  if (is_sequence(a) && a.kind() == b.kind()) {
    const Values &x = a.items(), &y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!equals(x[i], y[i])) return is_less(x[i], y[i]);
    return x.size() < y.size();
  }
  for (const Value* value : {&a, &b})
    if (value->is_undefined()) throw Error(value->reason());
  throw Error(absl::StrCat("'<' not supported between instances of '", a.type_name(), "' and '", b.type_name(), "'"));
}

bool is_hashable(const Value& value) {
  Budget::step();
  if (value.is(Kind::kTuple)) return std::all_of(value.items().begin(), value.items().end(), is_hashable);
  return value.kind() < Kind::kString || value.is_string() || value.is(Kind::kRange);
}

}  // namespace rondo::text::jinja
