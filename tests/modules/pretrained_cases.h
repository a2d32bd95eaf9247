// The recorded checkpoints of tests/reference/pretrained, loaded through the Auto classes.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/transformers/bert_tasks.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/paths.h"

namespace rondo::nn {

inline const std::vector<std::string>& pretrained_cases() {
  static const std::vector<std::string> cases = {"gpt2",
                                                 "gpt2_gelu",
                                                 "llama2",
                                                 "llama3",
                                                 "llama_bias",
                                                 "qwen2",
                                                 "qwen3",
                                                 "mistral",
                                                 "bert_sequence",
                                                 "bert_token",
                                                 "minilm",
                                                 "roberta_sequence",
                                                 "roberta_token",
                                                 "vit",
                                                 "llama_dynamic",
                                                 "qwen2_yarn",
                                                 "bert_regression_sequence",
                                                 "roberta_multilabel_sequence",
                                                 "vit_regression",
                                                 "segformer",
                                                 "distilbert_sequence",
                                                 "distilbert_token",
                                                 "distilbert_masked",
                                                 "bert_masked",
                                                 "roberta_masked",
                                                 "llama_sequence",
                                                 "qwen2_left_sequence",
                                                 "mistral_regression_sequence",
                                                 "captioner",
                                                 "captioner_projected"};
  return cases;
}
inline std::string recorded_folder(const std::string& name) {
  return std::string(tests::kReferenceDir) + "/pretrained/" + name;
}
inline io::TensorMap expected_values(const std::string& name) {
  return io::load_safetensors(recorded_folder(name) + "/expected.safetensors").tensors;
}

// A loaded model and what the record script computes with it. `inputs` are those of expected_values().
struct PretrainedCase {
  std::shared_ptr<PretrainedModel> model;
  std::function<Tensor()> output;
  std::function<Tensor()> loss;
};

inline PretrainedCase load_case(const std::string& name, const std::string& folder, const PretrainedOptions& options,
                                const io::TensorMap& inputs) {
  const auto in = [inputs](const char* key) {
    const auto at = inputs.find(std::string("input.") + key);
    return at == inputs.end() ? Tensor() : at->second;
  };
  if (name.starts_with("vit")) {
    const auto m = std::make_shared<AutoModelForImageClassification>(
        AutoModelForImageClassification::from_pretrained(folder, options));
    const auto images = [m, in] { return in("images").to((*m)->parameters()[0].dtype()); };
    return {m, [=] { return (*m)(images()); }, [=] { return m->loss(images(), in("targets")); }};
  }
  if (name.starts_with("captioner")) {
    const auto m = std::make_shared<AutoModelForImageTextToText>(
        AutoModelForImageTextToText::from_pretrained(folder, options));
    const auto images = [m, in] { return in("images").to((*m)->parameters()[0].dtype()); };
    return {m, [=] { return (*m)(images(), in("ids"), in("mask")); }, [=] { return m->loss(images(), in("targets")); }};
  }
  if (name == "segformer") {
    const auto m = std::make_shared<AutoModelForSemanticSegmentation>(
        AutoModelForSemanticSegmentation::from_pretrained(folder, options));
    const auto images = [m, in] { return in("images").to((*m)->parameters()[0].dtype()); };
    return {m, [=] { return (*m)(images()); }, [=] { return m->loss(images(), in("targets")); }};
  }
  if (name == "minilm") {
    const auto m = std::make_shared<AutoModel>(AutoModel::from_pretrained(folder, options));
    const auto output = [m, in] {
      const Tensor pooled = mean_pooling((*m)(in("ids"), in("mask")), in("mask"));
      return pooled / ops::sqrt(ops::square(pooled).sum(1, /*keepdim=*/true));
    };
    return {m, output, [output] {
              const Tensor y = output();
              return (y[0] * y[1]).sum();
            }};
  }
  if (name.ends_with("_sequence")) {
    const auto m = std::make_shared<AutoModelForSequenceClassification>(
        AutoModelForSequenceClassification::from_pretrained(folder, options));
    return {m, [=] { return (*m)(in("ids"), in("mask"), in("segments")); },
            [=] { return m->loss(in("ids"), in("mask"), in("segments"), in("targets")); }};
  }
  if (name.ends_with("_token")) {
    const auto m = std::make_shared<AutoModelForTokenClassification>(
        AutoModelForTokenClassification::from_pretrained(folder, options));
    return {m, [=] { return (*m)(in("ids"), in("mask"), in("segments")); },
            [=] { return m->loss(in("ids"), in("mask"), in("segments"), in("targets")); }};
  }
  if (name.ends_with("_masked")) {
    const auto m = std::make_shared<AutoModelForMaskedLM>(AutoModelForMaskedLM::from_pretrained(folder, options));
    return {m, [=] { return (*m)(in("ids"), in("mask"), in("segments")); },
            [=] { return m->loss(in("ids"), in("mask"), in("segments"), in("targets")); }};
  }
  const auto m = std::make_shared<AutoModelForCausalLM>(AutoModelForCausalLM::from_pretrained(folder, options));
  return {m, [=] { return (*m)(in("ids")); }, [=] { return m->loss(in("ids"), in("targets")); }};
}

}  // namespace rondo::nn
