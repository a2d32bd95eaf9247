// Trains a model of a ViT and a GPT-2 to write captions for pictures, and writes captions with it.
//
//   image_captioning                                                  # random pictures and captions: how fast it is
//   image_captioning --data=drawn                                     # learns shapes that the program draws
//   image_captioning --images=photos --captions=captions.tsv          # lines picture<TAB>caption
//   image_captioning ... --resume_from_checkpoint=true                # after Ctrl-C or a kill: the same bits
//   image_captioning --predict a.png b.jpg                            # by the model in captioning/ (--init_from)
//   rondorun --nproc-per-node 2 image_captioning --data=drawn         # two processes share the batches
//   image_captioning --study                                          # the published study: study.h
//   image_captioning --help
//
// --output_dir gets checkpoints, metrics.jsonl, tensorboard/, held_out.tsv, pictures/, and at the end what transformers
// loads: the model, its tokenizer and preprocessor_config.json.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/trainer_replicas.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/examples/image_captioning/caption_batches.h"
#include "rondo/examples/image_captioning/caption_model.h"
#include "rondo/examples/image_captioning/drawn.h"
#include "rondo/examples/image_captioning/options.h"
#include "rondo/examples/image_captioning/study.h"
#include "rondo/examples/image_captioning/word_tokenizer.h"
#include "rondo/examples/job.h"
#include "rondo/examples/run_control.h"
#include "rondo/examples/run_report.h"
#include "rondo/examples/segmentation/render.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/trainer/event_writer.h"
#include "rondo/optim/trainer/metrics_file.h"
#include "rondo/optim/trainer/trainer.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/checkpoint/checkpoint.h"
#include "rondo/runtime/data/batch_share.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/runtime/image/image.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/checksum.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/op/amp.h"

namespace rondo::examples {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kShownPictures = 6;

struct Sets {
  std::shared_ptr<const CaptionedPictures> train, held_out;  // null: none
};

std::shared_ptr<const DrawnPictures> drawn(const CaptioningOptions& o, bool held_out) {
  return std::make_shared<DrawnPictures>(held_out ? o.held_out_pictures : o.train_pictures, held_out,
                                         static_cast<uint64_t>(o.seed), o.image_size);
}

Sets open_sets(const CaptioningOptions& o) {
  if (o.data == "drawn") return {drawn(o, false), drawn(o, true)};
  const auto all = CaptionFile::read(o.images, o.captions, o.max_pixels);
  if (!o.validation_captions.empty()) return {all, CaptionFile::read(o.images, o.validation_captions, o.max_pixels)};
  if (o.validation_share == 0) return {all, nullptr};
  const auto [train, held_out] = all->split(o.validation_share);
  if (train->size() == 0 || held_out->size() == 0)
    throw Error(
        formatted("--validation_share=%g of %d lines of %s leaves %d for training and %d held out: name "
                  "held-out pictures in --validation_captions, or set 0",
                  o.validation_share, all->size(), o.captions, train->size(), held_out->size()));
  return {train, held_out};
}

std::vector<std::string> captions_of(const CaptionedPictures& pictures) {
  std::vector<std::string> captions;
  for (int64_t i = 0; i < pictures.size(); ++i) captions.push_back(pictures.caption(i));
  return captions;
}

class Captioner : optim::Callback {
 public:
  Captioner(const CaptioningOptions& o, const Job& job) : o_(o), job_(job) {
    if (!o_.report.empty() && job_.lead()) report_.emplace(o_.report);
    if (o_.predict.empty() && !o_.is_random()) sets_ = open_sets(o_);
    if (!o_.predict.empty() && !fs::exists(o_.init_from + "/config.json") &&
        !io::list_checkpoints(o_.init_from).empty())
      throw Error(absl::StrCat("--predict: ", o_.init_from, " has checkpoints of a training that has not ended, and ",
                               "no model yet: --resume_from_checkpoint=true goes on"));
    if (!o_.init_from.empty()) {
      words_.emplace(text::AutoTokenizer::from_pretrained(o_.init_from));
      model_.emplace(o_.init_from, o_);
    } else {
      if (!o_.is_random()) {
        words_json_ = word_tokenizer_json(captions_of(*sets_.train), o_.vocab_size);
        words_.emplace(text::PreTrainedTokenizer::from_json(words_json_, "tokenizer.json"));
      }
      model_.emplace(o_, words_ ? &*words_ : nullptr);
    }
    model()->to(o_.device);
    if (o_.predict.empty())
      job_.say(
          formatted("%d parameters, vocabulary of %d", model()->num_parameters(), model()->config.decoder.vocab_size));
  }

