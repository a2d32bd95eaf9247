// How a published model is read, and how it is saved: auto_model.h.
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
  // Parameters that the file holds as they are wanted stay in the file's pages, copied only where they are written.
  // Good for a frozen base: processes share the pages. The file must not be truncated while the model lives: SIGBUS.
  // Tensors are then aligned to their elements only.
  bool map = false;
  // Fields of config.json that this version does not know are ignored. Without it they are an error: they may change
  // what the model computes. Fields that are known to change it stay an error.
  bool allow_unknown_fields = false;
  // Replaces every dropout probability of config.json.
  std::optional<double> dropout = std::nullopt;
  // Classes of a classifier; nullopt: as many as config.json has labels.
  std::optional<int64_t> num_labels = std::nullopt;
  // Their names, by number, for config.json (id2label). They set num_labels, too.
  std::vector<std::string> label_names = {};
  // The loss of a classifier; nullopt: what config.json says, or if it says nothing, what the targets are
  // (classification_loss.h). config.json of a saved model gets it.
  std::optional<ProblemType> problem_type = std::nullopt;
  // The folder's own adapter is to be trained on.
  bool train_adapter = false;
  // Tensors whose names begin with one of these start fresh, N(0, 0.02), if the file has them not, or in another shape:
  // {"classifier."} for a new head.
  std::vector<std::string> fresh = {};
  uint64_t seed = 0;  // of fresh tensors
  // Replaces config.json's. A sequence classifier of the decoders needs one to take more than one row, and refuses the
  // -1 of the first Llamas, which is no token.
  std::optional<int64_t> pad_token_id = std::nullopt;
  // Tensors of the file that the model has no place for are no error if their names begin with one of these: {"cls."}
  // for the heads of BERT's first training.
  std::vector<std::string> ignore = {};
};

struct SaveOptions {
  // A larger model is cut into several files; a tensor is never cut.
  int64_t max_shard_bytes = 5'000'000'000;
};

}  // namespace rondo::nn
#pragma GCC visibility pop
