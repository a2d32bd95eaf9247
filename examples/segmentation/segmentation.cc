// Trains a network that predicts a class for each pixel of an image, and predicts with it.
//
//   segmentation                                                  # on pictures that the program makes
//   segmentation --data=cityscapes --model=pp_liteseg_t --bf16    # or a folder of images and masks
//   segmentation ... --resume_from_checkpoint=true                # after Ctrl-C or a kill: the same losses
//   segmentation ... --init_from=segmentation/model.safetensors --predict=photos
//   rondorun --nproc-per-node 2 segmentation ...                  # two processes share the batches
//
// --output_dir gets checkpoints, metrics.jsonl, miou.jsonl, tensorboard/, pictures/ of held-out pictures (image, truth,
// prediction), and at the end model.safetensors: the averages of the weights, if there are any.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/trainer_replicas.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/examples/compiler.h"
#include "rondo/examples/job.h"
#include "rondo/examples/run_control.h"
#include "rondo/examples/segmentation/augment.h"
#include "rondo/examples/segmentation/confusion_matrix.h"
#include "rondo/examples/segmentation/evaluation_log.h"
#include "rondo/examples/segmentation/options.h"
#include "rondo/examples/segmentation/pictures.h"
#include "rondo/examples/segmentation/render.h"
#include "rondo/examples/segmentation/synthetic.h"
#include "rondo/modules/vision/pp_liteseg.h"
#include "rondo/modules/vision/segformer.h"
#include "rondo/modules/vision/stdc.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/average_scope.h"
#include "rondo/optim/trainer/event_writer.h"
#include "rondo/optim/trainer/metrics_file.h"
#include "rondo/optim/trainer/trainer.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/data/batch_share.h"
#include "rondo/runtime/data/data_loader.h"
#include "rondo/runtime/data/device_batches.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"

namespace rondo::examples {
namespace {

namespace fs = std::filesystem;

// The sizes of every image that a model reads are multiples of this.
constexpr int64_t kMultiple = 32;
constexpr int64_t kShownPictures = 4;

struct Network {
  std::unique_ptr<nn::ModuleBase> module;
  std::function<Tensor(const Tensor& images)> logits;
  std::function<Tensor(const Tensor& images, const Tensor& masks)> loss;
};
template <class M> Network network(std::unique_ptr<M> made) {
  M& m = *made;
  return {std::move(made), [&m](const Tensor& images) { return m(images); },
          [&m](const Tensor& images, const Tensor& masks) { return m.loss(images, masks); }};
}
Network make_network(const std::string& name, int64_t classes, uint64_t seed) {
  if (name == "pp_liteseg_t") return network(std::make_unique<nn::PPLiteSeg>(nn::pp_liteseg_t(classes), seed));
  if (name == "pp_liteseg_b") return network(std::make_unique<nn::PPLiteSeg>(nn::pp_liteseg_b(classes), seed));
  if (name == "stdc1") return network(std::make_unique<nn::STDCSeg>(nn::STDCSegConfig{.num_classes = classes}, seed));
  if (name == "segformer_b0") {
    const nn::SegformerConfig config{.num_classes = classes};
    return network(std::make_unique<nn::SegformerForSemanticSegmentation>(config, seed));
  }
  const nn::PPLiteSegConfig small{.encoder = {.layers = {1, 1, 1}, .width = 16},
                                  .decoder = {32, 32, 64},
                                  .pyramid = 64,
                                  .head = 32,
                                  .num_classes = classes};
  return network(std::make_unique<nn::PPLiteSeg>(small, seed));
}

class Segmenter : optim::Callback {
 public:
  Segmenter(const SegmentationOptions& o, const Job& job)
      : o_(o),
        job_(job),
        network_(make_network(o.model, o.classes, static_cast<uint64_t>(o.seed))),
        log_(o.output_dir),
        colours_(class_colours(o.classes)) {
    if (!o_.init_from.empty()) network_.module->load_state_dict(io::load_safetensors(o_.init_from).tensors);
    network_.module->to(o_.device);
    // Crops have one size; held-out pictures have sizes of their own.
    compiler_.emplace(o_.compiler, *network_.module,
                      Varying{.dims = {2, 3}, .multiple_of = kMultiple, .is_in_blocks = false});
    job_.say(compiler_->loaded());
    job_.say(formatted("%s has %d parameters", o_.model, network_.module->num_parameters()));
  }

