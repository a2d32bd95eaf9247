#include "rondo/examples/image_captioning/study.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/examples/image_captioning/caption_batches.h"
#include "rondo/examples/image_captioning/caption_model.h"
#include "rondo/examples/image_captioning/study_rows.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::examples {
namespace {

using Words = std::vector<std::string>;

constexpr double kLearningRate = 1e-4;

// Returns the number of batches in the data of one process. After the last one, the data begins again.
int64_t batches_of(const CaptioningOptions& o, const StudyRow& row) {
  return o.untimed_steps + (row.is_compile_time ? 0 : o.study.steps);
}

// Returns the options of the model and its data, which all rows share.
Words shared_options(const CaptioningOptions& o) {
  return {absl::StrCat("--image_size=", o.image_size),
          absl::StrCat("--patch_size=", o.patch_size),
          absl::StrCat("--n_layer=", o.n_layer),
          absl::StrCat("--n_head=", o.n_head),
          absl::StrCat("--n_embd=", o.n_embd),
          absl::StrCat("--max_length=", o.max_length),
          absl::StrCat("--vocab_size=", o.vocab_size),
          absl::StrCat("--batch_size=", o.batch_size),
          absl::StrCat("--untimed_steps=", o.untimed_steps),
          absl::StrCat("--seed=", o.seed),
          formatted("--learning_rate=%g", kLearningRate),
          absl::StrCat("--device=", to_string(o.device))};
}

Words own_options(const CaptioningOptions& o, const StudyRow& row) {
  const int64_t batches = batches_of(o, row);
  return {"--data=random",
          "--output_dir=",
          "--lr_scheduler_type=constant",
          "--warmup_ratio=0",
          "--weight_decay=0",
          "--max_grad_norm=0",
          absl::StrCat("--train_pictures=", batches * row.processes * o.batch_size),
          absl::StrCat("--max_steps=", batches + o.untimed_steps),
          absl::StrCat("--logging_steps=", batches + o.untimed_steps)};
}

void write_start(const CaptioningOptions& o, const std::string& folder) {
  io::make_folders(folder);
  const CaptionModel model(o, nullptr);
  model.save(folder);
  int64_t count = 0;
  for (const StudyRow& row : study_rows()) count = std::max(count, batches_of(o, row) * row.processes * o.batch_size);
  const auto seed = static_cast<uint64_t>(o.seed);
  CaptionBatches captions(
      random_captions(count, o.max_length, o.vocab_size, model->config.decoder_start_token_id, model.end(), seed),
      random_pixels(1, 1, seed),
      {.order = {.batch_size = count, .shuffle = false, .group_by_length = false, .sizes = {o.max_length}}});
  const RandomPixels pixels(model->config.encoder.in_channels * o.image_size * o.image_size, seed);
  std::vector<int64_t> starts;
  for (int64_t i = 0; i < count; ++i) starts.push_back(pixels.start(i));
  io::save_safetensors(folder + "/data.safetensors", {{"labels", captions.next()->front().contiguous()},
                                                      {"starts", Tensor::from<int64_t>(starts, {count}, kCPU)},
                                                      {"field", pixels.field}});
}

}  // namespace

int run_captioning_study(const CaptioningOptions& o, bool one_dtype) {
  return run_study(
      {.options = o.study,
       .folder = o.output_dir,
       .overwrites = o.overwrite_output_dir,
       .rows = study_rows(),
       .heading = "Captioning study",
       .title = formatted(
           "A ViT of %d layers of %d and a GPT-2 alike, %d x %d pixels, batches of %d, captions of up to %d tokens; "
           "%d untimed steps, %d timed; %s, %d threads",
           o.n_layer, o.n_embd, o.image_size, o.image_size, o.batch_size, o.max_length, o.untimed_steps, o.study.steps,
           to_string(o.device), num_threads()),
       .published = "A100",
       .dtypes = one_dtype      ? Words{o.dtype}
                 : o.study.full ? Words{"bfloat16"}
                                : dtypes_of_host(o.device),
       .shared = shared_options(o),
       .own = [&](const StudyRow& row) { return own_options(o, row); },
       .write_start = [&](const std::string& folder) { write_start(o, folder); }});
}

}  // namespace rondo::examples
