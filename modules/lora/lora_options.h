// The options of an adapter, and the report on adding it. See lora.h.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo::nn {

struct LoraOptions {
  int64_t rank = 8;
  double alpha = 8;
  double dropout = 0;  // probability, for the input of A; in [0, 1)
  // The Linear and Embedding modules that get an adapter: those whose dotted path is a name of the list or ends in "."
  // and the name. Transformers' paths fit too, and may name a part of a module: {"q_proj", "v_proj"} of a ViT are rows
  // of its qkv. {"all-linear"}: every Linear except output layers (lm_head, score, classifier, head).
  std::vector<std::string> targets = {};
  // Instead of `targets`: a regular expression that the whole path must match, such as R"(h\.[0-5]\.attn\.c_attn)".
  std::string target_pattern = {};
  bool rslora = false;
  // Modules that are trained whole and saved with the adapter, such as a new classifier: those whose path ends in one
  // of these names, also in the middle of a word, as in PEFT ("norm" is every input_layernorm, too). Each adapter has
  // its own copy; the base's values stay. GPT-2's wte cannot be one: its output layer reads the same weight, which in
  // PEFT stays the base's.
  std::vector<std::string> modules_to_save = {};
  // The adapter's name: not empty, not digits only, without a dot.
  std::string adapter = "default";
  // True: the adapter must be mergeable later, so a target that merge_adapter() would refuse is an error
  // now. Not saved.
  bool mergeable = false;
  // Another rank, or another alpha, for some targets. A name is a regular expression: it fits a target whose path, as
  // Transformers names it, is the name or ends in "." and the name. The first name that fits counts, as in PEFT.
  std::vector<std::pair<std::string, int64_t>> rank_pattern = {};
  std::vector<std::pair<std::string, double>> alpha_pattern = {};
  // If not empty, restricts the names in `targets` to the modules in these layers. The number of a layer follows
  // the name of its list ("model.layers.3.mlp"). Targets that are named by their whole path in Transformers always
  // get an adapter.
  std::vector<int64_t> layers_to_transform = {};
  std::vector<std::string> layers_pattern = {};  // the lists that count, such as "layers"; empty: any
};

struct LoraReport {
  std::vector<std::string> targets;  // paths of the modules that got an adapter
  std::vector<std::string> saved;    // paths of the modules of modules_to_save
  int64_t trainable = 0;             // elements of parameters that require a gradient
  int64_t total = 0;                 // elements of all parameters, other adapters' included
  // Those of `targets` whose weight is used elsewhere in the model too, as a tied embedding is. If there are any,
  // merge_adapter() will refuse this adapter.
  std::vector<std::string> unmergeable;
};

}  // namespace rondo::nn
#pragma GCC visibility pop
