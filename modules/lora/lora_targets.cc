#include "rondo/modules/lora/lora_targets.h"

#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <utility>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace rondo::nn {
namespace {

constexpr const char* kAllLinear = "all-linear";

bool is_output_layer(const std::string& name) {
  return name == "lm_head" || name == "score" || name == "classifier" || name == "head";
}

// A regular expression on whole paths. It comes from a file, so its length and its work are bounded. PCRE2's default is
// 10 million backtracking steps, which take seconds. A path has about 60 characters, so ordinary patterns take some
// hundreds of steps.
constexpr size_t kLongestPattern = 1 << 14;
constexpr uint32_t kMostSteps = 100'000;
constexpr uint32_t kMostKiB = 1 << 10;  // the most memory for a match

class Pattern {
 public:
  Pattern(const char* function, const char* option, const std::string& text)
      : function_(function), option_(option), text_(text) {
    if (text.size() > kLongestPattern)
      throw Error(absl::StrCat(function, ": ", option, " has ", text.size(), " bytes; at most ", kLongestPattern));
    refuse_ambiguous();
    int error = 0;
    PCRE2_SIZE at = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                              PCRE2_ANCHORED | PCRE2_ENDANCHORED, &error, &at, nullptr));
    if (code_ == nullptr) fail("is no regular expression: " + message(error) + absl::StrCat(" at ", at));
    data_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
    limits_.reset(pcre2_match_context_create(nullptr));
    if (data_ == nullptr || limits_ == nullptr) throw std::bad_alloc();
    pcre2_set_match_limit(limits_.get(), kMostSteps);
    pcre2_set_heap_limit(limits_.get(), kMostKiB);
  }
  bool matches(const std::string& path) const {
    const int found = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(path.data()), path.size(), 0, 0,
                                  data_.get(), limits_.get());
    if (found < 0 && found != PCRE2_ERROR_NOMATCH) fail("cannot be matched with " + path + ": " + message(found));
    return found >= 0;
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
    void operator()(pcre2_match_context* limits) const { pcre2_match_context_free(limits); }
  };
  static std::string message(int error) {
    PCRE2_UCHAR text[128] = {};
    pcre2_get_error_message(error, text, sizeof text);
    return reinterpret_cast<const char*>(text);
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw Error(absl::StrCat(function_, ": ", option_, " '", text_, "' ", why));
  }
  // Refuses what PCRE2 reads differently from Python, which PEFT uses: x{,3} is x{0,3} in Python and literal text in
  // PCRE2, and only in PCRE2 is [[:digit:]] a class. The adapter would go to other modules, or have another scaling.
  void refuse_ambiguous() const {
    bool in_class = false;
    for (size_t i = 0; i + 1 < text_.size(); ++i) {
      const char sign = text_[i], next = text_[i + 1];
      if (sign == '\\') {
        ++i;
      } else if (sign == '[' && !in_class) {
        in_class = true;
        i += next == '^' ? 1 : 0;
        i += i + 1 < text_.size() && text_[i + 1] == ']' ? 1 : 0;  // a "]" that comes first is literal
      } else if (sign == '[' && (next == ':' || next == '.' || next == '=')) {
        fail(absl::StrCat("has \"[", text_.substr(i + 1, 1),
                          "\" in a class, where Python reads it as two signs: write \\["));
      } else if (sign == ']') {
        in_class = false;
      } else if (sign == '{' && next == ',' && !in_class) {
        fail("has \"{,\", which is a count in Python only: write {0, for a count, \\{ for the sign");
      }
    }
  }
  const char* function_;
  const char* option_;
  std::string text_;
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> data_;
  std::unique_ptr<pcre2_match_context, Free> limits_;
};

bool can_be_target(ModuleBase& module) {
  return dynamic_cast<Linear*>(&module) != nullptr || dynamic_cast<Embedding*>(&module) != nullptr;
}

