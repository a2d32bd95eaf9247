// Options for reading and for saving a published model. See auto_model.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/modules/layers/classification_loss.h"
#include "rondo/runtime/base/dtype.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

struct PretrainedOptions {
  // The dtype of all parameters. nullopt: the dtypes in the file.
  std::optional<DType> dtype = kF32;
  // True: maps the file. Parameters that need no conversion stay in the file's pages, which are copied only where
  // they are written. Good for a frozen base: processes share the pages. The file must not be truncated while the model
  // lives (SIGBUS). Tensors are aligned to their elements only.
  bool map = false;
  // True: ignores fields of config.json that this version does not know. False: they are an error, because they may
  // change what the model computes. Fields that are known to change it are an error in both cases.
  bool allow_unknown_fields = false;
  // Replaces every dropout probability of config.json.
  std::optional<double> dropout = std::nullopt;
  // Classes of a classifier; nullopt: as many as config.json has labels.
  std::optional<int64_t> num_labels = std::nullopt;
  // Names of the classes, by number, for config.json (id2label). They set num_labels, too.
  std::vector<std::string> label_names = {};
  // The loss of a classifier. nullopt: the one that config.json names; if it names none, the targets decide
  // (classification_loss.h). The config.json of a saved model names it.
  std::optional<ProblemType> problem_type = std::nullopt;
  // True: continues to train the adapter that the folder holds.
  bool train_adapter = false;
  // Tensors whose names begin with one of these are initialised with N(0, 0.02) if the file lacks them, or has them in
  // another shape: {"classifier."} for a new head.
  std::vector<std::string> fresh = {};
  uint64_t seed = 0;  // the seed for fresh tensors
  // Replaces the pad_token_id of config.json. A sequence classifier on a decoder needs it for batches of more than one
  // row. The classifier refuses the -1 in the config.json of the first Llamas, which is no token.
  std::optional<int64_t> pad_token_id = std::nullopt;
  // Tensors of the file that the model has no place for are no error if their names begin with one of these: {"cls."}
  // for the heads of BERT's pretraining.
  std::vector<std::string> ignore = {};
};

struct SaveOptions {
  // A larger model is cut into several files; a tensor is never cut.
  int64_t max_shard_bytes = 5'000'000'000;
};

}  // namespace rondo::nn
#pragma GCC visibility pop
