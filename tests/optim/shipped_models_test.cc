// Every model that is shipped: what its regions and seams are, by name. A change here is a change of what is compiled
// once, of what UpdateAtSeams frees early and of what a bucket of DistributedDataParallel holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/modules/transformers/bert.h"
#include "rondo/modules/transformers/bert_tasks.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/modules/transformers/llama_tasks.h"
#include "rondo/modules/transformers/vision_encoder_decoder.h"
#include "rondo/modules/transformers/vit.h"
#include "rondo/modules/vision/ddrnet.h"
#include "rondo/modules/vision/pp_liteseg.h"
#include "rondo/modules/vision/regseg.h"
#include "rondo/modules/vision/resnet.h"
#include "rondo/modules/vision/segformer.h"
#include "rondo/modules/vision/stdc.h"
#include "rondo/optim/seam.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo {
namespace {

struct Shipped {
  std::string name;
  std::function<std::unique_ptr<nn::ModuleBase>()> make;
  std::vector<std::string> regions;  // "class x layers", in the order of the tree
  std::vector<std::string> seams;    // paths of the blocks from the last to the first; "" outside
};

// What gtest prints of a case.
void PrintTo(const Shipped& shipped, std::ostream* out) { *out << shipped.name; }

const nn::BertConfig kBert{.vocab_size = 16, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 8, .n_hidden = 16};
const nn::BertConfig kRoberta{
    .vocab_size = 16, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 8, .n_hidden = 16, .roberta = true};
const nn::BertConfig kDistilBert{
    .vocab_size = 16, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 8, .n_hidden = 16, .distilbert = true};
const nn::STDCConfig kEncoder{.layers = {2, 1, 1}, .width = 16};

const std::vector<Shipped>& shipped_models() {
  static const std::vector<Shipped> models = {
      {"GPT2",
       [] {
         return std::make_unique<nn::GPT2>(
             nn::GPT2Config{.vocab_size = 16, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 8});
       },
       {"TransformerBlock x 2"},
       {"", "h.1", "h.0", ""}},
      {"Llama",
       [] {
         return std::make_unique<nn::Llama>(nn::LlamaConfig{
             .vocab_size = 16, .block_size = 8, .n_layer = 2, .n_head = 2, .n_kv_head = 1, .n_embd = 8});
       },
       {"LlamaBlock x 2"},
       {"", "model.layers.1", "model.layers.0", ""}},
      {"Bert",
       [] { return std::make_unique<nn::Bert>(kBert); },
       {"BertLayer x 2"},
       {"", "encoder.layer.1", "encoder.layer.0", ""}},
      {"BertForSequenceClassification",
       [] { return std::make_unique<nn::BertForSequenceClassification>(kBert); },
       {"BertLayer x 2"},
       {"", "bert.encoder.layer.1", "bert.encoder.layer.0", ""}},
      {"RobertaForSequenceClassification",
       [] { return std::make_unique<nn::RobertaForSequenceClassification>(kRoberta); },
       {"BertLayer x 2"},
       {"", "roberta.encoder.layer.1", "roberta.encoder.layer.0", ""}},
      {"BertForTokenClassification",
       [] { return std::make_unique<nn::BertForTokenClassification>(kBert); },
       {"BertLayer x 2"},
       {"", "bert.encoder.layer.1", "bert.encoder.layer.0", ""}},
      {"DistilBert",
       [] { return std::make_unique<nn::BertForSequenceClassification>(kDistilBert); },
       {"BertLayer x 2"},
       {"", "distilbert.encoder.layer.1", "distilbert.encoder.layer.0", ""}},
      {"BertForMaskedLM",
       [] { return std::make_unique<nn::BertForMaskedLM>(kBert); },
       {"BertLayer x 2"},
       {"", "bert.encoder.layer.1", "bert.encoder.layer.0", ""}},
      {"LlamaForSequenceClassification",
       [] {
         return std::make_unique<nn::LlamaForSequenceClassification>(nn::LlamaConfig{.vocab_size = 16,
                                                                                     .block_size = 8,
                                                                                     .n_layer = 2,
                                                                                     .n_head = 2,
                                                                                     .n_kv_head = 1,
                                                                                     .n_embd = 8,
                                                                                     .padding_idx = 0});
       },
       {"LlamaBlock x 2"},
       {"", "model.layers.1", "model.layers.0", ""}},
      {"ViT",
       [] {
         return std::make_unique<nn::ViT>(
             nn::ViTConfig{.image_size = 8, .patch_size = 4, .n_layer = 2, .n_head = 2, .n_embd = 8, .num_classes = 3});
       },
       {"ViTBlock x 2"},
       {"", "blocks.1", "blocks.0", ""}},
      {"VisionEncoderDecoder",
       [] {
         return std::make_unique<nn::VisionEncoderDecoder>(nn::VisionEncoderDecoderConfig{
             .encoder = {.image_size = 8, .patch_size = 4, .n_layer = 2, .n_head = 2, .n_embd = 8},
             .decoder = {.vocab_size = 16, .block_size = 8, .n_layer = 2, .n_head = 2, .n_embd = 16}});
       },
       {"ViTBlock x 2", "TransformerBlock x 2"},
       {"", "decoder.h.1", "decoder.h.0", "encoder.blocks.1", "encoder.blocks.0", ""}},
      {"ResNet",
       [] { return std::make_unique<nn::ResNet>(nn::ResNetConfig{.num_classes = 3, .width = 8}); },
       {"BasicBlock x 2", "BasicBlock x 2", "BasicBlock x 2", "BasicBlock x 2"},
       {"", "layer4.1", "layer4.0", "layer3.1", "layer3.0", "layer2.1", "layer2.0", "layer1.1", "layer1.0", ""}},
      {"ResNetOfBottlenecks",
       [] {
         return std::make_unique<nn::ResNet>(
             nn::ResNetConfig{.layers = {1, 2, 1, 1}, .bottleneck = true, .num_classes = 3, .width = 8});
       },
       {"Bottleneck x 1", "Bottleneck x 2", "Bottleneck x 1", "Bottleneck x 1"},
       {"", "layer4.0", "layer3.0", "layer2.1", "layer2.0", "layer1.0", ""}},
      {"Segformer",
       [] {
         return std::make_unique<nn::SegformerForSemanticSegmentation>(nn::SegformerConfig{.depths = {2, 1},
                                                                                           .hidden_sizes = {8, 16},
                                                                                           .n_head = {1, 2},
                                                                                           .patch_sizes = {7, 3},
                                                                                           .strides = {4, 2},
                                                                                           .sr_ratios = {2, 1},
                                                                                           .mlp_ratios = {2, 2},
                                                                                           .decoder_hidden_size = 16,
                                                                                           .num_classes = 3});
       },
       {"SegformerPatchEmbed x 2", "SegformerLayer x 2", "SegformerLayer x 1", "LayerNorm x 2",
        "SegformerProjection x 2"},
       {"", "decode_head.linear_c.1", "decode_head.linear_c.0", "segformer.encoder.layer_norm.1",
        "segformer.encoder.layer_norm.0", "segformer.encoder.block.1.0", "segformer.encoder.block.0.1",
        "segformer.encoder.block.0.0", "segformer.encoder.patch_embeddings.1", "segformer.encoder.patch_embeddings.0"}},
      {"STDCForClassification",
       [] { return std::make_unique<nn::STDCForClassification>(kEncoder, 3); },
       {"STDCBlock x 2", "STDCBlock x 1", "STDCBlock x 1"},
       {"", "backbone.stage32.0", "backbone.stage16.0", "backbone.stage8.1", "backbone.stage8.0", ""}},
      {"STDCSeg",
       [] { return std::make_unique<nn::STDCSeg>(nn::STDCSegConfig{.encoder = kEncoder, .num_classes = 3}); },
       {"STDCBlock x 2", "STDCBlock x 1", "STDCBlock x 1"},
       {"", "backbone.stage32.0", "backbone.stage16.0", "backbone.stage8.1", "backbone.stage8.0", ""}},
      {"PPLiteSeg",
       [] { return std::make_unique<nn::PPLiteSeg>(nn::PPLiteSegConfig{.encoder = kEncoder, .num_classes = 3}); },
       {"STDCBlock x 2", "STDCBlock x 1", "STDCBlock x 1", "ConvNormReLU x 3", "UnifiedAttentionFusion x 3",
        "SegmentationHead x 3"},
       {"", "heads.2", "heads.1", "heads.0", "fusions.2", "fusions.1", "fusions.0", "pooling.stages.2",
        "pooling.stages.1", "pooling.stages.0", "encoder.stage32.0", "encoder.stage16.0", "encoder.stage8.1",
        "encoder.stage8.0", ""}},
      {"DDRNet",
       [] {
         return std::make_unique<nn::DDRNet>(nn::DDRNetConfig{.width = 8, .pyramid = 8, .head = 8, .num_classes = 3});
       },
       {"ConvNormReLU x 2", "DDRBlock x 2", "DDRBlock x 2", "DDRBlock x 2", "DDRBlock x 2", "DDRBlock x 1",
        "DDRBlock x 2", "DDRBlock x 2", "DDRBlock x 1", "NormReLUConv x 5", "NormReLUConv x 4"},
       {"",
        "pooling.processes.3",
        "pooling.processes.2",
        "pooling.processes.1",
        "pooling.processes.0",
        "pooling.scales.4",
        "pooling.scales.3",
        "pooling.scales.2",
        "pooling.scales.1",
        "pooling.scales.0",
        "high5.0",
        "high4.1",
        "high4.0",
        "high3.1",
        "high3.0",
        "layer5.0",
        "layer4.1",
        "layer4.0",
        "layer3.1",
        "layer3.0",
        "layer2.1",
        "layer2.0",
        "layer1.1",
        "layer1.0",
        "stem.1",
        "stem.0"}},
      {"RegSeg",
       [] {
         return std::make_unique<nn::RegSeg>(nn::RegSegConfig{.dilations = {{1}, {1, 2}}, .num_classes = 3});
       },
       {"RegSegBlock x 1", "RegSegBlock x 3", "RegSegBlock x 3"},
       {"", "stage16.2", "stage16.1", "stage16.0", "stage8.2", "stage8.1", "stage8.0", "stage4.0", ""}},
  };
  return models;
}

class ShippedModel : public testing::TestWithParam<Shipped> {};

TEST_P(ShippedModel, HasTheseRegions) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  const test::MeansToRun never(test::Eagerly::kNothing, "names are compared");
  const std::unique_ptr<nn::ModuleBase> model = GetParam().make();
  std::vector<std::string> regions;
  for (const compile::RegionReport& r : compile::compile_regions(*model).report())
    regions.push_back(absl::StrCat(r.name, " x ", r.layers));
  EXPECT_EQ(regions, GetParam().regions);
}

