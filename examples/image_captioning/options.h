// The options of image_captioning.cc.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rondo/examples/compiler.h"
#include "rondo/examples/flags.h"
#include "rondo/examples/run_control.h"
#include "rondo/examples/study.h"
#include "rondo/runtime/data/example_batches.h"

namespace rondo::examples {

struct CaptioningOptions : RunOptions {
  CaptioningOptions() { output_dir = "captioning"; }
  std::string data, images, captions, validation_captions, init_from, write_pictures;
  std::string padding = "longest", dtype = "float32", lr_scheduler_type = "cosine", report;
  std::vector<std::string> predict;  // pictures, or folders of them
  double validation_share = 0.1, zoom = -1;
  int64_t train_pictures = 2000, held_out_pictures = 200, max_pixels = int64_t{1} << 26, shift = -1;

  std::string size;
  int64_t image_size = 0, patch_size = 0, n_layer = 0, n_head = 0, n_embd = 0, max_length = 0, vocab_size = 1024;
  double dropout = 0;

  int64_t max_steps = 0, batch_size = 0, eval_steps = 0, eval_batch_size = 50;
  int64_t padding_multiple = 8, num_beams = 4, untimed_steps = 20;
  double learning_rate = 1.5e-3, weight_decay = 0.1, warmup_ratio = 0.05;
  bool group_by_length = false;
  CompilerOptions compiler;
  StudyOptions study;

  bool is_random() const { return data == "random"; }
};

Flags flags_of(CaptioningOptions& options);
// Moves `--predict IMAGE...` (up to the next flag) from the arguments to `options`, and returns the other arguments.
// Throws Error.
std::vector<std::string> without_pictures(std::vector<std::string> args, CaptioningOptions& options);
// Sets the options whose defaults depend on the data and the size, and checks the others. Throws Error.
void complete(CaptioningOptions& options, const Flags& flags);
// Returns `batches` with the sizes to which --padding pads captions.
data::ExampleBatchesOptions padded(const CaptioningOptions& options, data::ExampleBatchesOptions batches);

}  // namespace rondo::examples
