// image_captioning --study: every row of the published study (study_rows.h), by examples/study.h.
//
//   image_captioning --study                               # ours, f32 and bf16; leaves captioning_study/
//   image_captioning --study --study_rows=eager,marked --study_peer="python3 tests/bench/peers/captioning.py"
//   image_captioning --study --full --device=cuda          # the study's own size
//
// A row runs --untimed_steps steps, then --study_steps timed ones, then the batches of the untimed steps once more
// (run_report.h). Both frameworks start with the same weights and see the same batches, in the same order.
//
// A peer starts from the model (model.safetensors, config.json, with transformers' names) and data.safetensors: labels
// i64 (N, T) with -100 behind each caption, and pixels as slices of one field of noise: starts i64 (N), field f32.
#pragma once

#include "rondo/examples/image_captioning/options.h"

namespace rondo::examples {

// Runs the study and returns as run_study(). `one_dtype`: only options.dtype; else f32, and bf16 if the CPU has it.
int run_captioning_study(const CaptioningOptions& options, bool one_dtype);

}  // namespace rondo::examples
