#include "rondo/modules/pretrained/published.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/utf8.h"

namespace rondo::nn {

std::optional<int64_t> wanted_labels(const PretrainedOptions& options) {
  const auto given = static_cast<int64_t>(options.label_names.size());
  if (given > 0 && options.num_labels.value_or(given) != given)
    throw Error(absl::StrCat("PretrainedOptions: num_labels is ", *options.num_labels, ", but there are ", given,
                             " label_names"));
  for (const std::string& name : options.label_names)
    if (!io::is_valid_utf8(name)) throw Error("PretrainedOptions: a label name is not UTF-8");
  if (given > 0) return given;
  if (options.num_labels && (*options.num_labels < 1 || *options.num_labels > kMostLabels))
    throw Error(
        absl::StrCat("PretrainedOptions::num_labels must be from 1 to ", kMostLabels, ", got ", *options.num_labels));
  return options.num_labels;
}

int64_t read_labels(ConfigFields& config, const PretrainedOptions& options) {
  const std::optional<int64_t> named = config.entries("id2label");
  const int64_t said = config.size("num_labels", 2, kMostLabels);
  return wanted_labels(options).value_or(named && *named > 0 ? *named : said);
}

std::optional<ProblemType> read_problem_type(ConfigFields& config, int64_t num_classes,
                                             const PretrainedOptions& options) {
  if (options.problem_type) config.set("problem_type", json_text(name_of(*options.problem_type)));
  std::optional<ProblemType> problem;
  const std::string word = config.word("problem_type", "");
  for (const ProblemType type : {ProblemType::kRegression, ProblemType::kSingleLabel, ProblemType::kMultiLabel})
    if (!problem && word == name_of(type)) problem = type;
  if (!problem && config.has("problem_type")) config.unsupported("problem_type");
  if (problem == ProblemType::kSingleLabel && num_classes == 1)
    config.invalid("problem_type", "\"regression\", or at least two labels");
  return problem;
}

std::vector<ConfigField> label_fields(const std::vector<std::string>& names) {
  std::string by_number = "{", by_name = "{";
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = json_text(names[i]);
    absl::StrAppend(&by_number, i > 0 ? ", " : "", "\"", i, "\": ", name);
    absl::StrAppend(&by_name, i > 0 ? ", " : "", name, ": ", i);
  }
  return {{"id2label", by_number + "}"}, {"label2id", by_name + "}"}};
}

std::vector<ConfigField> label_fields(int64_t n) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < n; ++i) names.push_back(absl::StrCat("LABEL_", i));
  return label_fields(names);
}

std::vector<std::string> read_label_names(const std::vector<ConfigField>& fields, const std::string& path) {
  for (const ConfigField& field : fields) {
    if (field.name != "id2label") continue;
    io::JsonReader json(path, field.json);
    if (json.peek() != '{') return {};
    std::map<int64_t, std::string> names;
    json.object([&](std::string& key) {
      int64_t number = 0;
      if (!absl::SimpleAtoi(key, &number) || json.peek() != '"') return json.skip();
      names[number] = json.string();
    });
    std::vector<std::string> in_order;
    for (auto& [number, name] : names) {
      if (number != static_cast<int64_t>(in_order.size())) return {};  // a gap
      in_order.push_back(std::move(name));
    }
    return in_order;
  }
  return {};
}

ops::GeluKind read_gelu(ConfigFields& config, std::string_view name, std::string_view otherwise) {
  const std::string kind = config.word(name, otherwise);
  if (kind == "gelu") return ops::GeluKind::kErf;
  if (kind != "gelu_new" && kind != "gelu_pytorch_tanh" && kind != "gelu_fast") config.unsupported(name);
  return ops::GeluKind::kTanh;
}

std::string gelu_name(ops::GeluKind kind) { return kind == ops::GeluKind::kErf ? "gelu" : "gelu_new"; }

double read_dropout(ConfigFields& config, std::string_view name, double otherwise, const PretrainedOptions& options) {
  if (options.dropout && !(*options.dropout >= 0 && *options.dropout <= 1))
    throw Error(absl::StrCat("PretrainedOptions::dropout must be in [0, 1], got ", *options.dropout));
  if (options.dropout) config.set(std::string(name), json_text(*options.dropout));
  return config.probability(name, otherwise);
}

std::vector<PublishedTensor> same_names(ModuleBase& module, const std::string& prefix) {
  std::vector<PublishedTensor> tensors;
  for (const auto& [name, tensor] : module.state_dict()) tensors.push_back({prefix + name, name});
  return tensors;
}

}  // namespace rondo::nn
