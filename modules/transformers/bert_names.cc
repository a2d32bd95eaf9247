#include "rondo/modules/transformers/bert_names.h"

#include <span>
#include <string_view>

namespace rondo::nn {
namespace {

struct Renamed {
  std::string_view ours, theirs;  // whole parts between dots
};
constexpr Renamed kBert[] = {{"head.decoder.bias", "cls.predictions.bias"},
                             {"head.decoder", "cls.predictions.decoder"},
                             {"head.dense", "cls.predictions.transform.dense"},
                             {"head.layer_norm", "cls.predictions.transform.LayerNorm"}};
constexpr Renamed kRoberta[] = {{"head.decoder.bias", "lm_head.bias"}, {"head", "lm_head"}};
constexpr Renamed kDistilBert[] = {{"encoder.layer", "transformer.layer"},
                                   {"attention.self.query", "attention.q_lin"},
                                   {"attention.self.key", "attention.k_lin"},
                                   {"attention.self.value", "attention.v_lin"},
                                   {"attention.output.dense", "attention.out_lin"},
                                   {"attention.output.LayerNorm", "sa_layer_norm"},
                                   {"intermediate.dense", "ffn.lin1"},
                                   {"output.dense", "ffn.lin2"},
                                   {"output.LayerNorm", "output_layer_norm"},
                                   {"distilbert.pooler.dense", "pre_classifier"},
                                   {"head.dense", "vocab_transform"},
                                   {"head.layer_norm", "vocab_layer_norm"},
                                   {"head.decoder", "vocab_projector"}};

template <class M> const BertConfig* config_of(const ModuleBase& model) {
  const auto* m = dynamic_cast<const M*>(&model);
  return m != nullptr ? &m->config : nullptr;
}

}  // namespace

const BertConfig* bert_config(const ModuleBase& model) {
  for (const auto of :
       {&config_of<BertModel>, &config_of<BertForSequenceClassification>, &config_of<RobertaForSequenceClassification>,
        &config_of<BertForTokenClassification>, &config_of<BertForMaskedLM>})
    if (const BertConfig* config = of(model)) return config;
  return nullptr;
}

std::string published_bert_name(const BertConfig& config, std::string name) {
  using Names = std::span<const Renamed>;
  for (const auto& [ours, theirs] : config.roberta      ? Names(kRoberta)
                                    : config.distilbert ? Names(kDistilBert)
                                                        : Names(kBert))
    for (size_t at = name.find(ours); at != name.npos; at = name.find(ours, at + 1)) {
      const size_t end = at + ours.size();
      if ((at > 0 && name[at - 1] != '.') || (end < name.size() && name[end] != '.')) continue;
      name.replace(at, ours.size(), theirs);
      break;
    }
  return name;
}

}  // namespace rondo::nn