  // Trains the model. Returns false if the user cancelled.
  bool train() {
    const std::shared_ptr<const data::ExampleSet> captions = examples_of(sets_.train.get());
    if (captions->size() < o_.batch_size)
      throw Error(formatted("%d captions make no whole batch of %d: set a smaller --batch_size", captions->size(),
                            o_.batch_size));
    CaptionBatches batches(captions, pixels_of(sets_.train),
                           {.order = padded(o_, {.batch_size = o_.batch_size,
                                                 .shuffle = !o_.is_random(),  // the data is random already
                                                 .seed = seed(),
                                                 .drop_last = true}),
                            .zoom = o_.zoom,
                            .shift = o_.shift});
    job_.say(formatted("%d captions for training, the longest has %d tokens; %d%% of the columns are padding",
                       batches.captions().size(), batches.captions().report().longest,
                       static_cast<int64_t>(100 * batches.padding_share() + 0.5)));
    if (sets_.held_out != nullptr) {
      held_out_.emplace(examples_of(sets_.held_out.get()), pixels_of(sets_.held_out),
                        CaptionBatchesOptions{.order = {.batch_size = o_.eval_batch_size, .shuffle = false}});
      job_.say(formatted("%d held out", sets_.held_out->size()));
    }
    if (report_)
      report_->start({.untimed_steps = o_.untimed_steps,
                      .steps_of_epoch = batches.size() / job_.group->world_size() / o_.gradient_accumulation_steps,
                      .device = o_.device});
    Compiler compiler(o_.compiler, *model(),
                      {.dims = {1},
                       .max = o_.max_length,
                       .argument = 1,  // the decoder's tokens, which are made of the labels
                       .is_in_blocks = false,
                       .is_padded = true});
    optim::AdamW optimizer(optim::decay_groups(
        model()->parameters(),
        optim::AdamWOptions{.lr = o_.learning_rate, .betas = {0.9, 0.98}, .weight_decay = o_.weight_decay}));
    compiler.compile(optimizer);
    const auto loss = [&](const data::Batch& batch) {
      compiler.mark(batch);
      return model()->loss(batch[1], batch[0]);
    };
    job_.say(compiler.loaded());
    job_.say(compiler.warm_up(*job_.group, batches, o_.device, batches.sizes(), [&](const data::Batch& batch) {
      const amp::Autocast autocast(lower());
      loss(batch).backward();
    }));
    std::optional<dist::DistributedDataParallel> ddp;
    if (job_.several()) {
      ddp.emplace(*model(), job_.group);
      replicas_.emplace(*ddp, dist::TrainerReplicasOptions{.check_parameters = o_.check_ranks});
      job_.say(absl::StrCat(job_.group->world_size(), " processes share the batches"));
    }
    const optim::CosineWithWarmup schedule{
        .lr = o_.learning_rate,
        .min_lr = o_.learning_rate / 100,
        .warmup_steps = static_cast<int64_t>(o_.warmup_ratio * static_cast<double>(o_.max_steps)),
        .decay_steps = o_.max_steps};
    const optim::Optimizer::Schedule constant = [&](int64_t step) {
      return step < schedule.warmup_steps ? schedule(step) : o_.learning_rate;
    };
    optim::TrainerOptions options = trainer_options_of(o_);
    options.max_steps = o_.max_steps;
    options.autocast = lower();
    options.lr_schedules.assign(2, o_.lr_scheduler_type == "constant" ? constant : schedule);  // one for each group
    options.count_targets = [](const data::Batch& b) { return optim::unmasked_targets({b[1], b[0]}); };
    options.replicas = replicas_ ? &*replicas_ : nullptr;
    optim::Trainer trainer(*model(), optimizer, loss, batches, options);
    std::optional<OwnsFolder> owner;
    std::optional<optim::MetricsLog> metrics;
    std::optional<optim::TensorBoardLog> board;
    if (job_.lead() && !o_.output_dir.empty()) {
      trainer.add_callback(owner.emplace(job_, o_.output_dir));
      trainer.add_callback(metrics.emplace(o_.output_dir + "/metrics.jsonl"));
      trainer.add_callback(board.emplace(o_.output_dir + "/tensorboard"));
    }
    ExplainsFirstStep explains(compiler, job_, o_.output_dir);
    trainer.add_callback(explains);
    if (report_) trainer.add_callback(*report_);
    trainer.add_callback(*this);  // on all ranks: each captions its share of the held-out pictures
    if (!o_.resume_from_checkpoint.empty()) require_same_model();
    resume(trainer, o_, job_);
    const std::optional<optim::TrainResult> result = examples::train(trainer, job_);
    job_.say(compiler.summary());
    if (!result) return false;
    if (held_out_ && o_.num_beams > 1) caption_held_out(result->last.step, o_.num_beams);
    replicas_.reset();
    if (job_.lead() && !o_.output_dir.empty()) save();  // first: what follows may fail
    if (report_) report_->write(compiler.regions());
    job_.say(compiler.finish(*job_.group));
    return true;
  }

