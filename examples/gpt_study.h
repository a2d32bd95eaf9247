// train_gpt --study: measures what compiling a GPT gains and costs in training, inference and generation. Eager runs
// and runs with each mode of the compiler have a process of their own (study.h).
//
//   train_gpt --study                      # 6 layers of 384, f32 and bf16; leaves out/study.txt and study.html
//   train_gpt --study --study_rows=train_eager,train_regions --dtype=float32
//
// The published study is of GPT-2 with 1.5 billion parameters and torch.compile. Its results: a training step takes 57
// ms eager and 32 to 34 ms compiled; an inference step 18 ms and 28 to 30 ms; the first step 1 s and 29 to 35 s. The
// memory is 3,675 MiB eager and 5,736 MiB compiled.
//
// A row runs --untimed_steps steps, then --study_steps timed ones, then --untimed_steps again, which have nothing left
// to compile. In generation a step is one token of a text, timed until the model has no more positions; with bfloat16
// the weights are bfloat16, too. The training text is random.
#pragma once

#include "rondo/examples/train_options.h"

namespace rondo::examples {

inline constexpr int64_t kMeasuredPrompt = 16;  // how many tokens a text begins with

std::span<const StudyRow> gpt_study_rows();

// Runs the study and returns as run_study(). `one_dtype`: only options.dtype; else f32, and bf16 if the CPU has it.
int run_gpt_study(const TrainOptions& options, bool one_dtype);

}  // namespace rondo::examples
