// GPT-2's config.json and names. Its linear weights are stored (in, out), transposed to ours.
#include "rondo/modules/transformers/gpt2.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/pretrained/published.h"

namespace rondo::nn {

GPT2Config read_gpt2(ConfigFields& config, const PretrainedOptions& options) {
  GPT2Config c;
  c.vocab_size = config.size("vocab_size");
  c.block_size = config.has("n_positions") ? config.size("n_positions") : config.size("n_ctx");
  c.n_layer = config.size("n_layer", {}, kMostLayers);
  c.n_head = config.size("n_head");
  c.n_embd = config.size("n_embd");
  if (c.n_embd % c.n_head != 0) config.invalid("n_head", "a divisor of n_embd");
  c.n_inner = config.size("n_inner", 4 * c.n_embd);
  c.dropout = read_dropout(config, "resid_pdrop", 0.1, options);
  c.attn_dropout = read_dropout(config, "attn_pdrop", 0.1, options);
  c.embd_dropout = read_dropout(config, "embd_pdrop", 0.1, options);
  c.norm_eps = config.positive("layer_norm_epsilon", 1e-5);
  c.gelu = read_gelu(config, "activation_function", "gelu_new");
  return c;
}

static std::unique_ptr<ModuleBase> make_gpt2(ConfigFields& config, Task task, const PretrainedOptions& options) {
  if (task != Task::kBase && task != Task::kCausalLM) return nullptr;
  const GPT2Config c = read_gpt2(config, options);
  config.check(options.allow_unknown_fields);
  const SkipInit skip(SkipInit::Memory::kNone);
  return std::make_unique<GPT2>(c);
}

static bool describe_gpt2(ModuleBase& module, Published& out) {
  auto* model = dynamic_cast<GPT2*>(&module);
  if (model == nullptr) return false;
  const GPT2Config& c = model->config;
  if (c.cross_attention) out.why_unpublished = "cross-attention, which gpt2 has only with an encoder";
  if (!c.bias) out.why_unpublished = "bias = false, which gpt2 does not have";
  out.model_type = "gpt2";
  out.architecture = "GPT2LMHeadModel";
  out.prefix = "transformer.";
  // The names are taken from a new model of the same sizes, because `model` may hold an adapter's tensors, too.
  const SkipInit skip(SkipInit::Memory::kNone);
  GPT2 plain(c);
  out.tensors = same_names(plain, out.prefix);
  for (PublishedTensor& tensor : out.tensors)
    tensor.transposed = tensor.name.ends_with("c_attn.weight") || tensor.name.ends_with("q_attn.weight") ||
                        tensor.name.ends_with("c_proj.weight") || tensor.name.ends_with("c_fc.weight");
  out.aliases = {{"lm_head.weight", "transformer.wte.weight"}};
  // Files may hold these: the causal mask and its -inf.
  out.computed = {".attn.bias", ".attn.masked_bias", ".crossattention.bias", ".crossattention.masked_bias"};
  out.config = {{"activation_function", json_text(gelu_name(c.gelu))},
                {"attn_pdrop", json_text(c.attn_dropout.value_or(c.dropout))},
                {"embd_pdrop", json_text(c.embd_dropout.value_or(c.dropout))},
                {"layer_norm_epsilon", json_text(c.norm_eps)},
                {"n_embd", json_text(c.n_embd)},
                {"n_head", json_text(c.n_head)},
                {"n_inner", c.n_inner > 0 ? json_text(c.n_inner) : "null"},
                {"n_layer", json_text(c.n_layer)},
                {"n_positions", json_text(c.block_size)},
                {"resid_pdrop", json_text(c.dropout)},
                {"tie_word_embeddings", "true"},
                {"vocab_size", json_text(c.vocab_size)}};
  return true;
}

extern constexpr Family kGPT2Family = {
    .model_types = {"gpt2"},
    .classes = {"GPT2"},
    .make = &make_gpt2,
    .describe = &describe_gpt2,
    .features =
        [](ModuleBase& model, TensorArg idx, const Tensor&, const Tensor&) {
          GPT2& gpt2 = dynamic_cast<GPT2&>(model);
          const ModuleFrame frame(&gpt2.path(), idx.where);
          return gpt2.features(idx.tensor);
        },
    .language = language_calls<GPT2>(),
};

}  // namespace rondo::nn