  // Prints a line "picture<TAB>caption" for each picture; with beams, a second caption follows.
  void predict() {
    for (const std::string& path : picture_files()) {
      const Tensor pixels = model_->processor()(read_picture(path, o_.max_pixels)).to(o_.device);
      std::string line = absl::StrCat(path, "\t", text_of(captions(pixels, 1)[0]));
      if (o_.num_beams > 1) absl::StrAppend(&line, "\t", text_of(captions(pixels, o_.num_beams)[0]));
      std::printf("%s\n", line.c_str());
    }
  }

 private:
  nn::VisionEncoderDecoder* model() const { return &**model_; }
  uint64_t seed() const { return static_cast<uint64_t>(o_.seed); }
  std::optional<DType> lower() const { return o_.dtype == "bfloat16" ? std::optional(kBF16) : std::nullopt; }

  // Returns the examples for training or evaluation: the captions of `pictures`, or random captions if it is null.
  std::shared_ptr<const data::ExampleSet> examples_of(const CaptionedPictures* pictures) const {
    const nn::VisionEncoderDecoderConfig& config = model()->config;
    const int64_t max_length = std::min(o_.max_length, config.decoder.block_size);
    if (pictures == nullptr)
      return random_captions(o_.train_pictures, max_length, config.decoder.vocab_size, config.decoder_start_token_id,
                             model_->end(), seed());
    return encoded(*pictures, *words_, config.decoder_start_token_id, model_->end(), max_length);
  }
  PixelsOf pixels_of(const std::shared_ptr<const CaptionedPictures>& pictures) const {
    const nn::ViTConfig& config = model()->config.encoder;
    if (pictures == nullptr) return random_pixels(config.in_channels, config.image_size, seed());
    return processed(pictures, model_->processor());
  }

