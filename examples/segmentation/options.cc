#include "rondo/examples/segmentation/options.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rondo/examples/segmentation/synthetic.h"
#include "rondo/runtime/base/error.h"

namespace rondo::examples {

Flags flags_of(SegmentationOptions& o) {
  Flags flags("segmentation", "Trains a network that gives each pixel of an image a class.");
  flags.add("data", &o.data, "folder of images and masks, or Cityscapes'; empty: pictures that the program makes");
  flags.add("classes", &o.classes, "of the masks; 255 does not count. 0: 19 for Cityscapes, 5 for made pictures");
  flags.add("skip_bad_files", &o.skip_bad_files, "leave out damaged files and masks of another size, and count them");
  flags.add("max_pixels", &o.max_pixels, "larger images are errors");
  flags.add("synthetic_pictures", &o.synthetic_pictures, "made pictures for training");
  flags.add("synthetic_validation", &o.synthetic_validation, "made pictures that are held out");
  flags.add("model", &o.model, "default: small for made pictures, else pp_liteseg_t",
            {"small", "pp_liteseg_t", "pp_liteseg_b", "stdc1", "segformer_b0"});
  flags.add("init_from", &o.init_from, "weights of an earlier run: model.safetensors");
  flags.add("predict", &o.predict, "a folder of images: writes masks and pictures to output_dir/predictions");
  flags.add("crop_height", &o.crop_height, "of training pictures; 0: 128 for made pictures, else 512");
  flags.add("crop_width", &o.crop_width, "0: 128 for made pictures, else 1024");
  flags.add("min_scale", &o.min_scale, "of the size before the crop; 0: 0.75 for made pictures, else 0.5");
  flags.add("max_scale", &o.max_scale, "0: 1.33 for made pictures, else 2");
  flags.add("flip", &o.flip, "probability of a mirror image");
  flags.add("colour", &o.colour, "brightness, contrast and saturation are scaled by 1 +- this");
  flags.add("max_steps", &o.max_steps, "steps of the optimizer; 0: 400 for made pictures, else 40000");
  flags.add("batch_size", &o.batch_size, "pictures of a batch; 0: 16 for made pictures, else 8");
  flags.add("eval_batch_size", &o.eval_batch_size, "pictures of one size; 0: 16 for made pictures, else 1");
  flags.add("learning_rate", &o.learning_rate, "at the end of the warm-up; 0: 3e-3 for made pictures, else 1e-3");
  flags.add("power", &o.power, "of the poly schedule: lr (1 - step / max_steps)^power");
  flags.add("warmup_ratio", &o.warmup_ratio, "the share of steps with linear warm-up");
  flags.add("weight_decay", &o.weight_decay, "of AdamW, for weights of rank 2 and above");
  flags.add("ema_decay", &o.ema_decay, "of the averages that are evaluated and saved; 0: none");
  flags.add("eval_steps", &o.eval_steps, "steps between two measurements of mIoU; 0: a fifth of all");
  flags.add("num_workers", &o.num_workers, "threads that prepare batches");
  flags.add("bf16", &o.bf16, "products and convolutions in bfloat16");
  add_options(flags, o, "checkpoints, logs, pictures, and at the end model.safetensors",
              "of weights, pictures, their order and augmentation");
  add_options(flags, o.compiler);
  return flags;
}

void complete(SegmentationOptions& o) {
  const bool made = o.data.empty();
  const auto fill = [](auto& value, auto wanted) {
    if (value == 0) value = wanted;
  };
  if (o.model.empty()) o.model = made ? "small" : "pp_liteseg_t";
  fill(o.classes, made ? SyntheticPictures::kClasses : 19);
  fill(o.crop_height, made ? 128 : 512);
  fill(o.crop_width, made ? 128 : 1024);
  fill(o.min_scale, made ? 0.75 : 0.5);
  fill(o.max_scale, made ? 1.33 : 2.0);
  fill(o.max_steps, made ? 400 : 40000);
  fill(o.learning_rate, made ? 3e-3 : 1e-3);
  fill(o.batch_size, made ? 16 : 8);
  fill(o.eval_batch_size, made ? 16 : 1);
  if (o.eval_steps == 0) o.eval_steps = std::max<int64_t>(o.max_steps / 5, 1);
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) throw Error(absl::StrCat("--", name, " must be positive, got ", value));
  };
  positive("max_steps", o.max_steps);
  positive("batch_size", o.batch_size);
  positive("eval_batch_size", o.eval_batch_size);
  positive("eval_steps", o.eval_steps);
  positive("synthetic_pictures", o.synthetic_pictures);
  positive("synthetic_validation", o.synthetic_validation);
  positive("max_pixels", o.max_pixels);
  if (o.classes < 1 || o.classes > 255) throw Error(absl::StrCat("--classes must be from 1 to 255, got ", o.classes));
  if (made && o.classes != SyntheticPictures::kClasses)
    throw Error(absl::StrCat("--classes: made pictures have ", SyntheticPictures::kClasses, ", got ", o.classes));
  if (o.crop_height % 32 != 0 || o.crop_width % 32 != 0)
    throw Error(absl::StrCat("--crop_height and --crop_width must be multiples of 32, got ", o.crop_height, " and ",
                             o.crop_width));
  if (o.num_workers < 0 || o.num_workers > 1024)
    throw Error(absl::StrCat("--num_workers must be from 0 to 1024, got ", o.num_workers));
  if (!(o.ema_decay >= 0 && o.ema_decay < 1))
    throw Error(absl::StrCat("--ema_decay must be in [0, 1), got ", o.ema_decay));
  if (!(o.warmup_ratio >= 0 && o.warmup_ratio <= 1))
    throw Error(absl::StrCat("--warmup_ratio must be in [0, 1], got ", o.warmup_ratio));
  check(o);
}

}  // namespace rondo::examples