  // Trains the network. Returns false if the user cancelled.
  bool train() {
    const auto pictures = open("train");
    validation_ = open("val");
    job_.say(formatted("%d pictures for training, %d held out", pictures->size(), validation_->size()));
    const AugmentOptions augment{.crop_height = o_.crop_height,
                                 .crop_width = o_.crop_width,
                                 .min_scale = o_.min_scale,
                                 .max_scale = o_.max_scale,
                                 .flip = o_.flip,
                                 .colour = o_.colour};
    data::DataLoader batches(std::make_shared<PictureSet>(pictures, augment),
                             {.batch_size = o_.batch_size,
                              .shuffle = true,
                              .seed = static_cast<uint64_t>(o_.seed),
                              .drop_last = pictures->size() >= o_.batch_size,
                              .num_workers = static_cast<int>(o_.num_workers)});
    nn::ModuleBase& module = *network_.module;
    optim::AdamW optimizer(optim::decay_groups(
        module.parameters(), optim::AdamWOptions{.lr = o_.learning_rate, .weight_decay = o_.weight_decay}));
    optimizer_ = &optimizer;
    compiler_->compile(optimizer);
    if (o_.ema_decay > 0) {
      for (const nn::NamedTensor& buffer : module.named_buffers()) buffers_.push_back(buffer.tensor);
      optimizer.track_average({.decay = o_.ema_decay, .warmup = true, .buffers = buffers_});
    }
    const auto loss = [this](const data::Batch& batch) {
      compiler_->mark(batch);
      return network_.loss(batch[0], batch[1]);
    };
    const std::string warmed_up = compiler_->warm_up(*job_.group, batches, o_.device, {},
                                                     [&](const data::Batch& batch) {
                                                       const amp::Autocast autocast(lower());
                                                       loss(batch).backward();
                                                     });
    job_.say(warmed_up);
    std::optional<dist::DistributedDataParallel> ddp;
    if (job_.several()) {
      ddp.emplace(module, job_.group);
      replicas_.emplace(*ddp, dist::TrainerReplicasOptions{.check_parameters = o_.check_ranks});
      job_.say(absl::StrCat(job_.group->world_size(), " processes share the batches"));
    }
    optim::TrainerOptions options = trainer_options_of(o_);
    options.max_steps = o_.max_steps;
    options.autocast = lower();
    options.lr_schedules.assign(2, poly_schedule());  // one for each group
    options.count_targets = counted_pixels;
    options.replicas = replicas_ ? &*replicas_ : nullptr;
    optim::Trainer trainer(module, optimizer, loss, batches, options);
    OwnsFolder owner(job_, o_.output_dir);
    optim::MetricsLog metrics(o_.output_dir + "/metrics.jsonl");
    optim::TensorBoardLog board(o_.output_dir + "/tensorboard/training");
    if (job_.lead()) {
      trainer.add_callback(owner);
      trainer.add_callback(metrics);
      trainer.add_callback(board);
    }
    ExplainsFirstStep explains(*compiler_, job_, o_.output_dir);
    trainer.add_callback(explains);
    trainer.add_callback(*this);  // on all ranks: each evaluates its share
    resume(trainer, o_, job_);
    if (!examples::train(trainer, job_)) return false;
    replicas_.reset();
    job_.say(compiler_->finish(*job_.group));
    if (job_.lead()) save(optimizer);
    return true;
  }

