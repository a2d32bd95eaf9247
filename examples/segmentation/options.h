// The options of segmentation.cc.
#pragma once

#include <cstdint>
#include <string>

#include "rondo/examples/compiler.h"
#include "rondo/examples/flags.h"
#include "rondo/examples/run_control.h"

namespace rondo::examples {

struct SegmentationOptions : RunOptions {
  SegmentationOptions() {
    output_dir = "segmentation";
    max_grad_norm = 5;
  }
  std::string data, model, init_from, predict;
  int64_t classes = 0, max_pixels = int64_t{1} << 26;
  bool skip_bad_files = false;
  int64_t synthetic_pictures = 1024, synthetic_validation = 128;

  int64_t crop_height = 0, crop_width = 0;
  double min_scale = 0, max_scale = 0, flip = 0.5, colour = 0.4;

  int64_t max_steps = 0, batch_size = 0, eval_batch_size = 0, eval_steps = 0, num_workers = 1;
  double learning_rate = 0, weight_decay = 0.01, power = 0.9, warmup_ratio = 0.05, ema_decay = 0.998;
  bool bf16 = false;
  CompilerOptions compiler;
};

Flags flags_of(SegmentationOptions& options);
// Sets the options whose defaults depend on the data, and checks the others. Throws Error.
void complete(SegmentationOptions& options);

}  // namespace rondo::examples
