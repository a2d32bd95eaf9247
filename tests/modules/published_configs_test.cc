// config.json as model hubs have it: fields that change nothing are no obstacle, and one that changes the mathematics
// is refused by name. The folders are small: the fields are those of the published ones, the sizes are not.
#include <gtest/gtest.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::nn {
namespace {

// What a family's models need to know; a published file has these and more.
constexpr char kGPT2[] = R"("model_type": "gpt2", "vocab_size": 61, "n_positions": 32, "n_embd": 16, "n_layer": 2,
  "n_head": 2, "layer_norm_epsilon": 1e-05, "activation_function": "gelu_new")";
constexpr char kLlama[] = R"("model_type": "llama", "vocab_size": 61, "max_position_embeddings": 32,
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-05)";
constexpr char kLlama3[] = R"("model_type": "llama", "vocab_size": 61, "max_position_embeddings": 32,
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "rope_theta": 500000.0,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8, "rope_type": "llama3"})";
constexpr char kQwen2[] = R"("model_type": "qwen2", "vocab_size": 61, "max_position_embeddings": 32,
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "rope_theta": 1000000.0)";
constexpr char kQwen3[] = R"("model_type": "qwen3", "vocab_size": 61, "max_position_embeddings": 32,
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "tie_word_embeddings": true, "rope_theta": 1000000)";
constexpr char kMistral[] = R"("model_type": "mistral", "vocab_size": 61, "max_position_embeddings": 32,
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "sliding_window": 5)";
constexpr char kBert[] = R"("model_type": "bert", "vocab_size": 61, "max_position_embeddings": 32, "hidden_size": 16,
  "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_act": "gelu")";
constexpr char kRoberta[] = R"("model_type": "roberta", "vocab_size": 61, "max_position_embeddings": 32,
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "type_vocab_size": 1,
  "layer_norm_eps": 1e-05)";
constexpr char kDistilBert[] = R"("model_type": "distilbert", "vocab_size": 61, "max_position_embeddings": 32,
  "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 4, "activation": "gelu")";
// Classifiers on decoders need a padding token to take several rows.
constexpr char kLlamaScore[] = R"("model_type": "llama", "vocab_size": 61, "max_position_embeddings": 32,
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "pad_token_id": 60)";
constexpr char kQwen2Score[] = R"("model_type": "qwen2", "vocab_size": 61, "max_position_embeddings": 32,
  "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "pad_token_id": 58)";
constexpr char kViT[] = R"("model_type": "vit", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
  "intermediate_size": 24, "image_size": 8, "patch_size": 4, "id2label": {"0": "cat", "1": "dog", "2": "cow"})";
constexpr char kSegformer[] = R"("model_type": "segformer", "num_encoder_blocks": 4, "depths": [1, 1, 1, 1],
  "hidden_sizes": [8, 8, 16, 16], "num_attention_heads": [1, 2, 2, 4], "sr_ratios": [4, 2, 1, 1],
  "patch_sizes": [7, 3, 3, 3], "strides": [4, 2, 2, 2], "mlp_ratios": [2, 2, 2, 2], "decoder_hidden_size": 16,
  "id2label": {"0": "wall", "1": "floor", "2": "door"})";

// A config.json in another, each with what its own family has besides.
constexpr char kCaptioner[] = R"("model_type": "vision-encoder-decoder", "decoder_start_token_id": 60,
  "pad_token_id": 60,
  "decoder": {"model_type": "gpt2", "vocab_size": 61, "n_positions": 32, "n_embd": 24, "n_layer": 2, "n_head": 2,
              "add_cross_attention": true, "is_decoder": true, "is_encoder_decoder": false, "n_ctx": 32,
              "architectures": ["GPT2LMHeadModel"], "bad_words_ids": null, "cross_attention_hidden_size": null,
              "decoder_start_token_id": 60, "id2label": {"0": "LABEL_0"}, "max_length": 20, "num_beams": 1,
              "pruned_heads": {}, "reorder_and_upcast_attn": false, "resid_pdrop": 0.1, "sep_token_id": null,
              "summary_type": "cls_index", "task_specific_params": {"text-generation": {"max_length": 50}},
              "tie_encoder_decoder": false, "tie_word_embeddings": true, "torchscript": false},
  "encoder": {"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
              "intermediate_size": 24, "image_size": 8, "patch_size": 4, "add_cross_attention": false,
              "architectures": ["ViTModel"], "encoder_stride": 16, "id2label": {"0": "LABEL_0", "1": "LABEL_1"},
              "is_decoder": false, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "pooler_act": "tanh", "qkv_bias": true})";