TEST_P(ShippedModel, HasTheseSeams) {
  const std::unique_ptr<nn::ModuleBase> model = GetParam().make();
  std::vector<std::string> paths;
  int64_t in_seams = 0, last = 0;
  for (const optim::Seam& seam : optim::plan_seams(*model)) {
    paths.push_back(seam.path);
    last = 0;
    for (const Tensor& p : seam.parameters) last += p.numel();
    in_seams += last;
    if (seam.path.empty()) continue;
    for (const Tensor& p : seam.parameters) {
      const std::vector<nn::NamedTensor> all = model->named_parameters();
      const auto named = std::find_if(all.begin(), all.end(), [&](const auto& n) { return n.tensor.is_same(p); });
      EXPECT_TRUE(named->name.starts_with(seam.path + ".")) << named->name << " in " << seam.path;
    }
  }
  EXPECT_EQ(paths, GetParam().seams) << absl::StrJoin(paths, ", ");
  EXPECT_EQ(in_seams, model->num_parameters());
}

INSTANTIATE_TEST_SUITE_P(Models, ShippedModel, testing::ValuesIn(shipped_models()),
                         [](const auto& info) { return info.param.name; });

// The vision networks at the sizes that are used: the last seam holds what comes before the first block, which is
// little. Everything in it has its gradients, and their memory, until the backward has ended.
TEST(ShippedModels, LittleIsInTheLastSeam) {
  const auto share_of_last = [](const nn::ModuleBase& model) {
    int64_t last = 0;
    const std::vector<optim::Seam> seams = optim::plan_seams(model);
    for (const Tensor& p : seams.back().parameters) last += p.numel();
    return static_cast<double>(last) / static_cast<double>(model.num_parameters());
  };
  const nn::SkipInit skip(nn::SkipInit::Memory::kNone);
  EXPECT_LT(share_of_last(nn::SegformerForSemanticSegmentation(nn::SegformerConfig{})), 0.01);
  EXPECT_LT(share_of_last(nn::DDRNet(nn::ddrnet23_slim(19))), 0.01);
  EXPECT_LT(share_of_last(nn::PPLiteSeg(nn::pp_liteseg_t(19))), 0.01);
  EXPECT_LT(share_of_last(nn::STDCSeg(nn::STDCSegConfig{})), 0.01);
  EXPECT_LT(share_of_last(nn::RegSeg()), 0.01);
  EXPECT_LT(share_of_last(nn::ResNet(nn::resnet18())), 0.01);
}

