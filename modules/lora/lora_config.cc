#include "rondo/modules/lora/lora_config.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/modules/lora/lora_targets.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/mapped_file.h"

namespace rondo::nn {
namespace {

constexpr uint64_t kMaxRank = 1 << 20;

// Fields that do not change what an adapter computes.
const std::set<std::string>& harmless() {
  static const auto& names = *new std::set<std::string>{"auto_mapping",
                                                        "base_model_name_or_path",
                                                        "fan_in_fan_out",
                                                        "inference_mode",
                                                        "megatron_core",
                                                        "peft_version",
                                                        "qalora_group_size",
                                                        "revision",
                                                        "task_type",
                                                        "runtime_config",
                                                        "loftq_config",
                                                        "eva_config",
                                                        "corda_config",
                                                        "lora_ga_config",
                                                        "ephemeral_gpu_offload"};
  return names;
}

// Reads the next value. Returns true if it is null, false or empty: then its field has no effect. 0 counts as a value.
bool asks_for_nothing(io::JsonReader& json) {
  bool any = false;
  switch (json.peek()) {
    case '{': json.object([&](std::string&) { any = true, json.skip(); }); return !any;
    case '[': json.array([&] { any = true, json.skip(); }); return !any;
    case '"': return json.string().empty();
    case 't':
    case 'f': return !json.boolean();
    case 'n': json.skip(); return true;
    default: json.skip(); return false;
  }
}

// Reads a name of letters, digits, "_" and "-" between dots.
std::string module_name(io::JsonReader& json) {
  std::string name = json.string();
  const bool plain = std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
  });
  if (!plain || name.empty() || name.find("..") != name.npos || name.front() == '.' || name.back() == '.')
    json.fail(absl::StrCat(io::shown(name), " is no name of a module,"));
  return name;
}
std::vector<std::string> module_names(io::JsonReader& json) {
  std::vector<std::string> list;
  if (json.peek() == 'n') json.skip();
  else json.array([&] { list.push_back(module_name(json)); });
  return list;
}

// Reads one element or a list of elements; null: none.
template <class Element> void one_or_more(io::JsonReader& json, const Element& element) {
  if (json.peek() == 'n') json.skip();
  else if (json.peek() == '[') json.array(element);
  else element();
}

int64_t rank(io::JsonReader& json, const std::string& field) {
  const uint64_t value = json.unsigned_integer();
  if (value == 0 || value > kMaxRank) json.fail(absl::StrCat(field, " must be in [1, ", kMaxRank, "],"));
  return static_cast<int64_t>(value);
}

// Reads regular expressions and their values, in the order of the file. A layer takes the value of the first one that
// matches. A file that has a name twice is refused: PEFT would take the last value.
template <class T, class Value>
std::vector<std::pair<std::string, T>> pattern_values(io::JsonReader& json, const Value& value) {
  std::vector<std::pair<std::string, T>> values;
  std::set<std::string> seen;
  if (json.peek() == 'n') json.skip();
  else
    json.object([&](std::string& name) {
      if (!seen.insert(name).second) json.fail("the pattern " + io::shown(name) + " stands there twice");
      values.emplace_back(name, value());
    });
  return values;
}

double real(io::JsonReader& json) {
  const std::string_view text = json.number();
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value))
    json.fail("number out of range");
  return value;
}

bool flag(io::JsonReader& json) {
  if (json.peek() != 'n') return json.boolean();
  json.skip();
  return false;
}

std::string json_string(const std::string& text) {
  std::string out;
  io::append_json_string(out, text);
  return out;
}
std::string json_list(const std::vector<std::string>& list) {
  if (list.empty()) return "null";
  return absl::StrCat(
      "[\n    ",
      absl::StrJoin(list, ",\n    ",
                    [](std::string* out, const std::string& text) { io::append_json_string(*out, text); }),
      "\n  ]");
}
std::string json_list(const std::vector<int64_t>& list) {
  return list.empty() ? "null" : absl::StrCat("[", absl::StrJoin(list, ", "), "]");
}
std::string json_number(double value) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end);
}

std::string json_number(int64_t value) { return absl::StrCat(value); }
template <class T> std::string json_object(const std::vector<std::pair<std::string, T>>& values) {
  std::string out = "{";
  for (const auto& [name, value] : values)
    absl::StrAppend(&out, out.size() > 1 ? ", " : "", json_string(name), ": ", json_number(value));
  return out + "}";
}

}  // namespace

