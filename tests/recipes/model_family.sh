#!/usr/bin/env bash
# Follows "A new family" in modules/pretrained/README.md: a linear classifier of pictures as a published model. It is saved,
# loaded, and refused for a field that it does not know.   model_family.sh BUILD
set -euo pipefail
. "$(dirname "$0")/copy.sh"
start "a model family" modules tests

# The model.
cat >"$tree/modules/vision/pixel_classifier.h" <<'TEXT'
// One linear layer on all pixels of an image.
#pragma once

#include "rondo/modules/layers/classification_loss.h"
#include "rondo/modules/layers/layers.h"

namespace rondo::nn {

struct PixelClassifierConfig {
  int64_t image_size = 8, in_channels = 3, num_classes = 2;
};

struct PixelClassifier : Module<PixelClassifier> {
  explicit PixelClassifier(const PixelClassifierConfig& config)
      : config(config),
        classifier(child("classifier", config.in_channels * config.image_size * config.image_size, config.num_classes)) {}
  PixelClassifierConfig config;
  Linear classifier;
  Tensor forward(const Tensor& images) { return classifier(images.flatten(1)); }  // (B, C, H, W) -> (B, num_classes)
  Tensor loss(const Tensor& images, const Tensor& targets) { return ops::cross_entropy((*this)(images), targets); }
};

}  // namespace rondo::nn
TEXT
# 1. The family's file.
cat >"$tree/modules/pretrained/pixel_classifier.cc" <<'TEXT'
// config.json and names of PixelClassifier, which are those of the module.
#include "rondo/modules/vision/pixel_classifier.h"

#include "rondo/modules/pretrained/published.h"

namespace rondo::nn {

static std::unique_ptr<ModuleBase> make_pixel_classifier(ConfigFields& config, Task task,
                                                         const PretrainedOptions& options) {
  if (task != Task::kImageClassification) return nullptr;
  PixelClassifierConfig c;
  c.image_size = config.size("image_size");
  c.in_channels = config.size("num_channels", 3);
  c.num_classes = read_labels(config, options);
  config.check(options.allow_unknown_fields);
  const SkipInit skip(SkipInit::Memory::kNone);
  return std::make_unique<PixelClassifier>(c);
}

static bool describe_pixel_classifier(ModuleBase& module, Published& out) {
  auto* model = dynamic_cast<PixelClassifier*>(&module);
  if (model == nullptr) return false;
  out.model_type = "pixel_classifier";
  out.architecture = "PixelClassifier";
  out.tensors = same_names(module);
  out.config = {{"image_size", json_text(model->config.image_size)},
                {"num_channels", json_text(model->config.in_channels)}};
  for (ConfigField& field : label_fields(model->config.num_classes)) out.config.push_back(std::move(field));
  return true;
}

extern constexpr Family kPixelClassifierFamily = {
    .model_types = {"pixel_classifier"},
    .classes = {"PixelClassifier"},
    .make = &make_pixel_classifier,
    .describe = &describe_pixel_classifier,
    .image = {.logits = [](ModuleBase& model, TensorArg images) {
                return dynamic_cast<PixelClassifier&>(model)(images.tensor);
              },
              .loss = [](ModuleBase& model, const Tensor& images, const Tensor& targets, std::source_location) {
                return dynamic_cast<PixelClassifier&>(model).loss(images, targets);
              }},
};

}  // namespace rondo::nn
TEXT
# 2. Its entry.
insert modules/pretrained/families.cc 'static constexpr const Family* kFamilies' <<'TEXT'
extern const Family kPixelClassifierFamily;
TEXT
sed -i 's|^static constexpr const Family\* kFamilies\[\] = {|&\&kPixelClassifierFamily, |' "$tree/modules/pretrained/families.cc"
# 3. Its test.
cat >"$tree/tests/modules/pixel_classifier_test.cc" <<'TEXT'
#include "rondo/modules/vision/pixel_classifier.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/pretrained/config_error.h"
#include "rondo/runtime/autograd/autograd.h"

TEST(PixelClassifier, IsSavedAndLoaded) {
  const char* const work = std::getenv("RECIPE_FOLDER");
  ASSERT_NE(work, nullptr);
  const std::string folder = std::string(work) + "/model";
  rondo::nn::PixelClassifier model({.image_size = 4, .num_classes = 3});
  rondo::nn::save_pretrained(model, folder);
  auto loaded = rondo::nn::AutoModelForImageClassification::from_pretrained(folder);
  const rondo::Tensor images = rondo::Tensor::randn({2, 3, 4, 4});
  EXPECT_EQ(loaded(images).to_vector<float>(), model(images).to_vector<float>());
  std::string config;
  std::getline(std::ifstream(folder + "/config.json"), config, '\0');
  config.insert(config.find('{') + 1, "\"shear\": 2,");
  std::ofstream(folder + "/config.json") << config;
  EXPECT_THROW(rondo::nn::AutoModelForImageClassification::from_pretrained(folder), rondo::nn::ConfigError);
}
TEXT
changes modules/vision/pixel_classifier.h modules/pretrained/pixel_classifier.cc modules/pretrained/families.cc \
  tests/modules/pixel_classifier_test.cc
says modules/pretrained/README.md '**A new family**' 'a file of its own' kFamilies families.cc

compile modules/pretrained/pixel_classifier.cc modules/pretrained/families.cc
compile modules/pretrained/families.cc
compile tests/modules/pixel_classifier_test.cc tests/modules/module_test.cc
link test_modules pixel_classifier families pixel_classifier_test
RECIPE_FOLDER=$work "$work/test_modules" --gtest_brief=1 --gtest_filter='PixelClassifier.*' >"$work/log" 2>&1 || { cat "$work/log"; fail "its test fails"; }
grep -q '^\[  PASSED  \] 1 test' "$work/log" || fail "its test did not run"
echo "recipe of a model family: a model, a file, an entry and a test"
