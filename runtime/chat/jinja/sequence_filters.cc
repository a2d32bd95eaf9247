// Filters on sequences and mappings, and tests.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/chat/jinja/evaluator.h"
#include "rondo/runtime/chat/jinja/python_text.h"
#include "rondo/runtime/io/json.h"

namespace rondo::text::jinja {
namespace {

// Returns the form of a value that the filters sort, unique, min and max compare.
Value folded(const Value& value, bool case_sensitive) {
  return !case_sensitive && value.is_string() ? Value::string(to_lower_text(value.text())) : value;
}

// Returns an iterator over the list that `make` returns. `make` is called when the first item is requested.
template <class Make> Value deferred(Make make, const Values& held, const char* python_name = "generator") {
  return Value::iterator(
      [make = std::move(make), made = std::optional<Values>(), at = size_t{0}](Value& out) mutable {
        if (!made) made = make();
        if (at >= made->size()) return false;
        out = (*made)[at++];
        return true;
      },
      held, python_name);
}

// Sorts the items by key(item).
template <class Key> Value sorted(const Values& items, Key key, bool reverse) {
  Value::Items keyed;
  keyed.reserve(items.size());
  for (const Value& item : items) keyed.emplace_back(key(item), item);
  // Python keeps the order of equal items in a descending sort, too. So the items are reversed before the stable sort,
  // and the result after it.
  if (reverse) std::reverse(keyed.begin(), keyed.end());
  List<size_t> order(keyed.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return is_less(keyed[a].first, keyed[b].first); });
  if (reverse) std::reverse(order.begin(), order.end());
  Values out;
  out.reserve(order.size());
  for (const size_t i : order) out.push_back(std::move(keyed[i].second));
  return Value::list(std::move(out));
}

}  // namespace

Value Evaluator::unique(const Value& value, const Value& names, bool case_sensitive) {
  return deferred(
      [this, value, names, case_sensitive] {
        Value::Dict seen;
        Values out;
        const Value source = iterate(value);
        for (Value drawn; source.iterator().next(drawn);) {
          const Value key = folded(path(drawn, names), case_sensitive);
          if (!is_hashable(key)) throw Error("unhashable type: '" + key.type_name() + "'");
          if (seen.set(key, Value())) out.push_back(drawn);
        }
        return out;
      },
      {value, names});
}

template <class Change> Value Evaluator::mapped(const Value& value, const Values& held, Change change) {
  // As with Python's generators, the iteration over `value` starts when the first item is requested.
  return Value::iterator(
      [this, value, change = std::move(change), source = Value()](Value& out) mutable {
        if (!source.is(Kind::kIterator)) source = iterate(value);
        Value drawn;
        if (!source.iterator().next(drawn)) return false;
        out = change(drawn);
        return true;
      },
      held);
}

Value Evaluator::map(const Value& value, Given& arguments) {
  Values held = arguments.positional;
  held.push_back(value);
  for (const auto& [name, one] : arguments.named.items) held.push_back(one);
  if (!is_true(value)) return Value::iterator([](Value&) { return false; });
  if (arguments.positional.empty() && arguments.named.find("attribute") != nullptr) {
    const auto at = bind(std::move(arguments), {"attribute", "default"});
    const Value names = *at[0], unset = at[1].value_or(Value::none());
    if (!unset.is_none() && names.is_string() && names.text().find('.') != std::string::npos)
      throw Error("map() with a default and a path of several names is not supported");
    return mapped(value, held, [this, names, unset](const Value& item) {
      Value out = path(item, names);
      return out.is_undefined() && !unset.is_none() ? unset : out;
    });
  }
  if (arguments.positional.empty()) throw Error("map requires a filter argument");
  const Text name = str(arguments.positional[0]);
  Given rest = std::move(arguments);
  rest.positional.erase(rest.positional.begin());
  return mapped(value, held, [this, name, rest](const Value& item) { return filter(name, item, rest); });
}