// Returns the last parts of the modules' paths, each once.
std::string names_in(const std::vector<NamedModule>& modules, bool targets_only) {
  std::vector<std::string> names;
  for (const NamedModule& m : modules) {
    if (m.name.empty() || (targets_only && !can_be_target(m.module))) continue;
    if (!targets_only && m.module.parameters().empty()) continue;
    const std::string& name = m.module.name();
    if (name.find_first_not_of("0123456789") == name.npos) continue;  // an item of a list, named by its number
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

bool ends_in(const std::string& path, const std::string& name) { return path == name || path.ends_with("." + name); }

// Returns the number of the layer that a module is in: the number after the first list of this name, or of any name if
// `list` is "". (Lists inside a layer, such as experts, have numbers, too.) With "", a list at the very beginning of
// the path counts only if there is no other: in the whole models that PEFT sees, the list of layers is inside another
// module.
std::optional<int64_t> layer_behind(const std::string& path, const std::string& list) {
  std::optional<int64_t> of_first;
  const size_t first = path.find('.');
  size_t end = 0;
  for (size_t dot = first; dot != path.npos; dot = end) {
    end = path.find('.', dot + 1);
    if (end == path.npos) break;
    int64_t number = 0;
    const char *begin = path.data() + dot + 1, *last = path.data() + end;
    const auto [stop, error] = std::from_chars(begin, last, number);
    if (error != std::errc() || stop != last || number < 0) continue;
    if (list.empty() && dot == first) of_first = number;
    else if (list.empty() || ends_in(path.substr(0, dot), list)) return number;
  }
  return of_first;
}

// True if a module is in one of options.layers_to_transform, or if that list is empty. Decides as PEFT does
// (tuners_utils.py, check_target_module_exists).
bool is_in_layers(const std::string& path, const LoraOptions& options) {
  if (options.layers_to_transform.empty()) return true;
  std::optional<int64_t> layer;
  if (options.layers_pattern.empty()) layer = layer_behind(path, "");
  for (const std::string& list : options.layers_pattern)
    if (!layer) layer = layer_behind(path, list);
  const std::vector<int64_t>& layers = options.layers_to_transform;
  return layer && std::find(layers.begin(), layers.end(), *layer) != layers.end();
}

// Finds the values of rank_pattern or alpha_pattern for paths: the first name that fits a path counts.
template <class T> class SizePatterns {
 public:
  SizePatterns(const char* function, const char* option, const std::vector<std::pair<std::string, T>>& values)
      : function_(function), option_(option) {
    if (values.size() > kMostNames)
      throw Error(absl::StrCat(function, ": ", option, " has ", values.size(), " names; at most ", kMostNames));
    for (const auto& [name, value] : values)
      // The groups are the same as PEFT's, so that a back reference in a name means the same.
      rows_.push_back({name, Pattern(function, option, absl::StrCat("(.*\\.)?(", name, ")")), value});
  }
  T value(const std::string& path, T otherwise) const {
    for (const Row& row : rows_)
      if (row.pattern.matches(path)) {
        row.used = true;
        return row.value;
      }
    return otherwise;
  }
  void require_used() const {
    for (const Row& row : rows_)
      if (!row.used)
        throw Error(absl::StrCat(function_, ": ", option_, " names '", row.name,
                                 "', which fits no target, or only those that a name before it fits"));
  }

 private:
  static constexpr size_t kMostNames = 1 << 13;
  struct Row {
    std::string name;
    Pattern pattern;
    T value;
    mutable bool used = false;
  };
  const char* function_;
  const char* option_;
  std::vector<Row> rows_;
};

class Matcher {
 public:
  Matcher(const char* function, ModuleBase& model, const LoraOptions& options, bool lenient)
      : function_(function),
        model_(model),
        options_(options),
        lenient_(lenient),
        layout_(published_layout(model)),
        modules_(base_modules(model)) {}

  LoraMatch run() {
    LoraMatch match;
    for (const NamedModule& m : modules_) published_.push_back(published_parts(layout_, model_, m.name));
    for (const std::string& name : options_.modules_to_save) add_saved(name, match);
    if (!lenient_ && options_.targets.empty() == options_.target_pattern.empty())
      fail("give either targets or a target_pattern; there are " + names_in(modules_, true));
    chosen_.assign(modules_.size(), Choice());
    if (!options_.target_pattern.empty()) choose_by_pattern();
    else if (options_.targets == std::vector<std::string>{kAllLinear}) choose_all_linear(match);
    else
      for (const std::string& name : options_.targets) choose_by_name(name);
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (!chosen_[i].any()) continue;
      if (lenient_ && !can_be_target(modules_[i].module)) continue;
      if (!can_be_target(modules_[i].module))
        fail(absl::StrCat("the target ", modules_[i].name, " is a ", modules_[i].module.type_name(),
                          "; only Linear and Embedding modules can get an adapter"));
      const auto within = std::find_if(match.saved.begin(), match.saved.end(), [&](const NamedModule& saved) {
        return is_inside(modules_[i].module, saved.module);
      });
      if (within != match.saved.end()) {
        if (lenient_ && saved_by_whole_name(i)) continue;
        fail(absl::StrCat(modules_[i].name, " is a target and is trained whole, too, as part of modules_to_save"));
      }
      match.targets.push_back(
          {modules_[i].name, modules_[i].module, chosen_[i].whole ? std::vector<PublishedPart>() : chosen_[i].parts});
    }
    return match;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw Error(absl::StrCat(function_, ": ", why)); }
  // The part of a module that is a target: all of it, or some rows.
  struct Choice {
    bool whole = false;
    std::vector<PublishedPart> parts = {};
    bool any() const { return whole || !parts.empty(); }
  };
  // Names in a file are Transformers' names. If a family's modules have other names in the tree, the tree's names do
  // not count. For example, PEFT finds no "dense" in a DistilBERT. So "dense" in a file must not match the tree's
  // "dense", which Transformers calls ffn.lin1.
  bool counts_tree_names() const { return !lenient_ || layout_.parts == nullptr; }
  // Chooses module i, or parts of it, if `fits` is true for its name in the tree or in Transformers. Returns false if
  // nothing is chosen.
  bool choose(size_t i, absl::FunctionRef<bool(const std::string&)> fits) {
    if (modules_[i].name.empty()) return false;
    Choice& choice = chosen_[i];
    bool any = counts_tree_names() && fits(modules_[i].name);
    choice.whole = choice.whole || any;
    for (const PublishedPart& part : published_[i]) {
      if (!fits(part.path)) continue;
      any = true;
      if (part.rows == 0) choice.whole = true;
      else if (std::none_of(choice.parts.begin(), choice.parts.end(), [&](const auto& p) { return p.row == part.row; }))
        choice.parts.push_back(part);
    }
    std::sort(choice.parts.begin(), choice.parts.end(), [](const auto& a, const auto& b) { return a.row < b.row; });
    return any;
  }
  // True if `name` in modules_to_save takes module i: by the end of its path, as in PEFT, also in the middle of a word.
  // So "norm" takes input_layernorm, too.
  bool saved_by(size_t i, const std::string& name) const {
    const auto fits = [&](const std::string& path) { return !name.empty() && path.ends_with(name); };
    if (modules_[i].name.empty()) return false;
    const std::vector<PublishedPart>& parts = published_[i];
    const auto fitting = std::count_if(parts.begin(), parts.end(), [&](const auto& part) { return fits(part.path); });
    if (fitting > 0 && fitting < static_cast<int64_t>(parts.size()))
      fail(absl::StrCat("modules_to_save names '", name, "', which is a part of ", modules_[i].name,
                        " here; a module is saved whole or not at all"));
    return fitting > 0 || (counts_tree_names() && fits(modules_[i].name));
  }
  // True if a name in modules_to_save is a whole part of the path of module i, between dots. PEFT leaves such a target
  // out.
  bool saved_by_whole_name(size_t i) const {
    const auto holds = [](const std::string& path, const std::string& name) {
      return ("." + path + ".").find("." + name + ".") != std::string::npos;
    };
    return std::any_of(options_.modules_to_save.begin(), options_.modules_to_save.end(), [&](const std::string& name) {
      return std::any_of(published_[i].begin(), published_[i].end(),
                         [&](const PublishedPart& part) { return holds(part.path, name); });
    });
  }
  static bool is_inside(const ModuleBase& module, const ModuleBase& outer) {
    for (const ModuleBase* m = &module; m != nullptr; m = m->parent())
      if (m == &outer) return true;
    return false;
  }

  void add_saved(const std::string& name, LoraMatch& match) const {
    const size_t before = match.saved.size();  // the number of modules that other names have taken
    bool any = false;
    for (size_t i = 0; i < modules_.size(); ++i) {
      const NamedModule& m = modules_[i];
      if (!saved_by(i, name)) continue;
      any = true;
      if (!layout_.embedding_is_output.empty() && m.name == layout_.embedding_is_output)
        fail(absl::StrCat("modules_to_save names ", m.name, ", whose weight the output layer of ", model_.type_name(),
                          " reads, too; in PEFT only the embedding would change"));
      bool known = false;
      for (size_t k = 0; k < match.saved.size(); ++k) {
        const NamedModule& other = match.saved[k];
        const bool inside = is_inside(m.module, other.module);
        const bool same = &m.module == &other.module, of_another_name = k < before;
        known = known || same || (inside && !of_another_name);
        // PEFT can neither write such an adapter nor read it.
        if (of_another_name && !same && (inside || is_inside(other.module, m.module)))
          fail(absl::StrCat("modules_to_save names both ", other.name, " and ", m.name,
                            ", one of which is a part of the other; name the larger one"));
      }
      if (!known) match.saved.push_back(m);
    }
    if (!any && !lenient_)
      fail(absl::StrCat("no module of ", model_.type_name(), " is named '", name, "' (modules_to_save); there are ",
                        names_in(modules_, false)));
  }
  void choose_by_name(const std::string& name) {
    bool any = false;
    for (size_t i = 0; i < modules_.size(); ++i) {
      // A name that is the whole path in Transformers is not restricted by layers_to_transform.
      const bool whole = std::any_of(published_[i].begin(), published_[i].end(),
                                     [&](const PublishedPart& part) { return part.path == name; });
      const auto fits = [&](const std::string& path) {
        return ends_in(path, name) && ((whole && path == name) || is_in_layers(path, options_));
      };
      any = choose(i, fits) || any;
    }
    if (!any && !lenient_)
      fail(absl::StrCat("no module of ", model_.type_name(),
                        options_.layers_to_transform.empty() ? "" : " in layers_to_transform", " is named '", name,
                        "'; those that can get an adapter are ", names_in(modules_, true)));
  }
  void choose_by_pattern() {
    const Pattern pattern(function_, "target_pattern", options_.target_pattern);
    bool any = false;
    for (size_t i = 0; i < modules_.size(); ++i)
      any = choose(i, [&](const std::string& path) { return pattern.matches(path); }) || any;
    if (!any && !lenient_)
      fail(absl::StrCat("target_pattern '", options_.target_pattern, "' matches the path of no module of ",
                        model_.type_name(), "; those that can get an adapter are named ", names_in(modules_, true)));
  }
  void choose_all_linear(const LoraMatch& match) {
    bool any = false;
    for (size_t i = 0; i < modules_.size(); ++i) {
      ModuleBase& module = modules_[i].module;
      if (modules_[i].name.empty() || dynamic_cast<Linear*>(&module) == nullptr || is_output_layer(module.name()))
        continue;
      if (std::any_of(match.saved.begin(), match.saved.end(),
                      [&](const NamedModule& saved) { return is_inside(module, saved.module); }))
        continue;
      any = chosen_[i].whole = true;
    }
    if (!any && !lenient_) fail(absl::StrCat(model_.type_name(), " has no Linear but output layers"));
  }

  const char* function_;
  ModuleBase& model_;
  const LoraOptions& options_;
  const bool lenient_;
  const PublishedLayout layout_;
  const std::vector<NamedModule> modules_;
  std::vector<std::vector<PublishedPart>> published_;  // the Transformers parts of each module
  std::vector<Choice> chosen_;
};

}  // namespace