  // Lists the settings that a resumed run must not change, but that no parameter's shape shows: heads, patches,
  // vocabulary, augmentation.
  std::string meaning() const {
    io::Checksum words;
    words.update(words_json_);
    return formatted("--image_size=%d --patch_size=%d --n_head=%d --zoom=%g --shift=%d, vocabulary %016x\n",
                     o_.image_size, o_.patch_size, o_.n_head, o_.zoom, o_.shift, words.digest());
  }
  static constexpr const char* kMeaning = "model_options";
  void require_same_model() const {
    fs::path folder = o_.resume_from_checkpoint == "true" ? o_.output_dir : o_.resume_from_checkpoint;
    if (folder.extension() == ".safetensors") folder = folder.parent_path();
    const std::string path = (folder / kMeaning).string();
    if (!o_.init_from.empty() || !fs::exists(path)) return;
    constexpr uint64_t kMost = 4096;
    if (const std::string before = io::read_text(path, kMost); before != meaning())
      throw Error(absl::StrCat("--resume_from_checkpoint: ", path, " has ", before.substr(0, before.find('\n')),
                               ", and this run ", meaning().substr(0, meaning().find('\n')),
                               ": take the same options and captions, or another --output_dir"));
  }

  // Generates captions for the pictures. Returns their tokens, without the end token.
  std::vector<std::vector<int64_t>> captions(const Tensor& pixels, int64_t num_beams) {
    const amp::Autocast autocast(lower());
    std::vector<std::vector<int64_t>> out;
    for (nn::Generation& made :
         model()->generate(pixels, {.max_new_tokens = o_.max_length, .temperature = 0, .num_beams = num_beams})) {
      if (made.reason == nn::FinishReason::kStopToken) made.tokens.pop_back();
      out.push_back(std::move(made.tokens));
    }
    return out;
  }
  std::string text_of(const std::vector<int64_t>& tokens) const { return words_->decode(std::span(tokens)); }

  // Prints the share of held-out captions that are exact, token for token. The first process shows some of its own
  // share.
  void caption_held_out(int64_t step, int64_t num_beams) {
    data::BatchShare mine(*held_out_, job_.group->rank(), job_.group->world_size());
    mine.seek({});
    double exact = 0, all = 0;
    std::vector<std::pair<int64_t, std::string>> shown;  // example, caption
    for (;;) {
      const bool counts = mine.owns(mine.position());
      const auto batch = mine.next();
      if (!batch) break;
      if (!counts) continue;
      const std::vector<int64_t> examples(held_out_->examples().begin(), held_out_->examples().end());
      const std::vector<std::vector<int64_t>> made = captions((*batch)[1].to(o_.device), num_beams);
      for (size_t b = 0; b < made.size(); ++b) {
        std::vector<int64_t> truth = (*batch)[0].select(0, static_cast<int64_t>(b)).to_vector<int64_t>();
        std::erase(truth, data::kIgnoreIndex);
        truth.pop_back();  // drops the end token
        exact += made[b] == truth ? 1 : 0;
        all += 1;
        shown.emplace_back(examples[b], text_of(made[b]));
      }
    }
    if (replicas_) {
      const std::vector<double> sums = replicas_->sum({exact, all}, "the captions");
      exact = sums[0], all = sums[1];
    }
    job_.say(formatted("step %d  %s captions: %d of %d held-out ones are exact (%.1f%%)", step,
                       num_beams > 1 ? formatted("%d beams'", num_beams) : std::string("greedy"),
                       static_cast<int64_t>(exact), static_cast<int64_t>(all), 100 * exact / all));
    if (job_.lead() && !o_.output_dir.empty()) show(step, num_beams, shown);
  }

  // Writes held_out.tsv (the correct captions, and those that the model wrote), and an image in pictures/ (some
  // held-out pictures, in rows of three).
  void show(int64_t step, int64_t num_beams, const std::vector<std::pair<int64_t, std::string>>& shown) const {
    std::string lines;
    std::vector<Tensor> pictures;
    for (const auto& [example, made] : shown) {
      absl::StrAppend(&lines, sets_.held_out->caption(example), "\t", made, "\n");
      if (std::ssize(pictures) == kShownPictures) continue;
      Tensor picture = sets_.held_out->picture(example);
      if (picture.size(0) != 3 || (!pictures.empty() && !(picture.sizes() == pictures[0].sizes()))) continue;
      job_.say(absl::StrCat("  ", sets_.held_out->caption(example), "  ->  ", made));
      pictures.push_back(std::move(picture));
    }
    io::write_file_atomic(absl::StrCat(o_.output_dir, num_beams > 1 ? "/held_out_beams.tsv" : "/held_out.tsv"), lines);
    if (pictures.empty()) return;
    io::make_folders(o_.output_dir + "/pictures");
    io::write_image(absl::StrCat(o_.output_dir, "/pictures/", formatted("step-%06d.png", step)), sheet(pictures, 3));
  }