LoraOptions read_adapter_config(const std::string& path) {
  const std::shared_ptr<const io::MappedFile> file = io::MappedFile::open(path);
  io::JsonReader json(path, file->text());
  LoraOptions options;
  std::vector<std::string> unsupported;
  std::set<std::string> seen;
  bool has_rank = false, is_lora = false, has_targets = false;
  json.object([&](std::string& key) {
    if (!seen.insert(key).second) json.fail("the field " + io::shown(key) + " stands there twice");
    if (key == "peft_type") {
      const std::string type = json.string();
      if (type != "LORA") json.fail("peft_type is " + io::shown(type) + ", not \"LORA\": another kind of adapter,");
      is_lora = true;
    } else if (key == "r") {
      options.rank = rank(json, key);
      has_rank = true;
    } else if (key == "rank_pattern") {
      options.rank_pattern = pattern_values<int64_t>(json, [&] { return rank(json, "rank_pattern"); });
    } else if (key == "alpha_pattern") {
      options.alpha_pattern = pattern_values<double>(json, [&] { return real(json); });
    } else if (key == "layers_to_transform") {
      one_or_more(json, [&] {
        const uint64_t layer = json.unsigned_integer();
        if (layer > INT32_MAX) json.fail("layers_to_transform: no model has so many layers,");
        options.layers_to_transform.push_back(static_cast<int64_t>(layer));
      });
    } else if (key == "layers_pattern") {
      one_or_more(json, [&] { options.layers_pattern.push_back(module_name(json)); });
    } else if (key == "lora_alpha") {
      options.alpha = real(json);
    } else if (key == "lora_dropout") {
      options.dropout = real(json);
      if (!(options.dropout >= 0 && options.dropout < 1)) json.fail("lora_dropout must be in [0, 1),");
    } else if (key == "use_rslora") {
      options.rslora = flag(json);
    } else if (key == "target_modules") {
      has_targets = json.peek() != 'n';
      if (json.peek() != '"') {
        options.targets = module_names(json);
      } else if (const std::string text = json.string(); text == "all-linear") {
        options.targets = {text};
      } else {
        options.target_pattern = text;
      }
    } else if (key == "modules_to_save") {
      options.modules_to_save = module_names(json);
    } else if (key == "bias") {
      if (const std::string bias = json.string(); bias != "none") unsupported.push_back(absl::StrCat("bias = ", bias));
    } else if (key == "init_lora_weights") {
      // Strings other than these three mean that the base's weights were changed, too.
      if (json.peek() != '"') return json.skip();
      const std::string init = json.string();
      if (init != "gaussian" && init != "eva" && init != "orthogonal")
        unsupported.push_back(absl::StrCat("init_lora_weights = ", init));
    } else if (harmless().contains(key)) {
      json.skip();
    } else if (!asks_for_nothing(json)) {
      unsupported.push_back(key);
    }
  });
  json.finish();
  // PEFT refuses this combination, too.
  if (!options.layers_to_transform.empty() && !names_modules(options))
    unsupported.push_back("layers_to_transform with one string for target_modules");
  if (!is_lora) throw FileError(path, "is no adapter config: peft_type is missing");
  if (!unsupported.empty())
    throw FileError(path, "asks for what Rondo does not do: " + absl::StrJoin(unsupported, ", "));
  if (!has_rank || !has_targets)
    throw FileError(path, absl::StrCat("has no ", has_rank ? "target_modules" : "r", ", which Rondo needs"));
  return options;
}

std::string adapter_config_text(const LoraOptions& options, const PublishedLayout& layout,
                                const std::string& base_model_name_or_path) {
  const auto text_or_null = [](const std::string& text) { return text.empty() ? "null" : json_string(text); };
  const auto word = [](bool value) { return value ? "true" : "false"; };
  return absl::StrCat("{\n",                                                                            //
                      "  \"alpha_pattern\": ", json_object(options.alpha_pattern), ",\n",               //
                      "  \"base_model_name_or_path\": ", text_or_null(base_model_name_or_path), ",\n",  //
                      "  \"bias\": \"none\",\n",                                                        //
                      "  \"fan_in_fan_out\": ", word(layout.conv1d == ""), ",\n",                       //
                      "  \"inference_mode\": true,\n",                                                  //
                      "  \"init_lora_weights\": true,\n",                                               //
                      "  \"layers_pattern\": ", json_list(options.layers_pattern), ",\n",               //
                      "  \"layers_to_transform\": ", json_list(options.layers_to_transform), ",\n",     //
                      "  \"lora_alpha\": ", json_number(options.alpha), ",\n",                          //
                      "  \"lora_dropout\": ", json_number(options.dropout), ",\n",                      //
                      "  \"modules_to_save\": ", json_list(options.modules_to_save), ",\n",             //
                      "  \"peft_type\": \"LORA\",\n",                                                   //
                      "  \"r\": ", options.rank, ",\n",                                                 //
                      "  \"rank_pattern\": ", json_object(options.rank_pattern), ",\n",                 //
                      "  \"target_modules\": ", json_list(options.targets), ",\n",                      //
                      "  \"task_type\": ", layout.task_type == nullptr ? "null" : json_string(layout.task_type),
                      ",\n",                                             //
                      "  \"use_dora\": false,\n",                        //
                      "  \"use_rslora\": ", word(options.rslora), "\n",  //
                      "}\n");
}

}  // namespace rondo::nn