bool names_modules(const LoraOptions& options) {
  return options.target_pattern.empty() && options.targets != std::vector<std::string>{kAllLinear};
}

LoraMatch match_lora_targets(const char* function, ModuleBase& model, const LoraOptions& options) {
  LoraMatch match = Matcher(function, model, options, /*lenient=*/false).run();
  set_sizes(function, model, options, /*lenient=*/false, match.targets);
  return match;
}
LoraMatch match_lora_targets_leniently(const char* function, ModuleBase& model, const LoraOptions& options) {
  return Matcher(function, model, options, /*lenient=*/true).run();
}

void set_sizes(const char* function, const ModuleBase& model, const LoraOptions& options, bool lenient,
               std::vector<LoraTarget>& targets) {
  const SizePatterns ranks(function, "rank_pattern", options.rank_pattern);
  const SizePatterns alphas(function, "alpha_pattern", options.alpha_pattern);
  const PublishedLayout layout = published_layout(model);
  for (LoraTarget& target : targets) {
    const std::vector<PublishedPart> parts = target.parts.empty() ? published_parts(layout, model, target.name)
                                                                  : target.parts;
    target.sizes.clear();
    for (const PublishedPart& part : parts)
      target.sizes.push_back({ranks.value(part.path, options.rank), alphas.value(part.path, options.alpha)});
    if (!target.parts.empty()) continue;
    const LoraSize first = target.sizes[0];
    if (std::all_of(target.sizes.begin(), target.sizes.end(), [&](const LoraSize& size) { return size == first; }))
      target.sizes.resize(1);
    else target.parts = parts;
  }
  if (lenient) return;
  ranks.require_used();
  alphas.require_used();
}

}  // namespace rondo::nn