// Runs the filters select, reject, selectattr and rejectattr.
Value Evaluator::select(std::string_view name, const Value& value, Given& arguments) {
  Values held = arguments.positional;
  held.push_back(value);
  for (const auto& [key, one] : arguments.named.items) held.push_back(one);
  if (!is_true(value)) return Value::iterator([](Value&) { return false; });
  const bool by_attribute = name.ends_with("attr"), wanted = name.starts_with("select");
  Given rest = std::move(arguments);
  Value names = Value::none();
  if (by_attribute) {
    if (rest.positional.empty()) throw Error("Missing parameter for attribute name");
    names = rest.positional[0];
    rest.positional.erase(rest.positional.begin());
  }
  Text test_name;
  if (!rest.positional.empty()) {
    test_name = str(rest.positional[0]);
    rest.positional.erase(rest.positional.begin());
  }
  return Value::iterator(
      [this, value, names, test_name, rest, by_attribute, wanted, source = Value()](Value& out) mutable {
        if (!source.is(Kind::kIterator)) source = iterate(value);
        for (Value drawn; source.iterator().next(drawn);) {
          const Value judged = by_attribute ? path(drawn, names) : drawn;
          const bool holds = test_name.empty() ? is_true(judged) : test(test_name, judged, rest);
          if (holds != wanted) continue;
          out = std::move(drawn);
          return true;
        }
        return false;
      },
      held);
}

// Runs filters that compare items.
std::optional<Value> Evaluator::ordering_filter(std::string_view name, const Value& value, Given& arguments) {
  if (name == "dictsort") {
    const auto at = bind(std::move(arguments), {"case_sensitive", "by", "reverse"});
    if (value.is_undefined()) throw Error(value.reason());
    if (!value.is(Kind::kDict)) throw Error(absl::StrCat("'", value.type_name(), "' object has no attribute 'items'"));
    const Text by = at[1] ? str(*at[1]) : Text("key");
    if (by != "key" && by != "value") throw Error("You can only sort by either \"key\" or \"value\"");
    const bool exact = is_true(at[0], false);
    return sorted(
        call_method(value, "items", {}).items(),
        [&](const Value& pair) { return folded(pair.items()[by == "key" ? 0 : 1], exact); }, is_true(at[2], false));
  }
  if (name == "sort") {
    const auto at = bind(std::move(arguments), {"reverse", "case_sensitive", "attribute"});
    const bool exact = is_true(at[1], false);
    const Value names = at[2].value_or(Value::none());
    // "a,b" sorts by a, then by b.
    Values paths{names};
    if (names.is_string()) {
      paths.clear();
      for (const std::string_view one : split_text(names.text(), ",", -1)) paths.push_back(Value::string(one));
    }
    return sorted(
        to_items(value),
        [&](const Value& item) {
          Values keys;
          keys.reserve(paths.size());
          for (const Value& one : paths) keys.push_back(folded(path(item, one), exact));
          return Value::list(std::move(keys));
        },
        is_true(at[0], false));
  }
  if (name == "unique") {
    const auto at = bind(std::move(arguments), {"case_sensitive", "attribute"});
    return unique(value, at[1].value_or(Value::none()), is_true(at[0], false));
  }
  if (name == "min" || name == "max") {
    const auto at = bind(std::move(arguments), {"case_sensitive", "attribute"});
    const Value names = at[1].value_or(Value::none());
    std::optional<Value> best, best_key;
    for (Value& item : to_items(value)) {
      Value key = folded(path(item, names), is_true(at[0], false));
      if (best && !(name == "min" ? is_less(key, *best_key) : is_less(*best_key, key))) continue;
      best_key = std::move(key);
      best = std::move(item);
    }
    return best ? *best : Value::undefined("No aggregated item, sequence was empty.");
  }
  return std::nullopt;
}