  void predict() {
    const auto pictures = FolderPictures::images_in(
        o_.predict, {.classes = o_.classes, .max_pixels = o_.max_pixels, .skip_bad_files = o_.skip_bad_files});
    say_skipped(*pictures);
    const std::string folder = o_.output_dir + "/predictions";
    io::make_folders(folder);
    // A picture a_classes.png in that folder would be overwritten by the prediction for a.png.
    if (std::error_code ignored; fs::equivalent(o_.predict, folder, ignored))
      throw Error(absl::StrCat("--predict=", o_.predict, " is the folder that predictions are written to: ",
                               "set another --output_dir, or move the pictures"));
    network_.module->eval();
    const NoGrad off;
    for (int64_t i = 0; i < pictures->size(); ++i) {
      const Picture picture = pictures->get(i);
      const Tensor mask = predicted(picture);
      io::write_mask(absl::StrCat(folder, "/", picture.name, "_classes.png"), mask, colours_);
      io::write_image(absl::StrCat(folder, "/", picture.name, "_shown.png"), overlay(picture.image, mask, colours_));
    }
    std::printf("%s predictions are in %s\n", absl::StrCat(pictures->size()).c_str(), folder.c_str());
  }

 private:
  std::optional<DType> lower() const { return o_.bf16 ? std::optional(kBF16) : std::nullopt; }
  static int64_t counted_pixels(const data::Batch& batch) {
    const Tensor masks = batch[1].contiguous();
    const int32_t* classes = masks.data<int32_t>();
    return masks.numel() - std::count(classes, classes + masks.numel(), static_cast<int32_t>(nn::kIgnoredClass));
  }

  std::shared_ptr<const Pictures> open(const std::string& split) const {
    if (o_.data.empty()) {
      const bool training = split == "train";
      return std::make_shared<SyntheticPictures>(training ? o_.synthetic_pictures : o_.synthetic_validation,
                                                 training ? 1 : 2);
    }
    std::shared_ptr<const FolderPictures> set = FolderPictures::open(
        o_.data, split, {.classes = o_.classes, .max_pixels = o_.max_pixels, .skip_bad_files = o_.skip_bad_files});
    say_skipped(*set);
    return set;
  }
  void say_skipped(const FolderPictures& pictures) const {
    for (const std::string& why : pictures.skipped()) job_.say("skipped: " + why);
    if (!pictures.skipped().empty())
      job_.say(formatted("%d files were skipped, %d are used", pictures.skipped().size(), pictures.size()));
  }

  optim::Optimizer::Schedule poly_schedule() const {
    const auto warmup = static_cast<int64_t>(std::ceil(o_.warmup_ratio * static_cast<double>(o_.max_steps)));
    return [lr = o_.learning_rate, power = o_.power, warmup, steps = o_.max_steps](int64_t step) {
      if (step < warmup) return lr * static_cast<double>(step + 1) / static_cast<double>(warmup);
      return lr * std::pow(1 - static_cast<double>(step) / static_cast<double>(steps), power);
    };
  }

  // Returns the predicted classes, (H, W) i64, in the picture's own size.
  Tensor predicted(const Picture& picture) {
    const Tensor image = normalised(picture.image, kMultiple);
    const Tensor classes = classes_of(image.unsqueeze(0).to(o_.device), image.size(1), image.size(2)).select(0, 0);
    return classes.slice(0, {0, picture.image.size(1)}).slice(1, {0, picture.image.size(2)}).contiguous();
  }
  // Returns the predicted classes, (B, H, W) i64 on the CPU.
  Tensor classes_of(const Tensor& images, int64_t H, int64_t W) {
    const amp::Autocast autocast(lower());
    compiler_->mark({images});
    const Tensor logits = network_.logits(images).to(kF32);
    return ops::argmax(ops::interpolate(logits, {H, W}, {.mode = ops::InterpolateMode::kBilinear}), 1).to(kCPU);
  }