// A step calls every block of every region, and all gradients are final at a seam.
TEST(ShippedModels, AStepOfDDRNetCallsEveryRegion) {
  if (!compile::jit_available()) GTEST_SKIP() << "built without LLVM";
  nn::DDRNet model({.width = 8, .pyramid = 8, .head = 8, .num_classes = 3});
  const compile::Regions regions = compile::compile_regions(model);
  optim::Seams seams(model, [](const optim::Seam& seam) { EXPECT_TRUE(seam.complete) << seam.path; });
  const Tensor images = Tensor::randn({2, 3, 64, 64}), targets = Tensor::zeros({2, 64, 64}, kI64);
  model.loss(images, targets).backward();
  seams.finish();
  for (const compile::RegionReport& r : regions.report()) {
    EXPECT_EQ(r.calls, r.layers) << r.name;
    EXPECT_GT(r.entries, 0) << r.name;
    EXPECT_EQ(r.graph_breaks, 0) << r.name << ": " << r.last_break;
  }
}

struct Wide : nn::Module<Wide> {
  nn::Linear fc = child("fc", 4, 4);
  nn::ModuleList<nn::Linear> inner = child("inner", 2, 4, 4);
  Tensor forward(const Tensor& x) { return inner[1](inner[0](fc(x))); }
};

