// Arguments of calls, the globals of the language, and the methods of values.
#include <algorithm>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/chat/jinja/evaluator.h"
#include "rondo/runtime/chat/jinja/python_text.h"
#include "rondo/runtime/io/json.h"

namespace rondo::text::jinja {

Bound bind(Given given, std::initializer_list<const char*> names, size_t required) {
  Bound out(names.size());
  if (given.positional.size() > names.size())
    throw Error(absl::StrCat("it takes at most ", names.size(), " arguments, and got ", given.positional.size()));
  std::move(given.positional.begin(), given.positional.end(), out.begin());
  for (auto& [key, value] : given.named.items) {
    const std::string_view name = key.text();
    const auto* found = std::find_if(names.begin(), names.end(), [&](const char* one) { return name == one; });
    if (found == names.end()) throw Error(absl::StrCat("it has no argument ", io::shown(name)));
    std::optional<Value>& slot = out[static_cast<size_t>(found - names.begin())];
    if (slot) throw Error(absl::StrCat("it got two values for the argument '", *found, "'"));
    slot = std::move(value);
  }
  for (size_t i = 0; i < required; ++i)
    if (!out[i]) throw Error(absl::StrCat("the argument '", names.begin()[i], "' is missing"));
  return out;
}

void refuse_named(std::string_view name, const Given& given) {
  if (!given.named.items.empty()) throw Error(absl::StrCat(std::string(name), "() takes no keyword arguments"));
}

// ---- Globals

bool is_global_function(std::string_view name) {
  constexpr std::string_view kNames[] = {"range",        "dict",   "namespace", "raise_exception",
                                         "strftime_now", "lipsum", "cycler",    "joiner"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

Value Evaluator::call_function(std::string_view name, Given given) {
  if (name == "raise_exception") {
    const Bound at = bind(std::move(given), {"message"}, 1);
    throw Error(absl::StrCat("the template refuses this conversation: ", abbreviated(str(*at[0]))));
  }
  if (name == "range") {
    refuse_named(name, given);
    const Bound at = bind(std::move(given), {"start", "stop", "step"}, 1);
    const int64_t first = to_integer(*at[0]);
    const int64_t start = at[1] ? first : 0, stop = at[1] ? to_integer(*at[1]) : first;
    const int64_t step = at[2] ? to_integer(*at[2]) : 1;
    constexpr int64_t kMost = 100'000, kFarthest = (int64_t{1} << 62) - 1;  // kMost: the limit of jinja2's sandbox
    if (step == 0) throw Error("range() arg 3 must not be zero");
    for (const int64_t bound : {start, stop, step})
      if (bound > kFarthest || bound < -kFarthest) throw Error("range() beyond 62 bits is not supported");
    const Value out = Value::range(start, stop, step);
    if (out.range().size() > kMost)
      throw Error(absl::StrCat("Range too big. The sandbox blocks ranges larger than ", kMost, "."));
    return out;
  }
  if (name == "namespace" || name == "dict") {
    Value::Items items;
    const auto fail = [&](const char* what) { throw Error(absl::StrCat(std::string(name), "()", what)); };
    if (given.positional.size() > 1) fail(" takes at most one positional argument");
    for (const Value& value : given.positional) {
      if (value.is(Kind::kDict)) {
        items = value.dict().items;
        continue;
      }
      for (const Value& pair : to_items(value)) {
        const Values two = to_items(pair);
        if (two.size() != 2) fail(": an element has no two parts");
        items.emplace_back(two[0], two[1]);
      }
    }
    for (auto& [key, value] : given.named.items) items.emplace_back(key, std::move(value));
    const Value made = Value::dict(std::move(items));
    if (name == "dict") return made;
    for (const auto& [key, value] : made.dict().items) {
      if (!key.is_string()) throw Error("the name of a namespace's field must be str");
      if (key.text().starts_with('_')) throw Error("a namespace has no field that begins with \"_\"");
    }
    return Value::name_space(&namespaces_.emplace_back(made.dict()));
  }
  if (name == "strftime_now") {
    const Bound at = bind(std::move(given), {"format"}, 1);
    const std::string format(need_text(*at[0], "the format"));
    Budget::steps(16 + format.size());
    if (format.size() > 1000) throw Error("a format of a date of more than 1000 bytes is not supported");
    for (size_t i = format.find('%'); i != std::string::npos; i = format.find('%', i + 2))
      if (i + 1 >= format.size() ||
          std::string_view("aAbBcdeHIjmMpSUwWxXyY%DFTRnthVGuC").find(format[i + 1]) == std::string_view::npos)
        throw Error("this conversion in a format of a date is not supported: " + io::shown(format.substr(i, 2)));
    std::tm now{};
    if (options_.now) {
      now = *options_.now;
    } else {
      const std::time_t seconds = std::time(nullptr);
      if (localtime_r(&seconds, &now) == nullptr) throw Error("the time of day is not known");
    }
    std::string out(format.size() * 32 + 64, '\0');
    out.resize(std::strftime(out.data(), out.size(), format.c_str(), &now));
    return Value::string(out);
  }
  throw Error(absl::StrCat("the global ", io::shown(name), " is not supported"));
}

// ---- Methods

Value Evaluator::call_method(const Value& self, std::string_view name, Given given) {
  Budget::step();
  if (self.is_string()) {
    if (self.is_markup())
      throw Error(absl::StrCat("the method ", io::shown(name), " of a value that is marked safe is not supported"));
    return call_text_method(self.text(), name, std::move(given));
  }
  if (self.is(Kind::kDict)) {
    const Value::Dict& dict = self.dict();
    if (name == "get") {
      refuse_named(name, given);
      const Bound at = bind(std::move(given), {"key", "default"}, 1);
      if (!is_hashable(*at[0])) throw Error("unhashable type: '" + at[0]->type_name() + "'");
      const Value* found = dict.find(*at[0]);
      return found != nullptr ? *found : at[1].value_or(Value::none());
    }
    if (name == "items" || name == "keys" || name == "values" || name == "copy") bind(std::move(given), {});
    if (name == "copy") return self;
    Values out;
    out.reserve(dict.items.size());
    if (name == "items")
      for (const auto& [key, value] : dict.items) out.push_back(Value::tuple({key, value}));
    else if (name == "keys")
      for (const auto& [key, value] : dict.items) out.push_back(key);
    else if (name == "values")
      for (const auto& [key, value] : dict.items) out.push_back(value);
    else throw Error(absl::StrCat("the method ", io::shown(name), " of dict is not supported"));
    return Value::view(std::move(out), name == "items" ? "dict_items" : name == "keys" ? "dict_keys" : "dict_values");
  }
  if (self.is(Kind::kList) || self.is(Kind::kTuple)) {
    const Values& items = self.items();
    if (name == "copy") return bind(std::move(given), {}), self;
    refuse_named(name, given);
    const Bound at = bind(std::move(given), {"value", "start", "stop"}, 1);
    if (at[1]) throw Error(absl::StrCat("the method ", io::shown(name), " of a sequence with bounds is not supported"));
    Budget::steps(items.size());
    const auto same = [&](const Value& item) { return item.same_object(*at[0]) || equals(item, *at[0]); };
    if (name == "count") return Value::integer(std::count_if(items.begin(), items.end(), same));
    const auto found = std::find_if(items.begin(), items.end(), same);
    if (found == items.end()) throw Error("the value is not in the sequence");
    return Value::integer(found - items.begin());
  }
  if (self.is(Kind::kLoop)) {
    refuse_named(name, given);
    LoopState& loop = self.loop();
    if (name == "cycle") {
      if (given.positional.empty()) throw Error("no items for cycling given");
      return given.positional[static_cast<size_t>(loop.index0) % given.positional.size()];
    }
    for (const Value& value : given.positional)
      if (value.kind() > Kind::kRange)
        throw Error(absl::StrCat("loop.changed() of ", value.type_name(), " is not supported"));
    Value now = Value::tuple(std::move(given.positional));
    if (loop.last_changed && equals(*loop.last_changed, now)) return Value::boolean(false);
    loop.last_changed = std::move(now);
    return Value::boolean(true);
  }
  throw Error(absl::StrCat("the attribute ", io::shown(name), " of ", self.type_name(), " is not supported"));
}

}  // namespace rondo::text::jinja
