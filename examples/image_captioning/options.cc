#include "rondo/examples/image_captioning/options.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"

namespace rondo::examples {
namespace {

struct Size {
  std::string_view name;
  int64_t image_size, patch_size, n_layer, n_head, n_embd, max_length, batch_size;
};
// narrow and full are those of the published study; small learns the drawn pictures in minutes.
constexpr Size kSizes[] = {{"small", 64, 8, 3, 4, 128, 64, 32},
                           {"narrow", 64, 16, 4, 3, 192, 64, 16},
                           {"full", 224, 16, 12, 12, 768, 256, 64}};

}  // namespace

Flags flags_of(CaptioningOptions& o) {
  Flags flags("image_captioning", "Trains a ViT with a GPT-2 to write captions, and writes them.");
  flags.add("data", &o.data,
            "random: noise and random tokens, for speed; drawn: shapes; files: --images. Default: files "
            "with --images, else random",
            {"random", "drawn", "files"});
  flags.add("images", &o.images, "folder of PNG and JPEG files");
  flags.add("captions", &o.captions, "lines picture<TAB>caption; pictures are named from --images");
  flags.add("validation_captions", &o.validation_captions,
            "the same for held-out pictures; else a share of --captions");
  flags.add("validation_share", &o.validation_share, "of the pictures of --captions is held out; 0: none");
  flags.add("train_pictures", &o.train_pictures, "of random and drawn data");
  flags.add("held_out_pictures", &o.held_out_pictures, "drawn ones, with captions that training does not see");
  flags.add("write_pictures", &o.write_pictures,
            "a folder: writes 20 held-out drawn pictures with captions.tsv, and ends");
  flags.add("max_pixels", &o.max_pixels, "larger pictures are errors");
  flags.add("zoom", &o.zoom, "training pictures are scaled by 1 +- this; -1: 0 for random data, else 0.15");
  flags.add("shift", &o.shift, "they move by up to so many pixels; -1: none for random data, else 1/32");
  flags.add("init_from", &o.init_from, "a folder with a model, its tokenizer and preprocessor_config.json");
  flags.add("size", &o.size,
            "small: 3 + 3 layers of 128, 64 x 64 pixels in patches of 8; narrow: 4 + 4 of 192, in patches of 16; full: "
            "12 + 12 of 768, 224 x 224. Default: narrow for random data, else small",
            {"small", "narrow", "full"});
  flags.add("image_size", &o.image_size, "edge of the square that pictures become; 0: by --size");
  flags.add("patch_size", &o.patch_size, "edge of a patch; 0: by --size");
  flags.add("n_layer", &o.n_layer, "blocks of the encoder, and of the decoder; 0: by --size");
  flags.add("n_head", &o.n_head, "heads of an attention; 0: by --size");
  flags.add("n_embd", &o.n_embd, "width of both; 0: by --size");
  flags.add("max_length", &o.max_length, "tokens of the longest caption, with its end; 0: by --size, 64 or 256");
  flags.add("vocab_size", &o.vocab_size, "tokens; the most frequent words, and all characters");
  flags.add("dropout", &o.dropout, "of both");
  flags.add("padding", &o.padding,
            "captions of a batch are padded to max_length, to the longest, to a multiple of --padding_multiple above "
            "it, or to one of --buckets",
            {"max", "longest", "multiple", "buckets"});
  flags.add("padding_multiple", &o.padding_multiple, "of --padding=multiple");
  flags.add("group_by_length", &o.group_by_length,
            "batches of captions of like lengths; else in the random order, as in the study");
  flags.add("max_steps", &o.max_steps, "steps of the optimizer; 0: 120 for random data, else 6500");
  flags.add("batch_size", &o.batch_size, "pictures; 0: by --size, 32, 16 or 64");
  flags.add("learning_rate", &o.learning_rate, "at the end of the warm-up");
  flags.add("lr_scheduler_type", &o.lr_scheduler_type, "behind the warm-up; cosine: to a hundredth",
            {"cosine", "constant"});
  flags.add("warmup_ratio", &o.warmup_ratio, "the share of steps with linear warm-up");
  flags.add("weight_decay", &o.weight_decay, "of AdamW, for weights of rank 2 and above");
  flags.add("eval_steps", &o.eval_steps, "steps between two rounds of held-out captions; 0: a fifth of all");
  flags.add("eval_batch_size", &o.eval_batch_size, "pictures that are captioned at once");
  flags.add("num_beams", &o.num_beams,
            "of the captions at the end and of --predict, beside greedy ones; 1: greedy only");
  flags.add("dtype", &o.dtype, "bfloat16: autocast", {"float32", "bfloat16"});
  add_options(
      flags, o,
      "checkpoints, metrics.jsonl, held_out.tsv, pictures/, and at the end the model; empty: nothing is written. "
      "Empty for random data unless it is given",
      "of weights, pictures, their order and how they are seen");
  add_options(flags, o.compiler);
  flags.add("report", &o.report,
            "a file: speed, the first steps, compilations, memory and loss, as JSON. Behind the first epoch of random "
            "data the same batches come again");
  flags.add("untimed_steps", &o.untimed_steps, "of --report and --study: the first ones, that compile");
  add_options(flags, o.study, "output_dir");
  flags.add("full", &o.study.full, "the study's own size, in bfloat16");
  flags.add("study_peer", &o.study.peer,
            "a command that measures another framework, in turns with ours: 'python3 tests/bench/peers/captioning.py'");
  return flags;
}

std::vector<std::string> without_pictures(std::vector<std::string> args, CaptioningOptions& o) {
  std::vector<std::string> others;
  bool is_picture = false, predicts = false;
  for (std::string& arg : args) {
    if (arg == "--predict" || arg.starts_with("--predict=")) {
      is_picture = predicts = true;
      if (arg.size() > 10) o.predict.push_back(arg.substr(10));
    } else if (is_picture && !arg.starts_with("--")) {
      o.predict.push_back(std::move(arg));
    } else {
      is_picture = false;
      others.push_back(std::move(arg));
    }
  }
  if (predicts && o.predict.empty()) throw Error("--predict needs pictures, or a folder of them, behind it");
  return others;
}

// Throws Error for options that the rows of the study choose themselves, or that their runs do not have.
static void refuse_what_rows_choose(const Flags& flags) {
  constexpr std::string_view kTaken[] = {
      "study",         "full",   "data",   "size",       "image_size", "patch_size",
      "n_layer",       "n_head", "n_embd", "max_length", "vocab_size", "batch_size",
      "untimed_steps", "seed",   "device", "dtype",      "output_dir", "overwrite_output_dir"};
  for (const std::string& name : flags.all_given()) {
    if (name == "max_steps") throw Error("--study: --study_steps says how many steps are timed");
    if (!name.starts_with("study_") && std::ranges::find(kTaken, name) == std::end(kTaken))
      throw Error(absl::StrCat("--study: its rows choose --", name, " themselves: leave it out"));
  }
}

void complete(CaptioningOptions& o, const Flags& flags) {
  if (o.study.full) o.size = "full";
  if (o.data.empty()) o.data = o.images.empty() && o.captions.empty() ? "random" : "files";
  if (!o.predict.empty() && o.init_from.empty()) o.init_from = o.output_dir;
  if ((o.data == "files") != (!o.images.empty() || !o.captions.empty()))
    throw Error("--data=files, --images=FOLDER and --captions=FILE go together");
  if (o.data == "files" && (o.images.empty() || o.captions.empty()))
    throw Error("--images=FOLDER and --captions=FILE go together");
  if (o.size.empty()) o.size = o.is_random() ? "narrow" : "small";
  const auto& size = *std::ranges::find(kSizes, o.size, &Size::name);
  const auto fill = [](auto& value, auto wanted) {
    if (value == 0) value = wanted;
  };
  fill(o.image_size, size.image_size);
  fill(o.patch_size, size.patch_size);
  fill(o.n_layer, size.n_layer);
  fill(o.n_head, size.n_head);
  fill(o.n_embd, size.n_embd);
  fill(o.max_length, size.max_length);
  fill(o.batch_size, size.batch_size);
  fill(o.max_steps, o.is_random() ? 120 : 6500);
  fill(o.eval_steps, std::max<int64_t>(o.max_steps / 5, 1));
  if (o.shift < 0) o.shift = o.is_random() ? 0 : o.image_size / 32;
  if (o.zoom < 0) o.zoom = o.is_random() ? 0 : 0.15;
  if (o.study.on && !o.is_random()) throw Error("--study has random data: leave out --data and --images");
  if (o.is_random() && !flags.given("output_dir") && o.predict.empty()) o.output_dir.clear();
  if (o.study.on && o.output_dir.empty()) o.output_dir = "captioning_study";
  if (o.study.on) refuse_what_rows_choose(flags);
  if (!o.init_from.empty())
    for (const char* name : {"size", "image_size", "patch_size", "n_layer", "n_head", "n_embd", "vocab_size"})
      if (flags.given(name))
        throw Error(absl::StrCat("--", name, ": the model in ", o.init_from, " has its own: leave it out"));
  if (!o.compiler.buckets.empty() && !flags.given("padding")) o.padding = "buckets";
  if (!o.compiler.buckets.empty() && o.padding != "buckets")
    throw Error(absl::StrCat("--buckets needs --padding=buckets, got --padding=", o.padding));
  const auto positive = [](const char* name, int64_t value) {
    if (value < 1) throw Error(absl::StrCat("--", name, " must be positive, got ", value));
  };
  positive("max_steps", o.max_steps);
  positive("batch_size", o.batch_size);
  positive("eval_batch_size", o.eval_batch_size);
  positive("eval_steps", o.eval_steps);
  positive("train_pictures", o.train_pictures);
  positive("held_out_pictures", o.held_out_pictures);
  positive("max_pixels", o.max_pixels);
  positive("max_length", o.max_length);
  positive("image_size", o.image_size);
  positive("patch_size", o.patch_size);
  positive("n_layer", o.n_layer);
  positive("n_head", o.n_head);
  positive("n_embd", o.n_embd);
  positive("num_beams", o.num_beams);
  positive("padding_multiple", o.padding_multiple);
  positive("untimed_steps", o.untimed_steps);
  positive("study_steps", o.study.steps);
  if (o.study.steps > 1'000'000)
    throw Error(absl::StrCat("--study_steps must be at most 1000000, got ", o.study.steps));
  if (o.study.rounds < 0) throw Error(absl::StrCat("--study_rounds must not be negative, got ", o.study.rounds));
  if (!(o.study.timeout > 0)) throw Error(absl::StrCat("--study_timeout must be above 0, got ", o.study.timeout));
  if (o.vocab_size < 4) throw Error(absl::StrCat("--vocab_size must be at least 4, got ", o.vocab_size));
  if (o.image_size % o.patch_size != 0)
    throw Error(
        absl::StrCat("--image_size must be a multiple of --patch_size, got ", o.image_size, " and ", o.patch_size));
  if (o.n_embd % o.n_head != 0)
    throw Error(absl::StrCat("--n_embd must be a multiple of --n_head, got ", o.n_embd, " and ", o.n_head));
  if (!(o.zoom < 1)) throw Error(absl::StrCat("--zoom must be below 1, got ", o.zoom));
  if (o.shift >= o.image_size)
    throw Error(absl::StrCat("--shift must be below --image_size, got ", o.shift, " and ", o.image_size));
  if (!(o.validation_share >= 0 && o.validation_share < 1))
    throw Error(absl::StrCat("--validation_share must be in [0, 1), got ", o.validation_share));
  if (!(o.warmup_ratio >= 0 && o.warmup_ratio <= 1))
    throw Error(absl::StrCat("--warmup_ratio must be in [0, 1], got ", o.warmup_ratio));
  check(o);
}

data::ExampleBatchesOptions padded(const CaptioningOptions& o, data::ExampleBatchesOptions batches) {
  batches.group_by_length = o.group_by_length;
  batches.max_length = o.max_length;
  batches.max_sizes = o.max_length;  // no limit
  batches.multiple_of = o.padding == "multiple" ? o.padding_multiple : 1;
  if (o.padding == "max") batches.sizes = {o.max_length};
  if (o.padding != "buckets") return batches;
  if (!o.compiler.buckets.empty()) {
    batches.multiple_of = o.padding_multiple;
    batches = in_buckets(o.compiler, batches);
    if (!batches.sizes.empty() && std::ranges::max(batches.sizes) > o.max_length)
      throw Error(absl::StrCat("--buckets=", o.compiler.buckets, ": the largest is above --max_length=", o.max_length));
    return batches;
  }
  constexpr int64_t kBuckets = 8;  // as many as the study's multiples of 32 up to 256
  for (int64_t i = 1; i <= kBuckets; ++i)
    if (const int64_t size = o.max_length * i / kBuckets; size > 0) batches.sizes.push_back(size);
  return batches;
}

}  // namespace rondo::examples
