#include "rondo/modules/pretrained/harmless_fields.h"

#include <algorithm>

namespace rondo::nn {
namespace {

constexpr std::string_view kAny = "*";
constexpr std::string_view kItsFields = "{...}";
constexpr std::string_view kEncoders = "bert roberta distilbert", kLlamas = "llama qwen2 qwen3 mistral",
                           kCausal = "gpt2 llama qwen2 qwen3 mistral", kPictures = "image_processor";

// A row of the table. Each member is a list of words with spaces between them. Only fields that the family does not
// read itself (ConfigFields' getters) are looked up here.
struct Row {
  std::string_view fields;         // "prefix_*": all that begin with prefix_
  std::string_view values;         // JSON texts with which the fields are harmless, or kAny, or kItsFields
  std::string_view families = {};  // "": all
};
constexpr Row kRows[] = {
    // ---- Parts of other models, switched off
    {"is_encoder_decoder is_decoder add_cross_attention tie_encoder_decoder", "false"},
    {"cross_attention_hidden_size", "null"},
    {"quantization quantization_config compression_config", "null"},  // weights of another form
    {"pruned_heads", "{}"},
    {"auto_map", "{}"},  // code of the model's own

    // ---- Fields that choose between formulas, with the values whose formulas Rondo computes
    {"scale_attn_weights tie_word_embeddings", "true", "gpt2"},
    {"scale_attn_by_inverse_layer_idx", "false", "gpt2"},
    {"hidden_act", "\"silu\" \"swish\"", kLlamas},
    {"attention_bias", "false", "qwen2 mistral"},
    {"mlp_bias", "false", "qwen2 qwen3 mistral"},
    {"qk_layernorm qk_norm use_qk_norm", "false", "llama qwen2 mistral"},
    {"partial_rotary_factor rope_parameters.partial_rotary_factor rope_scaling.partial_rotary_factor", "1 1.0",
     kLlamas},
    {"use_mrope", "false", kLlamas},         // positions of images and videos
    {"rope_interleaved", "false", kLlamas},  // pairs of neighbours instead of halves
    {"is_llama_config", "true", kLlamas},
    {"sliding_window use_sliding_window", "false", "llama"},  // Llama has no window
    {"embd_pdrop resid_pdrop hidden_dropout", "0 0.0", kLlamas},
    {"n_special", "0", "gpt2"},  // the number of further embeddings
    {"position_embedding_type", "\"absolute\"", kEncoders},
    {"cell", "{}", kEncoders},  // TinyBERT's search
    {"structure", "[]", kEncoders},
    {"pre_trained training", "\"\"", kEncoders},
    {"reshape_last_stage", "true", "segformer"},  // false: the head reshapes the last features

    // ---- Fields that transformers does not read in this family
    {"n_ctx n_positions", kAny, "gpt2"},  // two names of one field; the first that is present is read
    // Upcasting changes nothing: attention always accumulates in the wider type.
    {"reorder_and_upcast_attn", kAny, "gpt2"},
    // How projections were cut for tensor parallel training: another order of the same sums.
    {"pretraining_tp", kAny, kLlamas},
    {"max_window_layers", kAny, "llama"},                 // has no effect without a window
    {"original_max_position_embeddings", kAny, kLlamas},  // has no effect without rope_scaling
    {"layer_norm_eps", kAny, "segformer"},                // every LayerNorm of SegFormer has 1e-5
    {"downsampling_rates image_size", kAny, "segformer"},
    {"sinusoidal_pos_embds", kAny, "distilbert"},  // initial position embeddings; the file holds trained ones

    // ---- Heads and tasks that these models do not have
    {"classifier_dropout id2label num_labels problem_type", kAny, kCausal},
    {"id2label num_labels problem_type", kAny, "vision-encoder-decoder"},
    {"predict_special_tokens summary_activation summary_first_dropout summary_proj_to_labels summary_type "
     "summary_use_proj",
     kAny, "gpt2"},
    {"tie_word_embeddings", kAny,  // a masked language model reads it, and a decoder its own
     "bert roberta distilbert vit segformer vision-encoder-decoder"},
    {"classifier_dropout qa_dropout seq_classif_dropout tie_weights_", kAny, "distilbert"},
    {"directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type",
     kAny, kEncoders},
    {"encoder_stride pooler_act pooler_output_size", kAny, "vit"},
    {"problem_type", kAny, "segformer"},
    {"_num_labels label2id", kAny},  // id2label is read instead

    // ---- What other programs do with the logits. The functions Identity and Sigmoid keep the logit of a single label,
    // or turn it into a probability. Sentence Transformers does this without the field, too.
    {"sentence_transformers", kItsFields, kEncoders},
    {"sentence_transformers.version", kAny, kEncoders},
    {"sbert_ce_default_activation_function sentence_transformers.activation_fn",
     "\"torch.nn.modules.linear.Identity\" \"torch.nn.modules.activation.Sigmoid\"", kEncoders},

    // ---- Tokens and generation
    {"bos_token_id cls_token_id decoder_start_token_id eos_token_id eos_token_ids forced_bos_token_id "
     "forced_eos_token_id mask_token_id pad_token_id sep_token_id unk_token_id",
     kAny},
    {"bad_words_ids begin_suppress_tokens cache_implementation diversity_penalty do_sample early_stopping "
     "encoder_no_repeat_ngram_size exponential_decay_length_penalty length_penalty max_length max_new_tokens "
     "min_length no_repeat_ngram_size num_beam_groups num_beams num_return_sequences remove_invalid_values "
     "repetition_penalty suppress_tokens temperature top_k top_p typical_p use_cache",
     kAny},
    // The longest text that a tokenizer or a trainer makes.
    {"max_seq_length max_sequence_length model_max_length seq_length tokenizer_model_max_length", kAny},
    {"prefix processor_class task_specific_params tokenizer_class", kAny},

    // ---- How a forward pass is run, and in which form it gives its results
    {"_attn_implementation _attn_implementation_autoset _attn_implementation_internal _flash_attn_2_enabled "
     "attn_implementation chunk_size_feed_forward gradient_checkpointing torchscript use_bfloat16 use_flash_attn "
     "use_flash_attention use_flash_attention_2",
     kAny},
    {"keys_to_ignore_at_inference output_attentions output_hidden_states output_past output_scores return_dict "
     "return_dict_in_generate tf_legacy_loss",
     kAny},

    // ---- preprocessor_config.json
    {"do_pad do_flip_channel_order use_square_size", "false", kPictures},
    {"data_format", "\"channels_first\"", kPictures},
    // Fields that transformers does not read in this class of processors, or only if `do_pad` is true.
    {"crop_pct crop_size do_center_crop do_reduce_labels pad_size reduce_labels", kAny, kPictures},
    {"default_to_square device disable_grouping image_seq_length input_data_format return_tensors use_fast "
     "_valid_processor_keys",
     kAny, kPictures},

    // ---- How the files were made, and for which programs
    {"_commit_hash _name_or_path architectures dtype finetuning_task initializer_factor initializer_range model_type "
     "name_or_path torch_dtype transformers_version",
     kAny},
    {"transformers.js_config unsloth_*", kAny},
};

bool has_word(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const size_t end = std::min(words.find(' '), words.size());
    const std::string_view one = words.substr(0, end);
    if (one.ends_with('*') ? word.starts_with(one.substr(0, end - 1)) : word == one) return true;
    words.remove_prefix(std::min(end + 1, words.size()));
  }
  return false;
}

}  // namespace

FieldEffect effect_of(std::string_view model_type, std::string_view field, std::string_view json) {
  for (const Row& row : kRows) {
    if (!has_word(row.fields, field) || (!row.families.empty() && !has_word(row.families, model_type))) continue;
    if (json == "null" || row.values == kAny) return FieldEffect::kNone;
    if (row.values == kItsFields) return FieldEffect::kOfItsFields;
    return has_word(row.values, json) ? FieldEffect::kNone : FieldEffect::kChanges;
  }
  return FieldEffect::kUnknown;
}

}  // namespace rondo::nn
