// config.json and names of Llama 2 and 3, Qwen 2 and 3, and Mistral. The families differ in
// the options of config.json and in their defaults.
#include "rondo/modules/transformers/llama.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/modules/pretrained/published.h"
#include "rondo/modules/transformers/llama_tasks.h"

namespace rondo::nn {
namespace {

// Reads the fields of yarn (https://huggingface.co/docs/transformers/main/en/internal/rope_utils has the defaults).
void read_yarn(ConfigFields& rope, RopeScaling& scaling) {
  scaling.beta_fast = rope.positive("beta_fast", 32);
  scaling.beta_slow = rope.positive("beta_slow", 1);
  scaling.truncate = rope.flag("truncate", true);
  const double mscale = rope.not_negative("mscale", 0), all = rope.not_negative("mscale_all_dim", 0);
  const auto grown = [&](double by) { return scaling.factor > 1 ? 0.1 * by * std::log(scaling.factor) + 1 : 1; };
  if (rope.has("attention_factor")) scaling.attention_factor = rope.positive("attention_factor", 1);
  else if (mscale > 0 && all > 0) scaling.attention_factor = grown(mscale) / grown(all);
}

// Reads rope_scaling of older files, or rope_parameters of transformers 5, which also has rope_theta. `outer`: the
// whole file, which may have original_max_position_embeddings, too.
RopeScaling read_scaling(ConfigFields& rope, ConfigFields& outer, LlamaConfig& c) {
  using Kind = RopeScaling::Kind;
  c.rope_base = rope.positive("rope_theta", c.rope_base);
  // Older files say "type"; some say both.
  const char* field = rope.has("rope_type") ? "rope_type" : "type";
  const std::string kind = rope.word(field, "default");
  rope.harmless({"type", "rope_type"});
  constexpr std::pair<const char*, Kind> kKinds[] = {
      {"linear", Kind::kLinear}, {"llama3", Kind::kLlama3}, {"yarn", Kind::kYarn}, {"dynamic", Kind::kDynamic}};
  RopeScaling scaling;
  for (const auto& [name, value] : kKinds)
    if (kind == name) scaling.kind = value;
  if (scaling.kind == Kind::kNone) {
    if (kind != "default") {
      rope.unsupported(field);
      return scaling;
    }
  } else {
    if (scaling.kind == Kind::kLlama3 || scaling.kind == Kind::kYarn) {
      // If the whole file has this field, too, its value counts.
      scaling.original_positions = rope.size("original_max_position_embeddings", c.block_size);
      scaling.original_positions = outer.size("original_max_position_embeddings", scaling.original_positions);
    }
    // Only yarn allows a null factor: it means the ratio of the two lengths.
    if (scaling.kind == Kind::kYarn && rope.is_null("factor")) {
      rope.harmless({"factor"});
      scaling.factor = static_cast<double>(c.block_size) / static_cast<double>(scaling.original_positions);
    } else {
      scaling.factor = rope.required_positive("factor");
    }
  }
  if (scaling.kind == Kind::kLlama3) {
    scaling.low_freq_factor = rope.required_positive("low_freq_factor");
    scaling.high_freq_factor = rope.required_positive("high_freq_factor");
    if (!(scaling.high_freq_factor > scaling.low_freq_factor))
      rope.invalid("high_freq_factor", "a number above low_freq_factor");
  }
  if (scaling.kind == Kind::kYarn) read_yarn(rope, scaling);
  // transformers ignores the fields that belong to other kinds of scaling.
  rope.harmless({"attention_factor", "beta_fast", "beta_slow", "factor", "high_freq_factor", "low_freq_factor",
                 "mscale", "mscale_all_dim", "original_max_position_embeddings", "truncate"});
  if (scaling.kind == Kind::kYarn && c.rope_base == 1) outer.invalid("rope_theta", "another number than 1, for yarn");
  if (scaling.kind == Kind::kDynamic && c.rotary_dim() <= 2)
    outer.invalid("head_dim", "a size above 2, for dynamic rope_scaling");
  rope.note_unknown();
  return scaling;
}

// Reads rope_parameters or rope_scaling. If a file has both, only rope_scaling counts.
void read_rope(ConfigFields& config, LlamaConfig& c) {
  c.rope_base = config.positive("rope_theta", 10000.0);
  const auto older = config.object("rope_scaling");
  const bool has_older = older != nullptr && !older->fields().empty();
  const auto newer = config.object("rope_parameters");
  ConfigFields* rope = has_older ? older.get() : newer.get();
  if (rope != nullptr) c.rope_scaling = read_scaling(*rope, config, c);
}

// Reads which layers have the sliding window.
void read_window(ConfigFields& config, LlamaConfig& c, bool is_qwen) {
  const int64_t window = config.size("sliding_window", 4096);
  const bool in_use = is_qwen ? config.flag("use_sliding_window", false) : true;
  const bool on = in_use && !config.is_null("sliding_window");
  c.sliding_window = on ? window : 0;
  // Qwen: the first max_window_layers layers see everything.
  const int64_t first = is_qwen ? config.count("max_window_layers").value_or(28) : 0;
  std::vector<bool> layers;
  const bool listed = config.words("layer_types", [&](std::string_view kind) {
    if (kind != "full_attention" && kind != "sliding_attention")
      config.invalid("layer_types", "full_attention or sliding_attention for each layer");
    layers.push_back(kind == "sliding_attention");
  });
  if (listed && static_cast<int64_t>(layers.size()) != c.n_layer)
    config.invalid("layer_types", absl::StrCat("one entry for each of the ", c.n_layer, " layers"));
  if (listed && !on && std::find(layers.begin(), layers.end(), true) != layers.end())
    config.invalid("sliding_window", "a size, because layer_types names sliding_attention");
  if (!is_qwen && on && std::find(layers.begin(), layers.end(), false) != layers.end())
    config.unsupported("layer_types");  // Mistral's own code ignores them: every layer has the window
  if (!listed)
    for (int64_t i = 0; i < c.n_layer; ++i) layers.push_back(i >= first);
  const bool all = std::find(layers.begin(), layers.end(), false) == layers.end();
  const bool none = std::find(layers.begin(), layers.end(), true) == layers.end();
  if (none) c.sliding_window = 0;
  if (c.sliding_window > 0 && !all) c.window_layers = layers;
}

std::string family_of(const LlamaConfig& c) {
  if (c.qk_norm) return "qwen3";
  if (c.qkv_bias && !c.o_bias) return "qwen2";
  if (c.sliding_window > 0) return "mistral";
  return "llama";
}

// Returns why no family of transformers has this combination; "" if one has it.
std::string why_unpublished(const LlamaConfig& c, const std::string& family) {
  const auto also = [&](const char* what) { return absl::StrCat(what, ", which ", family, " does not have"); };
  if (c.mlp_bias && family != "llama") return also("mlp_bias");
  if (family != "qwen2" && c.qkv_bias != c.o_bias) return also("qkv_bias without o_bias");
  if (family == "llama" && c.sliding_window > 0) return also("sliding_window");
  if (family == "mistral" && c.qkv_bias) return also("qkv_bias");
  if (family == "mistral" && !c.window_layers.empty()) return also("window_layers");
  // Even with a head_dim: transformers always checks that n_head divides n_embd, for this family only.
  if (family == "llama" && c.n_embd % c.n_head != 0) return also("an n_embd that is no multiple of n_head");
  if (family == "qwen2" && c.head_dim > 0 && c.head_dim != c.n_embd / c.n_head) return also("head_dim");
  return "";
}

// Returns the field rope_scaling; empty without scaling.
std::vector<ConfigField> rope_fields(const RopeScaling& s) {
  using Kind = RopeScaling::Kind;
  const auto scaling = [&](const char* kind, const std::string& more) -> std::vector<ConfigField> {
    return {
        {"rope_scaling", absl::StrCat("{\"rope_type\": \"", kind, "\", \"factor\": ", json_text(s.factor), more, "}")}};
  };
  const std::string original = absl::StrCat(", \"original_max_position_embeddings\": ", s.original_positions);
  switch (s.kind) {
    case Kind::kNone: return {};
    case Kind::kLinear: return scaling("linear", "");
    case Kind::kDynamic: return scaling("dynamic", "");
    case Kind::kLlama3:
      return scaling("llama3", absl::StrCat(", \"low_freq_factor\": ", json_text(s.low_freq_factor),
                                            ", \"high_freq_factor\": ", json_text(s.high_freq_factor), original));
    case Kind::kYarn:
      return scaling(
          "yarn", absl::StrCat(", \"beta_fast\": ", json_text(s.beta_fast), ", \"beta_slow\": ", json_text(s.beta_slow),
                               ", \"truncate\": ", json_text(s.truncate),
                               s.attention_factor ? ", \"attention_factor\": " + json_text(*s.attention_factor) : "",
                               original));
  }
  return {};
}

std::vector<ConfigField> config_of(const LlamaConfig& c, const std::string& family) {
  std::vector<ConfigField> fields = {{"hidden_act", json_text("silu")},
                                     {"hidden_size", json_text(c.n_embd)},
                                     {"intermediate_size", json_text(c.n_hidden)},
                                     {"max_position_embeddings", json_text(c.block_size)},
                                     {"num_attention_heads", json_text(c.n_head)},
                                     {"num_hidden_layers", json_text(c.n_layer)},
                                     {"num_key_value_heads", json_text(c.n_kv_head)},
                                     {"rms_norm_eps", json_text(c.norm_eps)},
                                     {"rope_theta", json_text(c.rope_base)},
                                     {"tie_word_embeddings", json_text(c.tie_word_embeddings)},
                                     {"vocab_size", json_text(c.vocab_size)}};
  if (c.padding_idx) fields.push_back({"pad_token_id", json_text(*c.padding_idx)});
  if (family != "qwen2") fields.push_back({"head_dim", json_text(c.rotary_dim())});
  if (family == "llama" || family == "qwen3") fields.push_back({"attention_bias", json_text(c.qkv_bias)});
  if (family == "llama") fields.push_back({"mlp_bias", json_text(c.mlp_bias)});
  if (family != "llama")
    fields.push_back({"sliding_window", c.sliding_window > 0 ? json_text(c.sliding_window) : "null"});
  if (family == "qwen2" || family == "qwen3") {
    fields.push_back({"use_sliding_window", json_text(c.sliding_window > 0)});
    std::string types;
    for (int64_t i = 0; i < c.n_layer; ++i) {
      const bool window = c.sliding_window > 0 && (c.window_layers.empty() || c.window_layers[static_cast<size_t>(i)]);
      absl::StrAppend(&types, i > 0 ? ", " : "[", window ? "\"sliding_attention\"" : "\"full_attention\"");
    }
    fields.push_back({"layer_types", types + "]"});
  }
  for (ConfigField& field : rope_fields(c.rope_scaling)) fields.push_back(std::move(field));
  return fields;
}

std::string class_prefix(const std::string& family) {
  if (family == "llama") return "Llama";
  if (family == "mistral") return "Mistral";
  return family == "qwen2" ? "Qwen2" : "Qwen3";
}

}  // namespace

static std::unique_ptr<ModuleBase> make_llama(ConfigFields& config, Task task, const PretrainedOptions& options) {
  if (task != Task::kBase && task != Task::kCausalLM && task != Task::kSequenceClassification) return nullptr;
  const std::string family = config.word("model_type", "llama");
  const bool is_qwen = family == "qwen2" || family == "qwen3";
  LlamaConfig c;
  c.vocab_size = config.size("vocab_size");
  c.block_size = config.size("max_position_embeddings", family == "llama" ? 2048 : is_qwen ? 32768 : 131072);
  c.n_layer = config.size("num_hidden_layers", {}, kMostLayers);
  c.n_head = config.size("num_attention_heads");
  // A null field means n_head. An absent field means n_head for Llama only: the other families' classes have defaults
  // of their own, so their files must have the field.
  const bool may_lack = family == "llama" || config.is_null("num_key_value_heads");
  c.n_kv_head = config.size("num_key_value_heads", may_lack ? std::optional(c.n_head) : std::nullopt);
  c.n_embd = config.size("hidden_size");
  c.n_hidden = config.size("intermediate_size");
  c.norm_eps = config.positive("rms_norm_eps", 1e-6);
  c.tie_word_embeddings = config.flag("tie_word_embeddings", false);
  if (family == "qwen2") config.must_be("head_dim", absl::StrCat(c.n_embd / c.n_head));
  else c.head_dim = config.size("head_dim", family == "qwen3" ? 128 : std::max<int64_t>(1, c.n_embd / c.n_head));
  c.padding_idx = config.row("pad_token_id", c.vocab_size);
  if (c.n_head % c.n_kv_head != 0) config.invalid("num_key_value_heads", "a divisor of num_attention_heads");
  if (c.rotary_dim() % 2 != 0) config.invalid("head_dim", "an even size, for rotary positions");
  if (family != "qwen3" && !config.has("head_dim") && c.n_embd % c.n_head != 0)
    config.invalid("num_attention_heads", "a divisor of hidden_size");
  c.qk_norm = family == "qwen3";
  if (family == "llama" || family == "qwen3") c.qkv_bias = c.o_bias = config.flag("attention_bias", false);
  if (family == "qwen2") c.qkv_bias = true;
  if (family == "llama") c.mlp_bias = config.flag("mlp_bias", false);
  if (family != "llama") read_window(config, c, is_qwen);
  read_rope(config, c);
  if (read_dropout(config, "attention_dropout", 0.0, options) > 0) config.unsupported("attention_dropout");
  LlamaTaskOptions task_options = {.seed = options.seed};
  if (task == Task::kSequenceClassification) {
    task_options.num_classes = read_labels(config, options);
    task_options.problem_type = read_problem_type(config, task_options.num_classes, options);
    // In an embedding a negative id counts from the end, but no token equals it: the classifier would find no padding.
    if (config.negative("pad_token_id"))
      config.invalid("pad_token_id", "a token, which ends no row (PretrainedOptions::pad_token_id)");
  }
  config.check(options.allow_unknown_fields);
  const SkipInit skip(SkipInit::Memory::kNone);
  if (task == Task::kBase) return std::make_unique<Llama::Body>(c);
  if (task == Task::kSequenceClassification) return std::make_unique<LlamaForSequenceClassification>(c, task_options);
  return std::make_unique<Llama>(c);
}

static bool describe_llama(ModuleBase& module, Published& out) {
  auto* model = dynamic_cast<Llama*>(&module);
  auto* body = dynamic_cast<Llama::Body*>(&module);
  auto* sequence = dynamic_cast<LlamaForSequenceClassification*>(&module);
  if (model == nullptr && body == nullptr && sequence == nullptr) return false;
  LlamaConfig c = model != nullptr ? model->config : body != nullptr ? body->config : sequence->config;
  // The output layer may share the weight of the embedding. If an adapter has trained only one of the two,
  // merge_and_unload() has untied them.
  if (model != nullptr && c.tie_word_embeddings &&
      model->lm_head.weight.impl() != model->model.embed_tokens.weight.impl()) {
    c.tie_word_embeddings = false;
    out.corrections = {{"tie_word_embeddings", "false"}};
  }
  if (out.model_type.empty()) out.model_type = family_of(c);
  out.why_unpublished = why_unpublished(c, out.model_type);
  const char* task = model != nullptr ? "ForCausalLM" : body != nullptr ? "Model" : "ForSequenceClassification";
  out.architecture = class_prefix(out.model_type) + task;
  out.prefix = "model.";
  // The names are taken from a new model of the same sizes, because this one may hold an adapter's tensors, too.
  const SkipInit skip(SkipInit::Memory::kNone);
  if (model != nullptr) {
    Llama plain(c);
    out.tensors = same_names(plain);
    if (c.tie_word_embeddings) out.aliases = {{"lm_head.weight", "model.embed_tokens.weight"}};
  } else if (body != nullptr) {
    Llama::Body plain(c);
    out.tensors = same_names(plain);
  } else {
    LlamaForSequenceClassification plain(c, sequence->options);
    out.tensors = same_names(plain);
  }
  out.computed = {".rotary_emb.inv_freq"};
  out.config = config_of(c, out.model_type);
  if (sequence != nullptr) {
    for (ConfigField& field : label_fields(sequence->options.num_classes)) out.config.push_back(std::move(field));
    if (const auto& problem = sequence->options.problem_type)
      out.config.push_back({"problem_type", json_text(name_of(*problem))});
  }
  return true;
}

extern constexpr Family kLlamaFamily = {
    .model_types = {"llama", "qwen2", "qwen3", "mistral"},
    .classes = {"Llama", "Llama::Body", "LlamaForSequenceClassification"},
    .make = &make_llama,
    .describe = &describe_llama,
    .features = [](ModuleBase& model, TensorArg idx, const Tensor&,
                   const Tensor&) { return dynamic_cast<Llama::Body&>(model)(idx); },
    .language = language_calls<Llama>(),
    .sequence = text_calls<LlamaForSequenceClassification>(),
    .facts =
        [](const ModuleBase& model) {
          const auto& m = dynamic_cast<const LlamaForSequenceClassification&>(model);
          return TextClassifierFacts{m.config.vocab_size,      m.config.max_length(), m.config.padding_idx,
                                     /*takes_segments=*/false, m.options.num_classes, m.options.problem_type};
        },
};

}  // namespace rondo::nn
