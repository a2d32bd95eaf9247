// Fine-tunes a published language model on a text file, on the CPU, and shows what it writes before and after.
//
//   finetune --model_name_or_path=models/gpt2 --train_file=book.txt --output_dir=adapter     # LoRA, for PEFT too
//   finetune --model_name_or_path=models/gpt2 --train_file=book.txt --output_dir=tuned --full    # all weights
//   finetune --help                                           # Hugging Face's names
//
// The folder of the model is as Hugging Face publishes it: config.json, model.safetensors, tokenizer.json. With LoRA,
// --output_dir gets an adapter (nn::load_adapter and PEFT read it), with --full a whole model.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/compile/compile.h"
#include "rondo/examples/flags.h"
#include "rondo/modules/generation.h"
#include "rondo/modules/lora.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/schedule.h"
#include "rondo/runtime/amp.h"
#include "rondo/runtime/autograd.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/runtime/io/mapped_file.h"
#include "rondo/runtime/random.h"
#include "rondo/runtime/text/tokenizer.h"

namespace rondo::examples {
namespace {

struct FinetuneOptions {
  std::string model_name_or_path, train_file, output_dir = "tuned";
  int64_t max_steps = 200, per_device_train_batch_size = 4, block_size = 128, warmup_steps = 10, logging_steps = 10;
  int64_t seed = 42, max_new_tokens = 60;
  double learning_rate = 1e-3, weight_decay = 0.0, max_grad_norm = 1.0, validation_split = 0.1;
  bool full = false, bf16 = false, compile = true;
  int64_t lora_r = 8;
  double lora_alpha = 16, lora_dropout = 0.0;
  std::string lora_target_modules = "all-linear", prompt;
};

Flags flags_of(FinetuneOptions& o) {
  Flags flags("finetune", "Fine-tunes a published language model on a text file.");
  flags.add("model_name_or_path", &o.model_name_or_path, "folder with config.json, model.safetensors, tokenizer.json");
  flags.add("train_file", &o.train_file, "UTF-8 text");
  flags.add("output_dir", &o.output_dir, "where the adapter goes, or with --full the model");
  flags.add("max_steps", &o.max_steps, "optimizer steps");
  flags.add("per_device_train_batch_size", &o.per_device_train_batch_size, "windows of a step");
  flags.add("block_size", &o.block_size, "tokens of a window");
  flags.add("learning_rate", &o.learning_rate, "at the end of the warm-up; then half a cosine wave to a tenth");
  flags.add("warmup_steps", &o.warmup_steps, "steps of linear warm-up");
  flags.add("weight_decay", &o.weight_decay, "of AdamW");
  flags.add("max_grad_norm", &o.max_grad_norm, "gradients are clipped to this norm");
  flags.add("validation_split", &o.validation_split, "the last part of the text, for the validation loss");
  flags.add("logging_steps", &o.logging_steps, "steps between two lines");
  flags.add("seed", &o.seed, "of windows, adapters and samples");
  flags.add("bf16", &o.bf16, "products in bfloat16");
  flags.add("compile", &o.compile, "compile the repeated block");
  flags.add("full", &o.full, "train all weights instead of an adapter");
  flags.add("lora_r", &o.lora_r, "rank of the adapter");
  flags.add("lora_alpha", &o.lora_alpha, "its scaling is lora_alpha / lora_r");
  flags.add("lora_dropout", &o.lora_dropout, "probability, for what goes into the adapter");
  flags.add("lora_target_modules", &o.lora_target_modules, "names with commas between, or all-linear");
  flags.add("prompt", &o.prompt, "what the samples begin with; empty: the first words of the validation text");
  flags.add("max_new_tokens", &o.max_new_tokens, "length of the samples; 0: none");
  return flags;
}

class Finetuning {
 public:
  explicit Finetuning(const FinetuneOptions& o)
      : o_(o),
        tokenizer_(text::AutoTokenizer::from_pretrained(o.model_name_or_path)),
        model_(nn::AutoModelForCausalLM::from_pretrained(o.model_name_or_path)) {
    const auto file = io::MappedFile::open(o.train_file);
    const std::vector<int32_t> ids = tokenizer_.encode(file->text(), {.add_special_tokens = false});
    check_vocabulary(ids);
    const auto [train, val] = data::TokenData::from(ids).split(o.validation_split);
    train_.emplace(train, o.block_size);
    val_.emplace(val, o.block_size);
    prompt_ = o.prompt.empty() ? first_words(val) : tokenizer_.encode(o.prompt, {.add_special_tokens = false});
    manual_seed(static_cast<uint64_t>(o.seed));
    if (!o.full) {
      const nn::LoraReport report = nn::add_lora(*model_, {.rank = o.lora_r,
                                                           .alpha = o.lora_alpha,
                                                           .dropout = o.lora_dropout,
                                                           .targets = absl::StrSplit(o.lora_target_modules, ',')});
      std::printf("%zu modules adapted: %lld of %lld parameters are trained\n", report.targets.size(),
                  static_cast<long long>(report.trainable), static_cast<long long>(report.total));
    }
    model_->train();
    if (o.compile) compile::compile_regions(*model_);
  }