enum class Head { kNone, kLanguage, kSequence, kToken, kMasked, kImage, kSegmentation, kCaption };

struct PublishedConfig {
  const char* name;
  Head head;
  const char* needed;
  const char* more;  // the other fields of config.json
};

constexpr PublishedConfig kPublished[] = {
    {"gpt2", Head::kLanguage, kGPT2,
     R"("architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 60, "embd_pdrop": 0.1,
        "eos_token_id": 60, "initializer_range": 0.02, "n_ctx": 32, "resid_pdrop": 0.1, "summary_activation": null,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": true, "summary_type": "cls_index",
        "summary_use_proj": true, "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}})"},
    {"gpt2-medium", Head::kLanguage, kGPT2,
     R"("n_special": 0, "predict_special_tokens": true, "n_ctx": 32, "summary_type": "cls_index")"},
    {"gpt2-xl", Head::kLanguage, kGPT2, R"("output_past": true, "n_ctx": 32, "summary_use_proj": true)"},
    {"distilgpt2", Head::kLanguage, kGPT2,
     R"("_num_labels": 1, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "n_ctx": 32, "resid_pdrop": 0.1,
        "summary_first_dropout": 0.1, "task_specific_params": {"text-generation": {"do_sample": true}})"},
    {"DialoGPT-medium", Head::kLanguage, kGPT2,
     R"("gradient_checkpointing": false, "n_ctx": 32, "n_inner": null, "use_cache": true,
        "task_specific_params": {"conversational": {"max_length": 1000}}, "transformers_version": "4.3.0.dev0")"},
    {"Cerebras-GPT-111M", Head::kLanguage, kGPT2,
     R"("attn_pdrop": 0.0, "embd_pdrop": 0.0, "n_inner": 64, "reorder_and_upcast_attn": false, "resid_pdrop": 0.0,
        "scale_attn_by_inverse_layer_idx": false, "scale_attn_weights": true, "torch_dtype": "float32",
        "use_cache": true)"},
    {"gpt2-chinese-cluecorpussmall", Head::kLanguage, kGPT2,
     R"("n_ctx": 32, "output_past": true, "tokenizer_class": "BertTokenizer", "eos_token_ids": null,
        "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 320}})"},
    {"gpt2, saved by transformers 5", Head::kLanguage, kGPT2,
     R"("add_cross_attention": false, "dtype": "float32", "pad_token_id": null, "tie_word_embeddings": true,
        "_attn_implementation_autoset": true, "transformers_version": "5.2.0")"},

    {"llama-7b, the first conversions", Head::kLanguage, kLlama,
     R"("architectures": ["LLaMAForCausalLM"], "bos_token_id": 0, "eos_token_id": 1, "hidden_act": "silu",
        "max_sequence_length": 32, "pad_token_id": -1, "torch_dtype": "float16",
        "transformers_version": "4.27.0.dev0")"},
    {"Llama-2-7b-hf", Head::kLanguage, kLlama,
     R"("_name_or_path": "meta-llama/Llama-2-7b-hf", "pretraining_tp": 1, "rope_scaling": null,
        "tie_word_embeddings": false, "use_cache": true)"},
    {"vicuna-7b-v1.5", Head::kLanguage, kLlama,
     R"("max_length": 4096, "max_sequence_length": 32, "pad_token_id": 0, "temperature": 0.9, "top_p": 0.6)"},
    {"CodeLlama-7b", Head::kLanguage, kLlama, R"("pretraining_tp": 1, "rope_scaling": null, "use_flash_attn": true)"},
    {"TinyLlama-1.1B-Chat", Head::kLanguage, kLlama,
     R"("attention_bias": false, "pretraining_tp": 1, "rope_scaling": null, "rope_theta": 10000.0,
        "_flash_attn_2_enabled": true)"},
    {"TinyLlama for browsers", Head::kLanguage, kLlama,
     R"("attention_dropout": 0.0, "mlp_bias": false, "transformers.js_config": {"dtype": "q4", "device": "webgpu"})"},
    {"SmolLM-135M", Head::kLanguage, kLlama,
     R"("attention_bias": false, "attention_dropout": 0.0, "is_llama_config": true, "pad_token_id": null,
        "pretraining_tp": 1, "rope_interleaved": false, "rope_scaling": null, "tie_word_embeddings": false)"},
    {"SmolLM2-135M-Instruct", Head::kLanguage, kLlama,
     R"("is_llama_config": true, "rope_interleaved": false, "initializer_range": 0.041666666666666664,
        "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}})"},
    {"Llama-3.2-1B-Instruct", Head::kLanguage, kLlama3,
     R"("attention_bias": false, "eos_token_id": [57, 58, 60], "head_dim": 4, "mlp_bias": false, "pretraining_tp": 1)"},
    {"Llama-3.2-1B of Unsloth", Head::kLanguage, kLlama3,
     R"("head_dim": 4, "pad_token_id": 59, "unsloth_fixed": true, "unsloth_version": "2024.12.4")"},
    {"llamafied Qwen", Head::kLanguage, kLlama,
     R"("max_window_layers": 28, "sliding_window": null, "use_sliding_window": false, "use_mrope": false)"},
    {"Phi-3 as Llama", Head::kLanguage, kLlama,
     R"("embd_pdrop": 0.0, "resid_pdrop": 0.0, "original_max_position_embeddings": 32, "rope_scaling": null)"},
    {"a classifier's base", Head::kLanguage, kLlama,
     R"("id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}, "problem_type": null, "num_labels": 2,
        "classifier_dropout": 0.1)"},

    {"Qwen1.5-0.5B", Head::kLanguage, kQwen2,
     R"("attention_dropout": 0.0, "max_window_layers": 21, "sliding_window": 32, "use_sliding_window": false)"},
    {"Qwen2.5-0.5B", Head::kLanguage, kQwen2,
     R"("hidden_act": "silu", "max_window_layers": 24, "sliding_window": 32, "use_cache": true, "use_mrope": false,
        "use_sliding_window": false)"},
    {"Qwen2.5-0.5B-Instruct of Unsloth", Head::kLanguage, kQwen2,
     R"("pad_token_id": 59, "unsloth_fixed": true, "sliding_window": null, "use_sliding_window": false)"},
    {"Qwen2.5-0.5B, trained on and saved", Head::kLanguage, kQwen2,
     R"("use_mrope": false, "layer_types": ["full_attention", "full_attention"], "use_sliding_window": false,
        "_attn_implementation_internal": "sdpa", "dtype": "bfloat16")"},
    {"Qwen3-0.6B", Head::kLanguage, kQwen3,
     R"("attention_bias": false, "max_window_layers": 28, "rope_scaling": null, "sliding_window": null,
        "use_sliding_window": false)"},
    {"Mistral-7B-v0.1", Head::kLanguage, kMistral,
     R"("hidden_act": "silu", "rope_theta": 10000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16")"},
    {"zephyr-7b-beta", Head::kLanguage, kMistral,
     R"("_name_or_path": "dpo_final", "attention_dropout": 0.0, "pad_token_id": 2, "_flash_attn_2_enabled": true)"},
    {"Phi-3-mini of Unsloth", Head::kLanguage, kMistral,
     R"("attention_bias": false, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "original_max_position_embeddings": 32,
        "unsloth_version": "2024.9")"},

    {"bert-base-multilingual-cased", Head::kNone, kBert,
     R"("directionality": "bidi", "pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
        "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "position_embedding_type": "absolute",
        "gradient_checkpointing": false, "type_vocab_size": 2)"},
    {"TinyBERT_General_4L_312D", Head::kNone, kBert,
     R"("cell": {}, "emb_size": 16, "structure": [], "pre_trained": "", "training": "")"},
    {"all-MiniLM-L6-v2", Head::kNone, kBert,
     R"("_name_or_path": "nreimers/MiniLM-L6-H384-uncased", "gradient_checkpointing": false, "pad_token_id": 0,
        "position_embedding_type": "absolute", "layer_norm_eps": 1e-12)"},
    {"bert-base-NER", Head::kToken, kBert,
     R"("_num_labels": 2, "id2label": {"0": "O", "1": "B-PER"}, "label2id": {"B-PER": 1, "O": 0},
        "output_past": true)"},
    {"ms-marco-MiniLM-L-6-v2", Head::kSequence, kBert,
     R"("id2label": {"0": "LABEL_0", "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
        "sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity")"},
    {"ms-marco-MiniLM-L6-v2, saved anew", Head::kSequence, kBert,
     R"("sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "4.1.0.dev0"})"},
    {"twitter-roberta-base-sentiment", Head::kSequence, kRoberta,
     R"("bos_token_id": 0, "eos_token_id": 2, "gradient_checkpointing": false, "pad_token_id": 1)"},
    {"nli-distilroberta-base", Head::kSequence, kRoberta,
     R"("_num_labels": 3, "classifier_dropout": null, "position_embedding_type": "absolute",
        "sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid")"},

    {"bert-base-uncased", Head::kMasked, kBert,
     R"("architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1, "gradient_checkpointing": false,
        "hidden_dropout_prob": 0.1, "initializer_range": 0.02, "layer_norm_eps": 1e-12, "pad_token_id": 0,
        "position_embedding_type": "absolute", "type_vocab_size": 2, "use_cache": true)"},
    {"roberta-base", Head::kMasked, kRoberta,
     R"("architectures": ["RobertaForMaskedLM"], "bos_token_id": 0, "eos_token_id": 2, "hidden_act": "gelu",
        "initializer_range": 0.02, "pad_token_id": 1, "tie_word_embeddings": true)"},
    {"distilbert-base-uncased", Head::kMasked, kDistilBert,
     R"("architectures": ["DistilBertForMaskedLM"], "attention_dropout": 0.1, "dropout": 0.1, "initializer_range": 0.02,
        "pad_token_id": 0, "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": false,
        "tie_weights_": true, "transformers_version": "4.10.0.dev0")"},
    {"distilbert-base-multilingual-cased", Head::kNone, kDistilBert,
     R"("attention_dropout": 0.1, "dropout": 0.1, "initializer_range": 0.02, "output_past": true, "pad_token_id": 0,
        "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": false, "tie_weights_": true)"},
    {"distilbert-base-uncased-finetuned-sst-2-english", Head::kSequence, kDistilBert,
     R"("finetuning_task": "sst-2", "id2label": {"0": "NEGATIVE", "1": "POSITIVE"}, "output_past": true,
        "label2id": {"NEGATIVE": 0, "POSITIVE": 1}, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": false,
        "tie_weights_": true)"},
    {"distilbert-NER", Head::kToken, kDistilBert,
     R"("id2label": {"0": "O", "1": "B-PER"}, "label2id": {"B-PER": 1, "O": 0}, "output_past": true, "pad_token_id": 0,
        "qa_dropout": 0.1, "seq_classif_dropout": 0.2, "sinusoidal_pos_embds": false, "tie_weights_": true,
        "torch_dtype": "float32")"},
    {"a reward model on Llama 3.1", Head::kSequence, kLlamaScore,
     R"("architectures": ["LlamaForSequenceClassification"], "attention_bias": false, "id2label": {"0": "LABEL_0",
        "1": "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1}, "mlp_bias": false, "pretraining_tp": 1,
        "classifier_dropout": 0.1, "use_cache": true)"},
    {"a classifier on Qwen2.5-0.5B", Head::kSequence, kQwen2Score,
     R"("architectures": ["Qwen2ForSequenceClassification"], "max_window_layers": 24, "sliding_window": 32,
        "problem_type": "single_label_classification", "use_mrope": false, "use_sliding_window": false)"},

    {"vit-base-patch16-224", Head::kImage, kViT,
     R"("encoder_stride": 16, "attention_probs_dropout_prob": 0.0, "label2id": {"cat": 0, "cow": 2, "dog": 1},
        "num_channels": 3, "qkv_bias": true)"},
    {"nsfw_image_detection", Head::kImage, kViT,
     R"("problem_type": "single_label_classification", "pooler_act": "tanh", "pooler_output_size": 16,
        "processor_class": "ViTProcessor")"},
    {"segformer-b0-finetuned-ade-512-512", Head::kSegmentation, kSegformer,
     R"("downsampling_rates": [1, 4, 8, 16], "image_size": 224, "layer_norm_eps": 1e-06, "reshape_last_stage": true,
        "semantic_loss_ignore_index": 255, "tie_word_embeddings": true)"},
    {"vit-gpt2-image-captioning", Head::kCaption, kCaptioner,
     R"("architectures": ["VisionEncoderDecoderModel"], "bos_token_id": 60, "eos_token_id": 60, "is_encoder_decoder": true,
        "tie_word_embeddings": false, "torch_dtype": "float32", "transformers_version": null)"},
};
static_assert(std::size(kPublished) == 49);