  // Measures the averaged weights. Running statistics are rank 0's on all ranks (dist/ddp/ddp.h), so the measured model
  // is the one that is saved.
  void evaluate(const optim::Progress& now) {
    std::optional<optim::AverageScope> averages;
    if (o_.ema_decay > 0) averages.emplace(*optimizer_);
    network_.module->eval();
    ConfusionMatrix matrix(o_.classes);
    {
      const NoGrad off;
      data::DataLoader source(std::make_shared<PictureSet>(validation_, kMultiple), {.batch_size = o_.eval_batch_size});
      data::BatchShare mine(source, job_.group->rank(), job_.group->world_size());
      for (;;) {
        const bool counts = mine.owns(mine.position());
        const auto batch = mine.next();
        if (!batch) break;
        if (!counts) continue;
        const Tensor &images = (*batch)[0], &masks = (*batch)[1];
        matrix.add(classes_of(images.to(o_.device), masks.size(1), masks.size(2)), masks);
      }
      if (replicas_) matrix.set_counts(replicas_->sum(matrix.counts(), "the confusion matrix"));
      if (job_.lead()) show_pictures(now.step);
    }
    network_.module->train();
    std::string each;
    for (int64_t c = 0; c < o_.classes; ++c)
      if (const auto iou = matrix.iou(c)) absl::StrAppend(&each, each.empty() ? "" : " ", formatted("%.3f", *iou));
    job_.say(formatted("step %d  mIoU %.4f  pixel accuracy %.4f  (%s)", now.step, matrix.mean_iou(), matrix.accuracy(),
                       each));
    if (job_.lead()) log_.write(now.step, matrix.mean_iou(), matrix.accuracy());
  }

  // Logs some held-out pictures, one in each row: image, truth, prediction.
  void show_pictures(int64_t step) {
    std::vector<Tensor> parts;
    for (int64_t i = 0; i < std::min(kShownPictures, validation_->size()); ++i) {
      const Picture picture = validation_->get(i);
      if (!parts.empty() && !(picture.image.sizes() == parts[0].sizes())) continue;
      parts.push_back(picture.image);
      parts.push_back(coloured(picture.mask, colours_));
      parts.push_back(coloured(predicted(picture), colours_));
    }
    log_.show(step, sheet(parts, 3));
  }

  void save(optim::Optimizer& optimizer) {
    std::optional<optim::AverageScope> averages;
    if (o_.ema_decay > 0) averages.emplace(optimizer);
    const std::string path = o_.output_dir + "/model.safetensors";
    io::TensorMap tensors;
    for (const auto& [name, tensor] : network_.module->state_dict()) tensors[name] = tensor;
    io::save_safetensors(path, tensors, {{"model", o_.model}});
    std::printf("The model is in %s\n", path.c_str());
  }

  void on_begin(const optim::Progress& now) override {
    if (job_.lead()) log_.begin(now.step);
  }
  void on_log(const optim::Progress& now) override {
    job_.say(formatted("step %d/%d  epoch %.2f  loss %.4f  lr %.2e  %.0f ms", now.step, now.max_steps, now.epoch,
                       now.loss, now.lr, now.step_ms));
  }
  void on_step(const optim::Progress& now) override {
    if (now.step % o_.eval_steps == 0 || now.step == now.max_steps) evaluate(now);
  }

  const SegmentationOptions& o_;
  const Job& job_;
  Network network_;
  std::optional<Compiler> compiler_;
  EvaluationLog log_;
  const std::vector<io::Color> colours_;
  std::shared_ptr<const Pictures> validation_;
  std::vector<Tensor> buffers_;  // buffers that are averaged with the weights
  optim::Optimizer* optimizer_ = nullptr;
  std::optional<dist::TrainerReplicas> replicas_;  // while several processes train
};

}  // namespace
}  // namespace rondo::examples

int main(int argc, char** argv) {
  using namespace rondo::examples;
  return run_program("segmentation", [&] {
    SegmentationOptions options;
    Flags flags = flags_of(options);
    flags.parse({argv + 1, argv + argc});
    if (flags.help_wanted()) {
      std::printf("%s", flags.usage().c_str());
      return 0;
    }
    complete(options);
    const std::string note = complete(options.compiler, options.device);
    if (!options.predict.empty() && options.init_from.empty())
      throw rondo::Error("--predict needs --init_from: the model.safetensors of a run");
    return rondo::dist::record_errors([&] {
      const Job job(job_options(options));
      job.say(note);
      Segmenter segmenter(options, job);
      if (!options.predict.empty()) {
        if (job.lead()) segmenter.predict();
        return 0;
      }
      return segmenter.train() ? 0 : 130;
    });
  });
}