  void save() const {
    model_->save(o_.output_dir);
    if (!words_json_.empty()) save_word_tokenizer(words_json_, o_.output_dir);
    else if (words_ && !fs::equivalent(o_.init_from, o_.output_dir))
      text::AutoTokenizer::copy_files(o_.init_from, o_.output_dir);
    std::printf("The model is in %s\n", o_.output_dir.c_str());
  }

  // Returns the files that --predict names. A folder stands for its PNG and JPEG files, sorted by name.
  std::vector<std::string> picture_files() const {
    std::vector<std::string> files;
    for (const std::string& path : o_.predict) {
      std::error_code ignored;
      if (!fs::is_directory(path, ignored)) {
        files.push_back(path);
        continue;
      }
      for (const std::string& name : io::list_folder(path)) {
        const std::string end = absl::AsciiStrToLower(fs::path(name).extension().string());
        if (end == ".png" || end == ".jpg" || end == ".jpeg") files.push_back((fs::path(path) / name).string());
      }
    }
    return files;
  }

  void on_begin(const optim::Progress& /*now*/) override {
    if (job_.lead() && !o_.output_dir.empty() && o_.init_from.empty())
      io::write_file_atomic(o_.output_dir + "/" + kMeaning, meaning());
  }
  void on_log(const optim::Progress& now) override {
    job_.say(formatted("step %d/%d  epoch %.2f  loss %.4f  lr %.2e  %.0f ms, %.2f steps/s", now.step, now.max_steps,
                       now.epoch, now.loss, now.lr, now.step_ms, 1000 / now.step_ms));
  }
  void on_step(const optim::Progress& now) override {
    if (held_out_ && (now.step % o_.eval_steps == 0 || now.step == now.max_steps)) caption_held_out(now.step, 1);
  }

  const CaptioningOptions& o_;
  const Job& job_;
  std::optional<RunReport> report_;  // made first: it measures the memory of what follows
  Sets sets_;
  std::string words_json_;                          // tokenizer.json, if the tokenizer was made here
  std::optional<text::PreTrainedTokenizer> words_;  // none for random data
  std::optional<CaptionModel> model_;
  std::optional<CaptionBatches> held_out_;
  std::optional<dist::TrainerReplicas> replicas_;  // while several processes train
};

}  // namespace
}  // namespace rondo::examples

int main(int argc, char** argv) {
  using namespace rondo::examples;
  return run_program("image_captioning", [&] {
    CaptioningOptions options;
    Flags flags = flags_of(options);
    flags.parse(without_pictures({argv + 1, argv + argc}, options));
    if (flags.help_wanted()) {
      std::printf("%s", flags.usage().c_str());
      return 0;
    }
    complete(options, flags);
    if (!options.write_pictures.empty()) {
      write_pictures(*drawn(options, true), 20, options.write_pictures);
      std::printf("Drawn pictures are in %s\n", options.write_pictures.c_str());
      return 0;
    }
    if (options.study.on) return run_captioning_study(options, flags.given("dtype"));
    const std::string note = complete(options.compiler, options.device);
    return rondo::dist::record_errors([&] {
      const Job job(job_options(options));
      if (options.predict.empty()) job.say(note);
      Captioner captioner(options, job);
      if (!options.predict.empty()) {
        if (job.lead()) captioner.predict();
        return 0;
      }
      return captioner.train() ? 0 : 130;
    });
  });
}
