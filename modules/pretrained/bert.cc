// config.json and names of BERT (MiniLM among them) and RoBERTa.
#include "rondo/modules/bert.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/bert_tasks.h"
#include "rondo/modules/pretrained/published.h"

namespace rondo::nn {

static std::unique_ptr<ModuleBase> make_bert(ConfigFields& config, Task task, const PretrainedOptions& options) {
  if (task != Task::kBase && task != Task::kSequenceClassification && task != Task::kTokenClassification)
    return nullptr;
  BertConfig c;
  c.roberta = config.word("model_type", "bert") == "roberta";
  c.vocab_size = config.size("vocab_size");
  c.block_size = config.size("max_position_embeddings", 512);
  c.n_segment = config.size("type_vocab_size", 2);
  c.n_layer = config.size("num_hidden_layers", {}, kMostLayers);
  c.n_head = config.size("num_attention_heads");
  c.n_embd = config.size("hidden_size");
  c.n_hidden = config.size("intermediate_size");
  c.dropout = read_dropout(config, "hidden_dropout_prob", 0.1, options);
  c.attention_dropout = read_dropout(config, "attention_probs_dropout_prob", 0.1, options);
  BertTaskOptions task_options = {.seed = options.seed};
  task_options.classifier_dropout = read_dropout(config, "classifier_dropout", c.dropout, options);
  c.norm_eps = config.positive("layer_norm_eps", 1e-12);
  c.gelu = read_gelu(config, "hidden_act", "gelu");
  c.padding_idx = config.row("pad_token_id", c.vocab_size);
  // null is no padding row. RoBERTa's positions count from it.
  if (!c.padding_idx && (c.roberta || !config.is_null("pad_token_id"))) c.padding_idx = c.roberta ? 1 : 0;
  if (c.roberta && (config.is_null("pad_token_id") || config.negative("pad_token_id")))
    config.unsupported("pad_token_id");
  if (c.roberta && c.max_length() < 1) config.invalid("max_position_embeddings", "more than pad_token_id + 1");
  if (c.n_embd % c.n_head != 0) config.invalid("num_attention_heads", "a divisor of hidden_size");
  for (const char* width : {"emb_size", "embedding_size"}) config.must_be(width, absl::StrCat(c.n_embd));
  c.n_class = read_labels(config, options);
  c.problem_type = read_problem_type(config, c.n_class, options);
  config.check(options.allow_unknown_fields);
  const SkipInit skip(SkipInit::Memory::kNone);
  switch (task) {
    case Task::kSequenceClassification:
      if (c.roberta) return std::make_unique<RobertaForSequenceClassification>(c, task_options);
      return std::make_unique<BertForSequenceClassification>(c, task_options);
    case Task::kTokenClassification: return std::make_unique<BertForTokenClassification>(c, task_options);
    default: return std::make_unique<BertModel>(c);
  }
}

static bool describe_bert(ModuleBase& module, Published& out) {
  // Names come from a model of the same sizes: this one may hold an adapter's tensors, too.
  const SkipInit skip(SkipInit::Memory::kNone);
  BertConfig c;
  std::optional<double> classifier_dropout;
  std::string task;
  if (auto* base = dynamic_cast<BertModel*>(&module)) {
    c = base->config;
    task = "Model";
    BertModel plain(c, base->pooler != nullptr);
    out.tensors = same_names(plain);
  } else if (auto* sequence = dynamic_cast<BertForSequenceClassification*>(&module)) {
    c = sequence->config;
    classifier_dropout = sequence->options.classifier_dropout;
    task = "ForSequenceClassification";
    BertForSequenceClassification plain(c);
    out.tensors = same_names(plain);
    if (c.roberta) out.why_unpublished = "roberta in BertForSequenceClassification";
  } else if (auto* roberta = dynamic_cast<RobertaForSequenceClassification*>(&module)) {
    c = roberta->config;
    classifier_dropout = roberta->options.classifier_dropout;
    task = "ForSequenceClassification";
    RobertaForSequenceClassification plain(c);
    out.tensors = same_names(plain);
  } else if (auto* token = dynamic_cast<BertForTokenClassification*>(&module)) {
    c = token->config;
    classifier_dropout = token->options.classifier_dropout;
    task = "ForTokenClassification";
    BertForTokenClassification plain(c);
    out.tensors = same_names(plain);
  } else {
    return false;
  }
  out.model_type = c.roberta ? "roberta" : "bert";
  out.architecture = absl::StrCat(c.roberta ? "Roberta" : "Bert", task);
  out.prefix = out.model_type + ".";
  out.computed = {"embeddings.position_ids", "embeddings.token_type_ids"};
  out.config = {{"attention_probs_dropout_prob", json_text(c.attention_dropout)},
                {"hidden_act", json_text(gelu_name(c.gelu))},
                {"hidden_dropout_prob", json_text(c.dropout)},
                {"hidden_size", json_text(c.n_embd)},
                {"intermediate_size", json_text(c.n_hidden)},
                {"layer_norm_eps", json_text(c.norm_eps)},
                {"max_position_embeddings", json_text(c.block_size)},
                {"num_attention_heads", json_text(c.n_head)},
                {"num_hidden_layers", json_text(c.n_layer)},
                {"pad_token_id", c.padding_idx ? json_text(*c.padding_idx) : "null"},
                {"type_vocab_size", json_text(c.n_segment)},
                {"vocab_size", json_text(c.vocab_size)}};
  if (classifier_dropout) out.config.push_back({"classifier_dropout", json_text(*classifier_dropout)});
  if (task != "Model")
    for (ConfigField& field : label_fields(c.n_class)) out.config.push_back(std::move(field));
  if (task != "Model" && c.problem_type) out.config.push_back({"problem_type", json_text(name_of(*c.problem_type))});
  return true;
}

// Two classes have this task.
constexpr TextCalls kBertSequence = text_calls<BertForSequenceClassification>();
constexpr TextCalls kRobertaSequence = text_calls<RobertaForSequenceClassification>();
static const TextCalls& sequence_calls(const ModuleBase& model) {
  return dynamic_cast<const RobertaForSequenceClassification*>(&model) != nullptr ? kRobertaSequence : kBertSequence;
}

extern constexpr Family kBertFamily = {
    .model_types = {"bert", "roberta"},
    .classes = {"BertModel", "BertForSequenceClassification", "RobertaForSequenceClassification",
                "BertForTokenClassification"},
    .make = &make_bert,
    .describe = &describe_bert,
    .features = [](ModuleBase& model, TensorArg idx, const Tensor& mask,
                   const Tensor& segments) { return dynamic_cast<BertModel&>(model)(idx, mask, segments); },
    .takes_mask = true,
    .sequence = {
        .logits = [](ModuleBase& model, TensorArg idx, const Tensor& mask,
                     const Tensor& segments) { return sequence_calls(model).logits(model, idx, mask, segments); },
        .loss =
            [](ModuleBase& model, const Tensor& idx, const Tensor& mask, const Tensor& segments, const Tensor& targets,
               std::source_location where) {
              return sequence_calls(model).loss(model, idx, mask, segments, targets, where);
            }},
    .token = text_calls<BertForTokenClassification>(),
};

}  // namespace rondo::nn
