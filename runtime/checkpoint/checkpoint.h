// Training checkpoints. A kill at any moment does not damage them, and they restore every bit.
//
//   io::Checkpoint now{.step = step, .model = model_state, .optimizer = optimizer_state};
//   now.state["best_loss"] = best_loss;
//   io::save_checkpoint("out", now, {.keep = 2});
//   ...
//   if (auto latest = io::load_latest_checkpoint("out"); latest.checkpoint) resume(*latest.checkpoint);
//
// A checkpoint is one safetensors file, <folder>/ckpt-00001000.safetensors, because renaming one file is atomic, but
// writing a folder of files is not. It has tensors "model.<name>", "optimizer.<name>" and "extra.<name>". Its metadata
// has "format", "step", "state" (a JSON object of the scalars) and "checksum" (XXH64 of everything else). Any
// safetensors reader can open it. A save writes a temporary file, fsyncs it, renames it, fsyncs the folder, and only
// then prunes old checkpoints. Only one process (rank 0) may write to a folder.
//
// For a resume with equal bits: a resumed process has no gradients, so drop them after each step with
// Optimizer::zero_grad(); do not set them to zero (StepOptions::zero_grad). Compiled bf16 code that accumulates into a
// gradient rounds differently than code that creates one.
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
// Doubles keep all bits, also those of infinities and NaNs.
using Scalars = std::map<std::string, Scalar>;

struct Checkpoint {
  int64_t step = 0;
  TensorMap model = {};
  TensorMap optimizer = {};
  // Other values that a resume needs: RNG state, data position, best loss, configuration.
  Scalars state = {};
  // Other tensors: the best parameters so far, loss scales.
  TensorMap extra = {};

  // Returns state[name] as a T: bool, int64_t, double or std::string. Throws Error if there is no such value or it has
  // another type.
  template <class T> const T& get(const std::string& name) const {
    const auto at = state.find(name);
    const T* value = at == state.end() ? nullptr : std::get_if<T>(&at->second);
    if (value == nullptr)
      throw Error("checkpoint: state \"" + name + "\" is " + (at == state.end() ? "missing" : "of another type"));
    return *value;
  }
};

struct CheckpointOptions {
  int keep = 2;  // the number of newest checkpoints that stay, including the one just written; at least 1
  // Also saves NaN and infinities. By default this is an error: such a model cannot be trained on, and its checkpoint
  // would replace a good one.
  bool allow_nonfinite = false;
};

// A tensor of the checkpoint has values that are not finite. Nothing was written.
class NonFiniteError : public Error {
 public:
  NonFiniteError(std::string tensor, const std::string& message) : Error(message), tensor_(std::move(tensor)) {}
  const std::string& tensor() const { return tensor_; }  // "model.<name>", "optimizer.<name>", "extra.<name>"

 private:
  std::string tensor_;
};

// Writes the checkpoint, replacing one of the same step, and returns its path. Creates `folder`. Throws FileError or
// NonFiniteError; then all earlier checkpoints are still there. Pruning removes only checkpoints and their temporary
// files, and never a checkpoint of a later step.
std::string save_checkpoint(const std::string& folder, const Checkpoint& checkpoint, CheckpointOptions options = {});

// Reads one file and verifies its checksum. Tensors are copy-on-write views of the mapped file (safetensors.h); copy
// them into the parameters. Throws FileError.
Checkpoint load_checkpoint(const std::string& path);

struct SkippedCheckpoint {
  std::string path;
  std::string reason;
};
struct LatestCheckpoint {
  std::optional<Checkpoint> checkpoint;    // nullopt if no file can be loaded
  std::string path;                        // the file of `checkpoint`
  std::vector<SkippedCheckpoint> skipped;  // newer files that are damaged, newest first
};

// Loads the newest checkpoint that is not damaged. A missing or empty folder gives an empty result.
LatestCheckpoint load_latest_checkpoint(const std::string& folder);

// Returns the paths of all checkpoints in `folder`, newest first, without opening them.
std::vector<std::string> list_checkpoints(const std::string& folder);

// Removes all checkpoints in `folder`, and temporary files of unfinished ones. For a new run in an old folder, which
// must not resume from the old run.
void remove_checkpoints(const std::string& folder);

}  // namespace rondo::io
#pragma GCC visibility pop