// Note that a name made of digits says nothing: "0" of a Sequential is no block, and a chain in a list is one.
TEST(RepeatedBlocks, AreTheItemsOfTheOutermostLists) {
  struct Model : nn::Module<Model> {
    nn::ModuleList<nn::ModuleList<Wide>> nested = child("nested");
    nn::Sequential chain = child("chain", nn::layer<nn::Linear>(4, 4), nn::layer<nn::ReLU>(), nn::layer<Wide>());
    nn::ModuleList<nn::Sequential> chains = child("chains", 2);
    Tensor forward(const Tensor& x) { return chain(x); }
  };
  Model model;
  for (int i = 0; i < 2; ++i) {
    nn::ModuleList<Wide>& list = model.nested.emplace_back();
    for (int k = 0; k < 3; ++k) list.emplace_back();
  }
  std::vector<std::string> paths;
  for (const nn::ModuleBase* block : model.repeated_blocks()) paths.push_back(block->path());
  EXPECT_EQ(paths,
            (std::vector<std::string>{"nested.0.0", "nested.0.1", "nested.0.2", "nested.1.0", "nested.1.1",
                                      "nested.1.2", "chain.2.inner.0", "chain.2.inner.1", "chains.0", "chains.1"}));
  EXPECT_EQ(nn::ModuleList<nn::Linear>(3, 4, 4).repeated_blocks().size(), 3u);
  EXPECT_TRUE(nn::Sequential(nn::layer<nn::Linear>(4, 4)).repeated_blocks().empty());
}

}  // namespace
}  // namespace rondo
