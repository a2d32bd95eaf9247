#include "rondo/modules/lora_targets.h"

#include <algorithm>
#include <memory>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/modules/lora_layer.h"

namespace rondo::nn {
namespace {

constexpr const char* kAllLinear = "all-linear";

bool is_output_layer(const std::string& name) {
  return name == "lm_head" || name == "score" || name == "classifier" || name == "head";
}

// A regular expression on whole paths. It comes from a file, so its length and its work are bounded. PCRE2's own limit
// of backtracking steps is 10 million: seconds. A path has some 60 characters, so patterns that are meant take
// hundreds.
constexpr size_t kLongestPattern = 1 << 14;
constexpr uint32_t kMostSteps = 100'000;
constexpr uint32_t kMostKiB = 1 << 10;  // of memory for a match

class Pattern {
 public:
  Pattern(const char* function, const std::string& text) : function_(function), text_(text) {
    if (text.size() > kLongestPattern)
      throw Error(absl::StrCat(function, ": target_pattern has ", text.size(), " bytes; at most ", kLongestPattern));
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
    throw Error(absl::StrCat(function_, ": target_pattern '", text_, "' ", why));
  }
  const char* function_;
  const std::string& text_;
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> data_;
  std::unique_ptr<pcre2_match_context, Free> limits_;
};

bool can_be_target(ModuleBase& module) {
  return dynamic_cast<Linear*>(&module) != nullptr || dynamic_cast<Embedding*>(&module) != nullptr;
}

// The last parts of the paths, each once.
std::string names_in(const std::vector<NamedModule>& modules, bool targets_only) {
  std::vector<std::string> names;
  for (const NamedModule& m : modules) {
    if (m.name.empty() || (targets_only && !can_be_target(m.module))) continue;
    if (!targets_only && m.module.parameters().empty()) continue;
    const std::string& name = m.module.name();
    if (name.find_first_not_of("0123456789") == name.npos) continue;  // a list's item
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names.empty() ? "none" : absl::StrJoin(names, ", ");
}

bool ends_in(const std::string& path, const std::string& name) { return path == name || path.ends_with("." + name); }

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
    for (const std::string& name : options_.modules_to_save) add_saved(name, match);
    if (!lenient_ && options_.targets.empty() == options_.target_pattern.empty())
      fail("give either targets or a target_pattern; there are " + names_in(modules_, true));
    std::vector<bool> chosen(modules_.size(), false);
    if (!options_.target_pattern.empty()) choose_by_pattern(chosen);
    else if (options_.targets == std::vector<std::string>{kAllLinear}) choose_all_linear(match, chosen);
    else
      for (const std::string& name : options_.targets) choose_by_name(name, chosen);
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (!chosen[i]) continue;
      if (lenient_ && !can_be_target(modules_[i].module)) continue;
      if (!can_be_target(modules_[i].module))
        fail(absl::StrCat("the target ", modules_[i].name, " is a ", modules_[i].module.type_name(),
                          "; only Linear and Embedding modules can get an adapter"));
      for (const NamedModule& saved : match.saved)
        if (is_inside(modules_[i].module, saved.module))
          fail(absl::StrCat(modules_[i].name, " is a target and is trained whole, too, as part of modules_to_save"));
      match.targets.push_back(modules_[i]);
    }
    return match;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const { throw Error(absl::StrCat(function_, ": ", why)); }
  bool named(const NamedModule& m, const std::string& name) const {
    return !m.name.empty() && (ends_in(m.name, name) || ends_in(layout_.path_of(m.name), name));
  }
  static bool is_inside(const ModuleBase& module, const ModuleBase& outer) {
    for (const ModuleBase* m = &module; m != nullptr; m = m->parent())
      if (m == &outer) return true;
    return false;
  }

  void add_saved(const std::string& name, LoraMatch& match) const {
    bool any = false;
    for (const NamedModule& m : modules_) {
      if (!named(m, name)) continue;
      any = true;
      const bool covered = std::any_of(match.saved.begin(), match.saved.end(),
                                       [&](const NamedModule& outer) { return is_inside(m.module, outer.module); });
      if (!covered) match.saved.push_back(m);
    }
    if (!any && !lenient_)
      fail(absl::StrCat("no module of ", model_.type_name(), " is named '", name, "' (modules_to_save); there are ",
                        names_in(modules_, false)));
  }
  void choose_by_name(const std::string& name, std::vector<bool>& chosen) const {
    bool any = false;
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (!named(modules_[i], name)) continue;
      any = chosen[i] = true;
    }
    if (!any && !lenient_)
      fail(absl::StrCat("no module of ", model_.type_name(), " is named '", name,
                        "'; those that can get an adapter are ", names_in(modules_, true)));
  }
  void choose_by_pattern(std::vector<bool>& chosen) const {
    const Pattern pattern(function_, options_.target_pattern);
    bool any = false;
    for (size_t i = 0; i < modules_.size(); ++i) {
      const std::string& path = modules_[i].name;
      if (path.empty() || (!pattern.matches(path) && !pattern.matches(layout_.path_of(path)))) continue;
      any = chosen[i] = true;
    }
    if (!any && !lenient_)
      fail(absl::StrCat("target_pattern '", options_.target_pattern, "' matches the path of no module of ",
                        model_.type_name(), "; those that can get an adapter are named ", names_in(modules_, true)));
  }
  void choose_all_linear(const LoraMatch& match, std::vector<bool>& chosen) const {
    bool any = false;
    for (size_t i = 0; i < modules_.size(); ++i) {
      ModuleBase& module = modules_[i].module;
      if (modules_[i].name.empty() || dynamic_cast<Linear*>(&module) == nullptr || is_output_layer(module.name()))
        continue;
      if (std::any_of(match.saved.begin(), match.saved.end(),
                      [&](const NamedModule& saved) { return is_inside(module, saved.module); }))
        continue;
      any = chosen[i] = true;
    }
    if (!any && !lenient_) fail(absl::StrCat(model_.type_name(), " has no Linear but output layers"));
  }

  const char* function_;
  ModuleBase& model_;
  const LoraOptions& options_;
  const bool lenient_;
  const PublishedLayout layout_;
  const std::vector<NamedModule> modules_;
};

}  // namespace

LoraMatch match_lora_targets(const char* function, ModuleBase& model, const LoraOptions& options) {
  return Matcher(function, model, options, /*lenient=*/false).run();
}
LoraMatch match_lora_targets_leniently(const char* function, ModuleBase& model, const LoraOptions& options) {
  return Matcher(function, model, options, /*lenient=*/true).run();
}

}  // namespace rondo::nn