// Runs filters that choose or divide items by position.
std::optional<Value> Evaluator::position_filter(std::string_view name, const Value& value, Given& arguments) {
  const auto none = [&] { bind(std::move(arguments), {}); };
  if (name == "first") {
    none();
    Value out;
    return iterate(value).iterator().next(out) ? out : Value::undefined("No first item, sequence was empty.");
  }
  if (name == "last" || name == "reverse") {
    none();
    if (value.is(Kind::kIterator)) {
      if (name == "last") throw Error(absl::StrCat("'", value.type_name(), "' object is not reversible"));
      Values items = to_items(value);
      std::reverse(items.begin(), items.end());
      return Value::list(std::move(items));
    }
    if (name == "reverse" && value.is_string()) {
      const int64_t size = length(value);
      return Value::string(every_point(value.text(), size - 1, -1, size), value.is_markup());
    }
    Values items = to_items(value);
    if (name == "last" && items.empty()) return Value::undefined("No last item, sequence was empty.");
    if (name == "last") return value.is_markup() ? Value::string(items.back().text(), true) : items.back();
    std::reverse(items.begin(), items.end());
    return deferred([items = std::move(items)]() mutable { return std::move(items); }, {value}, "list_reverseiterator");
  }
  if (name == "batch" || name == "slice") {
    const auto at = bind(std::move(arguments), {name == "batch" ? "linecount" : "slices", "fill_with"}, 1);
    const int64_t count = to_integer(*at[0]);
    if (count < 1 || count > 100'000) throw Error("the number of parts must be from 1 to 100000");
    const Value fill = at[1].value_or(Value::none());
    const bool batch = name == "batch";
    return deferred(
        [this, value, fill, count, batch] {
          const Values items = to_items(value);
          Values out;
          const auto size = static_cast<int64_t>(items.size());
          const int64_t parts = batch ? (size + count - 1) / count : count;
          int64_t from = 0;
          for (int64_t i = 0; i < parts; ++i) {
            const int64_t wanted = batch ? std::min(count, size - from) : size / count + (i < size % count ? 1 : 0);
            Values part(items.begin() + from, items.begin() + from + wanted);
            from += wanted;
            if (!fill.is_none() && batch) part.resize(static_cast<size_t>(count), fill);
            if (!fill.is_none() && !batch && i >= size % count) part.push_back(fill);
            out.push_back(Value::list(std::move(part)));
          }
          return out;
        },
        {value, fill});
  }
  return std::nullopt;
}

std::optional<Value> Evaluator::sequence_filter(std::string_view name, const Value& value, Given& arguments) {
  const auto none = [&] { bind(std::move(arguments), {}); };
  if (name == "length" || name == "count") return none(), Value::integer(length(value));
  if (name == "list") return none(), Value::list(to_items(value));
  if (name == "map") return map(value, arguments);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
    return select(name, value, arguments);
  if (name == "default" || name == "d") {
    auto at = bind(std::move(arguments), {"default_value", "boolean"});
    if (value.is_undefined() || (is_true(at[1], false) && !is_true(value))) return at[0].value_or(Value::string(""));
    return value;
  }
  if (name == "join") {
    const auto at = bind(std::move(arguments), {"d", "attribute"});
    const Text separator = at[0] ? str(*at[0]) : Text();
    Text out;
    bool first = true;
    const Value source = iterate(value);
    for (Value drawn; source.iterator().next(drawn);) {
      if (!std::exchange(first, false)) out += separator;
      out += str(given(at[1]) ? path(drawn, *at[1]) : drawn);
    }
    return Value::string(std::move(out));
  }
  if (name == "items") {
    none();
    if (value.is_undefined()) return Value::iterator([](Value&) { return false; });
    if (!value.is(Kind::kDict)) throw Error("Can only get item pairs from a mapping.");
    return deferred([pairs = call_method(value, "items", {})] { return pairs.items(); }, {value});
  }
  if (name == "sum") {
    const auto at = bind(std::move(arguments), {"attribute", "start"});
    Value total = at[1].value_or(Value::integer(0));
    if (total.is_string()) throw Error("sum() can't sum strings [use ''.join(seq) instead]");
    for (const Value& item : to_items(value))
      total = arithmetic(Expression::kAdd, total, given(at[0]) ? path(item, *at[0]) : item);
    return total;
  }
  if (name == "attr") {
    const auto at = bind(std::move(arguments), {"name"}, 1);
    const Text key = str(*at[0]);
    if (auto found = python_attribute(value, key)) return *std::move(found);
    return Value::undefined(absl::StrCat("'", value.type_name(), "' object has no attribute '", abbreviated(key), "'"));
  }
  if (auto out = ordering_filter(name, value, arguments)) return out;
  return position_filter(name, value, arguments);
}

// ---- Tests

bool Evaluator::test(std::string_view name, const Value& value, const Given& given_arguments) {
  Budget::step();
  const auto none = [&] { bind(given_arguments, {}); };
  const auto other = [&](const char* argument = "other") { return *bind(given_arguments, {argument}, 1)[0]; };
  const auto kind = [&](Kind wanted) { return none(), value.is(wanted); };
  if (name == "defined") return none(), !value.is_undefined();
  if (name == "undefined") return none(), value.is_undefined();
  if (name == "none") return kind(Kind::kNone);
  if (name == "boolean") return kind(Kind::kBool);
  if (name == "true") return none(), value.is(Kind::kBool) && value.integral() == 1;
  if (name == "false") return none(), value.is(Kind::kBool) && value.integral() == 0;
  if (name == "integer") return kind(Kind::kInt);
  if (name == "float") return kind(Kind::kFloat);
  if (name == "number") return none(), value.is_number();
  if (name == "string") return kind(Kind::kString);
  if (name == "mapping") return kind(Kind::kDict);
  if (name == "sequence") {
    none();
    switch (value.kind()) {
      case Kind::kUndefined:
      case Kind::kString:
      case Kind::kList:
      case Kind::kTuple:
      case Kind::kDict:
      case Kind::kRange: return true;
      default: return false;
    }
  }
  if (name == "iterable") {
    none();
    return value.is_undefined() || (value.kind() >= Kind::kString && value.kind() <= Kind::kIterator) ||
           value.is(Kind::kLoop);
  }
  if (name == "callable") return none(), value.kind() >= Kind::kLoop || value.is(Kind::kUndefined);
  if (name == "escaped") return none(), value.is_markup();
  if (name == "lower") return none(), is_class(str(value), TextClass::kLower);
  if (name == "upper") return none(), is_class(str(value), TextClass::kUpper);
  if (name == "odd" || name == "even") {
    none();
    const Value rest = arithmetic(Expression::kMod, value, Value::integer(2));
    return equals(rest, Value::integer(name == "odd" ? 1 : 0));
  }
  if (name == "divisibleby") return equals(arithmetic(Expression::kMod, value, other("num")), Value::integer(0));
  if (name == "sameas") {
    const Value with = other();
    // Python does not define whether two equal texts or numbers are one object.
    if (value.kind() == with.kind() && value.kind() >= Kind::kInt && value.kind() <= Kind::kString &&
        equals(value, with))
      throw Error("the test \"sameas\" on numbers and texts is not supported");
    return value.same_object(with);
  }
  if (name == "in") return contains(other("seq"), value);
  refuse_named(name, given_arguments);  // Python's operators have no named arguments
  if (name == "==" || name == "eq" || name == "equalto") return equals(value, other());
  if (name == "!=" || name == "ne") return !equals(value, other());
  if (name == "<" || name == "lt" || name == "lessthan") return is_less(value, other());
  if (name == ">" || name == "gt" || name == "greaterthan") return is_less(other(), value);
  if (name == "<=" || name == "le") {
    const Value with = other();
    return is_less(value, with) || (!is_less(with, value) && equals(value, with));
  }
  if (name == ">=" || name == "ge") {
    const Value with = other();
    return is_less(with, value) || (!is_less(value, with) && equals(value, with));
  }
  if (name == "filter" || name == "test") throw Error(absl::StrCat("the test ", io::shown(name), " is not supported"));
  throw Error("there is no test " + io::shown(name));
}

}  // namespace rondo::text::jinja