  void run() {
    std::printf("%lld training tokens; validation loss %.4f\n", static_cast<long long>(train_->tokens().size()),
                evaluate());
    show("before");
    optim::AdamW optimizer(model_->parameters(), {.lr = o_.learning_rate, .weight_decay = o_.weight_decay});
    const optim::CosineWithWarmup schedule{.lr = o_.learning_rate,
                                           .min_lr = o_.learning_rate / 10,
                                           .warmup_steps = o_.warmup_steps,
                                           .decay_steps = o_.max_steps};
    for (int64_t step = 0; step < o_.max_steps; ++step) {
      optimizer.set_lr(schedule(step));
      const data::TokenBatch batch = train_->sample(o_.per_device_train_batch_size, static_cast<uint64_t>(o_.seed),
                                                    step);
      const Tensor loss = loss_of(batch);
      loss.backward();
      optimizer.step({.max_norm = o_.max_grad_norm, .zero_grad = true});
      if (step % o_.logging_steps == 0 || step + 1 == o_.max_steps)
        std::printf("step %5lld  loss %.4f\n", static_cast<long long>(step + 1), loss.item());
    }
    std::printf("validation loss %.4f\n", evaluate());
    show("after");
    if (o_.full) model_.save_pretrained(o_.output_dir);
    else nn::save_adapter(*model_, o_.output_dir, {.base_model_name_or_path = o_.model_name_or_path});
    std::printf("%s is in %s\n", o_.full ? "The model" : "The adapter", o_.output_dir.c_str());
  }

 private:
  // A tokenizer of another model would look up rows that are not there, or the wrong ones.
  void check_vocabulary(const std::vector<int32_t>& ids) const {
    if (ids.empty()) throw Error(absl::StrCat(o_.train_file, " holds no tokens"));
    const int64_t rows = model_->state_dict().at(embedding_name()).size(0);
    if (const int32_t largest = *std::max_element(ids.begin(), ids.end()); largest >= rows)
      throw Error(absl::StrCat("the tokenizer in ", o_.model_name_or_path, " is not this model's: it makes id ",
                               largest, ", and the model has ", rows, " rows of embeddings"));
  }
  std::string embedding_name() const {
    return model_.model_type() == "gpt2" ? "wte.weight" : "model.embed_tokens.weight";
  }
  std::vector<int32_t> first_words(const data::TokenData& val) const {
    std::vector<int32_t> words;
    for (int64_t i = 0; i < std::min<int64_t>(val.size(), 8); ++i) words.push_back(static_cast<int32_t>(val[i]));
    return words;
  }
  Tensor loss_of(const data::TokenBatch& batch) {
    std::optional<amp::Autocast> lower;
    if (o_.bf16) lower.emplace(kBF16);
    return model_.loss(batch.x, batch.y);
  }
  // The mean over at most 20 batches, spread over the validation text.
  double evaluate() {
    const NoGrad off;
    model_->eval();
    const int64_t all = val_->eval_batches(o_.per_device_train_batch_size), n = std::min<int64_t>(all, 20);
    double sum = 0, targets = 0;
    for (int64_t i = 0; i < n; ++i) {
      const data::TokenBatch batch = val_->eval_batch(i * all / n, o_.per_device_train_batch_size);
      sum += loss_of(batch).item() * static_cast<double>(batch.targets);
      targets += static_cast<double>(batch.targets);
    }
    model_->train();
    return sum / targets;
  }
  void show(const char* when) {
    if (o_.max_new_tokens == 0) return;
    Generator generator(static_cast<uint64_t>(o_.seed));
    const nn::Generation made = nn::generate(
        model_.causal_lm(), std::vector<int64_t>(prompt_.begin(), prompt_.end()),
        {.max_new_tokens = o_.max_new_tokens, .temperature = 0.8, .top_k = 50, .generator = &generator});
    std::vector<int32_t> ids = prompt_;
    ids.insert(ids.end(), made.tokens.begin(), made.tokens.end());
    std::printf("---- %s\n%s\n----\n", when, tokenizer_.decode(ids).c_str());
  }

  const FinetuneOptions& o_;
  const text::PreTrainedTokenizer tokenizer_;
  nn::AutoModelForCausalLM model_;
  std::optional<data::TokenDataset> train_, val_;
  std::vector<int32_t> prompt_;
};

}  // namespace
}  // namespace rondo::examples

int main(int argc, char** argv) {
  using namespace rondo::examples;
  FinetuneOptions options;
  try {
    Flags flags = flags_of(options);
    flags.parse({argv + 1, argv + argc});
    if (flags.help_wanted()) {
      std::printf("%s", flags.usage().c_str());
      return 0;
    }
    if (options.model_name_or_path.empty() || options.train_file.empty())
      throw rondo::Error("--model_name_or_path and --train_file are needed; --help says what they are");
    Finetuning(options).run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "finetune: %s\n", e.what());
    return 1;
  }
  return 0;
}