std::string text_of(const PublishedConfig& published, const std::string& more) {
  return absl::StrCat("{", published.needed, more.empty() ? "" : ", ", more, "}\n");
}

// Loads a folder and computes with it. `save_to`: there goes the model afterwards, with other weights.
Tensor computed(Head head, const std::string& folder, const PretrainedOptions& options = {},
                const std::string& save_to = "") {
  Generator generator(5);
  const Tensor ids = Tensor::randint(0, 61, {2, 9}, {kI64, kCPU}, &generator).to(default_device());
  const NoGrad off;
  const auto finish = [&](const PretrainedModel& model, const Tensor& result) {
    if (save_to.empty()) return result;
    for (Tensor& p : model->parameters()) p.add_(Tensor::randn(p.sizes(), kCPU, &generator).to(p.device()) * 0.5);
    model.save_pretrained(save_to);
    return result;
  };
  switch (head) {
    case Head::kNone: {
      auto model = AutoModel::from_pretrained(folder, options);
      return finish(model, model(ids));
    }
    case Head::kLanguage: {
      auto model = AutoModelForCausalLM::from_pretrained(folder, options);
      return finish(model, model(ids));
    }
    case Head::kSequence: {
      auto model = AutoModelForSequenceClassification::from_pretrained(folder, options);
      return finish(model, model(ids));
    }
    case Head::kToken: {
      auto model = AutoModelForTokenClassification::from_pretrained(folder, options);
      return finish(model, model(ids));
    }
    case Head::kMasked: {
      auto model = AutoModelForMaskedLM::from_pretrained(folder, options);
      return finish(model, model(ids));
    }
    case Head::kImage: {
      auto model = AutoModelForImageClassification::from_pretrained(folder, options);
      return finish(model, model(Tensor::randn({2, 3, 8, 8}, kCPU, &generator).to(default_device())));
    }
    case Head::kSegmentation: {
      auto model = AutoModelForSemanticSegmentation::from_pretrained(folder, options);
      return finish(model, model(Tensor::randn({1, 3, 32, 32}, kCPU, &generator).to(default_device())));
    }
    case Head::kCaption: {
      auto model = AutoModelForImageTextToText::from_pretrained(folder, options);
      return finish(model, model(Tensor::randn({2, 3, 8, 8}, kCPU, &generator).to(default_device()), ids));
    }
  }
  return {};
}

