// config.json and names of BERT (MiniLM among them), RoBERTa and DistilBERT.
#include "rondo/modules/transformers/bert.h"

#include "absl/strings/str_cat.h"
#include "rondo/modules/pretrained/published.h"
#include "rondo/modules/transformers/bert_names.h"

namespace rondo::nn {
namespace {

// config.json's names of the fields that all three families have.
struct FieldNames {
  const char *n_layer, *n_head, *n_embd, *n_hidden, *dropout, *attention_dropout, *gelu;
};
constexpr FieldNames kBertNames = {"num_hidden_layers", "num_attention_heads", "hidden_size",
                                   "intermediate_size", "hidden_dropout_prob", "attention_probs_dropout_prob",
                                   "hidden_act"};
constexpr FieldNames kDistilBertNames = {"n_layers", "n_heads",           "dim",       "hidden_dim",
                                         "dropout",  "attention_dropout", "activation"};
constexpr double kDistilBertEps = 1e-12;  // DistilBERT's config.json has no field for eps

bool is_bert_task(Task task) {
  return task == Task::kBase || task == Task::kSequenceClassification || task == Task::kTokenClassification ||
         task == Task::kMaskedLM;
}

const FieldNames& names_of(const BertConfig& c) { return c.distilbert ? kDistilBertNames : kBertNames; }

std::vector<ConfigField> config_of(const BertConfig& c) {
  const FieldNames& names = names_of(c);
  std::vector<ConfigField> fields = {{names.attention_dropout, json_text(c.attention_dropout)},
                                     {names.gelu, json_text(gelu_name(c.gelu))},
                                     {names.dropout, json_text(c.dropout)},
                                     {names.n_embd, json_text(c.n_embd)},
                                     {names.n_hidden, json_text(c.n_hidden)},
                                     {"max_position_embeddings", json_text(c.block_size)},
                                     {names.n_head, json_text(c.n_head)},
                                     {names.n_layer, json_text(c.n_layer)},
                                     {"pad_token_id", c.padding_idx ? json_text(*c.padding_idx) : "null"},
                                     {"vocab_size", json_text(c.vocab_size)}};
  if (!c.distilbert) {
    fields.push_back({"layer_norm_eps", json_text(c.norm_eps)});
    fields.push_back({"type_vocab_size", json_text(c.n_segment)});
  }
  return fields;
}

}  // namespace

static std::unique_ptr<ModuleBase> make_bert(ConfigFields& config, Task task, const PretrainedOptions& options) {
  if (!is_bert_task(task)) return nullptr;
  BertConfig c;
  const std::string family = config.word("model_type", "bert");
  c.roberta = family == "roberta";
  c.distilbert = family == "distilbert";
  const FieldNames& names = names_of(c);
  c.vocab_size = config.size("vocab_size");
  c.block_size = config.size("max_position_embeddings", 512);
  if (!c.distilbert) c.n_segment = config.size("type_vocab_size", 2);
  c.n_layer = config.size(names.n_layer, {}, kMostLayers);
  c.n_head = config.size(names.n_head);
  c.n_embd = config.size(names.n_embd);
  c.n_hidden = config.size(names.n_hidden);
  c.dropout = read_dropout(config, names.dropout, 0.1, options);
  c.attention_dropout = read_dropout(config, names.attention_dropout, 0.1, options);
  BertTaskOptions task_options = {.seed = options.seed};
  if (!c.distilbert) task_options.classifier_dropout = read_dropout(config, "classifier_dropout", c.dropout, options);
  else if (task == Task::kSequenceClassification)
    task_options.classifier_dropout = read_dropout(config, "seq_classif_dropout", 0.2, options);
  c.norm_eps = c.distilbert ? kDistilBertEps : config.positive("layer_norm_eps", 1e-12);
  c.gelu = read_gelu(config, names.gelu, "gelu");
  c.padding_idx = config.row("pad_token_id", c.vocab_size);
  // null: no padding row. RoBERTa needs one, because its positions count from it.
  if (!c.padding_idx && (c.roberta || !config.is_null("pad_token_id"))) c.padding_idx = c.roberta ? 1 : 0;
  if (c.roberta && (config.is_null("pad_token_id") || config.negative("pad_token_id")))
    config.unsupported("pad_token_id");
  if (c.roberta && c.max_length() < 1) config.invalid("max_position_embeddings", "more than pad_token_id + 1");
  if (c.n_embd % c.n_head != 0) config.invalid(names.n_head, absl::StrCat("a divisor of ", names.n_embd));
  if (task == Task::kMaskedLM) config.must_be("tie_word_embeddings", "true");
  for (const char* width : {"emb_size", "embedding_size"}) config.must_be(width, absl::StrCat(c.n_embd));
  c.num_classes = read_labels(config, options);
  c.problem_type = read_problem_type(config, c.num_classes, options);
  config.check(options.allow_unknown_fields);
  const SkipInit skip(SkipInit::Memory::kNone);
  switch (task) {
    case Task::kSequenceClassification:
      if (c.roberta) return std::make_unique<RobertaForSequenceClassification>(c, task_options);
      return std::make_unique<BertForSequenceClassification>(c, task_options);
    case Task::kTokenClassification: return std::make_unique<BertForTokenClassification>(c, task_options);
    case Task::kMaskedLM: return std::make_unique<BertForMaskedLM>(c);
    default: return std::make_unique<BertModel>(c, /*has_pooler=*/!c.distilbert);
  }
}

static bool describe_bert(ModuleBase& module, Published& out) {
  // The names are taken from a new model of the same sizes, because this one may hold an adapter's tensors, too.
  const SkipInit skip(SkipInit::Memory::kNone);
  BertConfig c;
  std::optional<double> classifier_dropout;
  std::string task;
  if (auto* base = dynamic_cast<BertModel*>(&module)) {
    c = base->config;
    task = "Model";
    BertModel plain(c, base->pooler != nullptr);
    out.tensors = same_names(plain);
    if (c.distilbert && base->pooler != nullptr) out.why_unpublished = "a pooler";
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
    if (c.distilbert && classifier_dropout.value_or(c.dropout) != c.dropout)
      out.why_unpublished = "a classifier_dropout of its own";
  } else if (auto* masked = dynamic_cast<BertForMaskedLM*>(&module)) {
    c = masked->config;
    task = "ForMaskedLM";
    BertForMaskedLM plain(c);
    out.tensors = same_names(plain);
    // Usually the output layer's weight is that of the word embeddings. If an adapter has trained only one of the two,
    // merge_and_unload() has untied them.
    if (masked->head.decoder.weight.impl() != masked->bert.embeddings.word_embeddings.weight.impl())
      out.why_unpublished = "an output layer that is not the word embeddings";
  } else {
    return false;
  }
  out.model_type = bert_body_name(c);
  out.architecture = absl::StrCat(c.roberta ? "Roberta" : c.distilbert ? "DistilBert" : "Bert", task);
  out.prefix = out.model_type + ".";
  for (PublishedTensor& tensor : out.tensors) tensor.file_name = published_bert_name(c, tensor.name);
  if (task == "ForMaskedLM") {
    // Some files hold the output layer's tensors a second time, under these names.
    const std::string decoder = published_bert_name(c, "head.decoder");
    out.aliases = {{decoder + ".weight", out.prefix + "embeddings.word_embeddings.weight"}};
    if (!c.distilbert) out.aliases[decoder + ".bias"] = published_bert_name(c, "head.decoder.bias");
  }
  out.computed = {"embeddings.position_ids", "embeddings.token_type_ids"};
  out.config = config_of(c);
  if (c.distilbert && c.norm_eps != kDistilBertEps) out.why_unpublished = absl::StrCat("norm_eps = ", c.norm_eps);
  const bool sequence = task == "ForSequenceClassification", classifier = sequence || task == "ForTokenClassification";
  if (!classifier) return true;
  if (c.distilbert && sequence)
    out.config.push_back({"seq_classif_dropout", json_text(classifier_dropout.value_or(c.dropout))});
  if (!c.distilbert && classifier_dropout) out.config.push_back({"classifier_dropout", json_text(*classifier_dropout)});
  for (ConfigField& field : label_fields(c.num_classes)) out.config.push_back(std::move(field));
  if (c.problem_type) out.config.push_back({"problem_type", json_text(name_of(*c.problem_type))});
  return true;
}

// Two classes have this task.
constexpr TextCalls kBertSequence = text_calls<BertForSequenceClassification>();
constexpr TextCalls kRobertaSequence = text_calls<RobertaForSequenceClassification>();
static const TextCalls& sequence_calls(const ModuleBase& model) {
  return dynamic_cast<const RobertaForSequenceClassification*>(&model) != nullptr ? kRobertaSequence : kBertSequence;
}

extern constexpr Family kBertFamily = {
    .model_types = {"bert", "roberta", "distilbert"},
    .classes = {"BertModel", "BertForSequenceClassification", "RobertaForSequenceClassification",
                "BertForTokenClassification", "BertForMaskedLM"},
    .make = &make_bert,
    .describe = &describe_bert,
    .features = [](ModuleBase& model, TensorArg idx, const Tensor& mask,
                   const Tensor& segments) { return dynamic_cast<BertModel&>(model)(idx, mask, segments); },
    .takes_mask = true,
    .sequence = {.logits =
                     [](ModuleBase& model, TensorArg idx, const Tensor& mask, const Tensor& segments) {
                       return sequence_calls(model).logits(model, idx, mask, segments);
                     },
                 .loss =
                     [](ModuleBase& model, const Tensor& idx, const Tensor& mask, const Tensor& segments,
                        const Tensor& targets, std::source_location where) {
                       return sequence_calls(model).loss(model, idx, mask, segments, targets, where);
                     }},
    .token = text_calls<BertForTokenClassification>(),
    .masked = text_calls<BertForMaskedLM>(),
    .facts =
        [](const ModuleBase& model) {
          const BertConfig& c = *bert_config(model);
          return TextClassifierFacts{c.vocab_size,  c.max_length(), c.padding_idx,
                                     !c.distilbert, c.num_classes,  c.problem_type};
        },
};

}  // namespace rondo::nn
