// Training checkpoints that survive a kill at any moment, bit for bit.
//
//   io::Checkpoint now{.step = step, .model = model_state, .optimizer = optimizer_state};
//   now.state["best_loss"] = best_loss;
//   io::save_checkpoint("out", now, {.keep = 2});
//   ...
//   if (auto latest = io::load_latest_checkpoint("out"); latest.checkpoint) resume(*latest.checkpoint);
//
// One checkpoint is one safetensors file, <folder>/ckpt-00001000.safetensors, because one rename is atomic and a folder
// of files is not: tensors "model.<name>", "optimizer.<name>" and "extra.<name>", and in the metadata "format", "step",
// "state" (a JSON object of the scalars) and "checksum" (XXH64 over everything else). Any safetensors reader can open
// it. Order of a save: write a temporary file, fsync, rename, fsync the folder, and only then prune. One process writes
// a folder at a time (rank 0).
//
// A resumed process has no gradients. So drop them after each step (Optimizer::zero_grad()) and do not set them to zero
// (StepOptions::zero_grad): compiled bf16 code that adds to a gradient rounds otherwise than code that makes one.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rondo/runtime/checkpoint/safetensors.h"

#pragma GCC visibility push(default)
namespace rondo::io {

using Scalar = std::variant<bool, int64_t, double, std::string>;
// Doubles keep their bits, infinities and NaNs included.
using Scalars = std::map<std::string, Scalar>;

struct Checkpoint {
  int64_t step = 0;
  TensorMap model = {};
  TensorMap optimizer = {};
  // RNG state, data position, best loss, configuration: whatever resuming needs.
  Scalars state = {};
  // Tensors of anything else: the best parameters so far, loss scales.
  TensorMap extra = {};

  // Reads state[name] as a T: bool, int64_t, double or std::string. Throws Error if it is absent or of another type.
  template <class T> const T& get(const std::string& name) const {
    const auto at = state.find(name);
    const T* value = at == state.end() ? nullptr : std::get_if<T>(&at->second);
    if (value == nullptr)
      throw Error("checkpoint: state \"" + name + "\" is " + (at == state.end() ? "missing" : "of another type"));
    return *value;
  }
};

struct CheckpointOptions {
  int keep = 2;  // newest checkpoints that stay, the one just written included; at least 1
  // Saves NaN and infinities, too. A model that has some is beyond repair, and its checkpoint would push out a good
  // one.
  bool allow_nonfinite = false;
};

// A tensor that was to be saved has values that are not finite; nothing was written.
class NonFiniteError : public Error {
 public:
  NonFiniteError(std::string tensor, const std::string& message) : Error(message), tensor_(std::move(tensor)) {}
  const std::string& tensor() const { return tensor_; }  // "model.<name>", "optimizer.<name>", "extra.<name>"

 private:
  std::string tensor_;
};

// Writes the checkpoint of `checkpoint.step`, replacing one of the same step; returns its path. Creates `folder`.
// Throws FileError, or NonFiniteError; then the checkpoints that were there are still there. Pruning removes only files
// of this module, and never one of a later step than the one just written.
std::string save_checkpoint(const std::string& folder, const Checkpoint& checkpoint, CheckpointOptions options = {});

// Reads one file and verifies its checksum. Tensors are copy-on-write views of the mapped file (safetensors.h); copy
// them into the parameters. Throws FileError.
Checkpoint load_checkpoint(const std::string& path);

struct SkippedCheckpoint {
  std::string path;
  std::string reason;
};
struct LatestCheckpoint {
  std::optional<Checkpoint> checkpoint;    // nothing if no file is loadable
  std::string path;                        // of `checkpoint`
  std::vector<SkippedCheckpoint> skipped;  // newer files that are damaged, newest first
};

// The newest checkpoint that is whole. A missing or empty folder gives an empty result.
LatestCheckpoint load_latest_checkpoint(const std::string& folder);

// Paths of all checkpoints in `folder`, newest first, without opening them.
std::vector<std::string> list_checkpoints(const std::string& folder);

// Removes every checkpoint and leftover of one in `folder`: a new run in an old folder must not resume from the old
// one.
void remove_checkpoints(const std::string& folder);

}  // namespace rondo::io
#pragma GCC visibility pop