// A folder with weights for the fields that the family needs.
struct SmallFolder : TempFolder {
  explicit SmallFolder(const PublishedConfig& published) : published(published) {
    write_bytes(*this / "config.json", text_of(published, ""));
    io::save_safetensors(*this / "model.safetensors", {}, {{"format", "pt"}});
    computed(published.head, path(), {.fresh = {""}, .seed = 3}, path());
    write_bytes(*this / "config.json", text_of(published, ""));
    plain = computed(published.head, path());
    EXPECT_GT(plain.abs().max().item(), 0);
  }
  const PublishedConfig& published;
  Tensor plain;  // what the model without further fields computes
};

TEST(PublishedConfigs, FieldsThatChangeNothing) {
  for (const PublishedConfig& published : kPublished) {
    SCOPED_TRACE(published.name);
    const SmallFolder folder(published);
    write_bytes(folder / "config.json", text_of(published, published.more));
    try {
      EXPECT_TRUE(test::same_bits(computed(published.head, folder.path()), folder.plain));
    } catch (const ConfigError& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(PublishedConfigs, OneHarmfulFieldIsRefusedByName) {
  constexpr struct {
    PublishedConfig base;
    const char* named;  // where it is not the field as it is written
    bool known = true;  // the table knows it: allow_unknown_fields does not open it
  } kHarmful[] = {
      {{"", Head::kLanguage, kGPT2, R"("scale_attn_by_inverse_layer_idx": true)"}, nullptr},
      {{"", Head::kLanguage, kGPT2, R"("n_special": 2)"}, nullptr},
      {{"", Head::kLanguage, kGPT2, R"("add_cross_attention": true)"}, nullptr},
      {{"", Head::kLanguage, kLlama, R"("rope_interleaved": true)"}, nullptr},
      {{"", Head::kLanguage, kLlama, R"("is_llama_config": false)"}, nullptr},
      {{"", Head::kLanguage, kLlama, R"("sliding_window": 4)"}, nullptr},
      {{"", Head::kLanguage, kLlama, R"("quantization": {"bits": 4})"}, nullptr},
      {{"", Head::kLanguage, kLlama, R"("quantization_config": {"bits": 4})"}, nullptr},
      {{"", Head::kLanguage, kLlama, R"("partial_rotary_factor": 0.5)"}, nullptr},
      {{"", Head::kLanguage, kLlama, R"("rope_scaling": {"type": "default", "partial_rotary_factor": 0.5})"},
       "rope_scaling.partial_rotary_factor: 0.5"},
      {{"", Head::kLanguage, kLlama, R"("rope_scaling": {"type": "default", "mrope_section": [2, 1, 1]})"},
       "rope_scaling.mrope_section: [2, 1, 1]",
       false},
      {{"", Head::kLanguage, kLlama, R"("logits_scaling": 8.0)"}, nullptr, false},
      {{"", Head::kLanguage, kQwen2, R"("use_mrope": true)"}, nullptr},
      {{"", Head::kLanguage, kQwen2, R"("mlp_bias": true)"}, nullptr},
      {{"", Head::kLanguage, kQwen2, R"("qk_layernorm": true)"}, nullptr},
      {{"", Head::kLanguage, kQwen2, R"("dual_chunk_attention_config": {"chunk_size": 8})"}, nullptr, false},
      {{"", Head::kLanguage, kMistral, R"("attention_bias": true)"}, nullptr},
      {{"", Head::kLanguage, kMistral, R"("embd_pdrop": 0.1)"}, nullptr},
      {{"", Head::kSequence, kBert, R"("position_embedding_type": "relative_key_query")"}, nullptr},
      {{"", Head::kNone, kBert, R"("emb_size": 312)"}, nullptr},
      {{"", Head::kSequence, kBert, R"("sbert_ce_default_activation_function": "torch.nn.modules.activation.Tanh")"},
       nullptr},
      {{"", Head::kSequence, kBert, R"("sentence_transformers": {"activation_fn": "Tanh", "version": "5.0"})"},
       "sentence_transformers.activation_fn: \"Tanh\""},
      {{"", Head::kSequence, kRoberta, R"("is_decoder": true)"}, nullptr},
      {{"", Head::kMasked, kBert, R"("tie_word_embeddings": false)"}, nullptr},
      {{"", Head::kSequence, kDistilBert, R"("is_decoder": true)"}, nullptr},
      {{"", Head::kSequence, kDistilBert, R"("pruned_heads": {"0": [1]})"}, nullptr},
      {{"", Head::kToken, kDistilBert, R"("type_vocab_size": 2)"}, nullptr, false},
      {{"", Head::kSequence, kLlamaScore, R"("attention_dropout": 0.1)"}, nullptr},
      {{"", Head::kImage, kViT, R"("layer_scale_init_value": 0.1)"}, nullptr, false},
      {{"", Head::kSegmentation, kSegformer, R"("reshape_last_stage": false)"}, nullptr},
      {{"", Head::kCaption, kCaptioner, R"("is_encoder_decoder": false)"}, nullptr},
      {{"", Head::kCaption, kCaptioner, R"("cross_attention_hidden_size": 16)"}, nullptr},
      {{"", Head::kCaption, kCaptioner, R"("num_query_tokens": 32)"}, nullptr, false},
  };
  static_assert(std::size(kHarmful) >= 20);
  for (const auto& harmful : kHarmful) {
    SCOPED_TRACE(harmful.base.more);
    const SmallFolder folder(harmful.base);
    write_bytes(folder / "config.json", text_of(harmful.base, harmful.base.more));
    std::string named = harmful.named != nullptr ? harmful.named : harmful.base.more;
    if (harmful.named == nullptr) {  // without the quotes around the name
      named.erase(0, 1);
      named.erase(named.find('"'), 1);
    }
    const auto refused = [&](const PretrainedOptions& options) {
      try {
        computed(harmful.base.head, folder.path(), options);
      } catch (const ConfigError& error) {
        EXPECT_TRUE(error.problems().missing.empty() && error.problems().invalid.empty()) << error.what();
        return (harmful.known ? error.problems().unsupported : error.problems().unknown) ==
               std::vector<std::string>{named};
      }
      return false;
    };
    EXPECT_TRUE(refused({})) << named;
    EXPECT_EQ(refused({.allow_unknown_fields = true}), harmful.known) << named;
  }
}

// The message says how to go on.
TEST(PublishedConfigs, TheMessageNamesTheOption) {
  const SmallFolder folder(kPublished[0]);
  write_bytes(folder / "config.json", text_of(kPublished[0], R"("brand_new": 1)"));
  try {
    computed(Head::kLanguage, folder.path());
    ADD_FAILURE() << "an unknown field was taken";
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    for (const char* part : {"brand_new: 1", "allow_unknown_fields", "--allow_unknown_fields"})
      EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_TRUE(test::same_bits(computed(Head::kLanguage, folder.path(), {.allow_unknown_fields = true}), folder.plain));
}

}  // namespace
}  // namespace rondo::nn
