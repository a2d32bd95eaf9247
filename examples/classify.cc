// Fine-tunes a published BERT, RoBERTa, DistilBERT, MiniLM, Llama, Qwen or Mistral to sort texts into classes, and
// sorts texts with it.
//
//   classify --model_name_or_path=models/minilm --train_file=train.tsv --validation_file=val.tsv --output_dir=sorter
//   classify ... --resume_from_checkpoint=true       # after Ctrl-C or a kill: the same losses, bit for bit
//   classify --model_name_or_path=sorter --do_predict --test_file=texts.txt        # label, probability, text
//   rondorun --nproc-per-node 2 classify ...         # two processes share the batches; the same files
//   classify --help                                                               # Hugging Face's names
//
// --problem_type=regression learns numbers, and multi_label_classification any number of classes for each text; labels
// then have commas between them. Afterwards the model's config.json has the problem_type.
//
// Training files have a line "label<TAB>text" for each text, or if they end in .jsonl {"text": "...", "label": ...}.
// --test_file has a text on each line. --output_dir gets checkpoints, metrics.jsonl, and at the end what transformers
// loads: the model, the names of the classes in its config.json, and the tokenizer.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/ddp/trainer_replicas.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/examples/compiler.h"
#include "rondo/examples/flags.h"
#include "rondo/examples/job.h"
#include "rondo/examples/run_control.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/schedule.h"
#include "rondo/optim/trainer/metrics_file.h"
#include "rondo/optim/trainer/trainer.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/data/batch_share.h"
#include "rondo/runtime/data/device_batches.h"
#include "rondo/runtime/data/example_batches.h"
#include "rondo/runtime/data/read_examples.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/mapped_file.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/text/tokenizer.h"

namespace rondo::examples {
namespace {

struct ClassifyOptions : RunOptions {
  ClassifyOptions() {
    output_dir = "classifier";
    logging_steps = 50;
  }
  std::string model_name_or_path, train_file, validation_file, test_file, problem_type;
  bool do_predict = false, bf16 = false, load_best_model_at_end = false, allow_unknown_fields = false;
  int64_t max_seq_length = 128, per_device_train_batch_size = 16, per_device_eval_batch_size = 32;
  CompilerOptions compiler;
  double num_train_epochs = 3, learning_rate = 5e-5, weight_decay = 0.0, warmup_ratio = 0.0;
};

Flags flags_of(ClassifyOptions& o) {
  Flags flags("classify", "Fine-tunes a published model to sort texts into classes, and sorts texts.");
  flags.add("model_name_or_path", &o.model_name_or_path, "folder with config.json, model.safetensors, tokenizer");
  flags.add("allow_unknown_fields", &o.allow_unknown_fields,
            "ignore fields of config.json that are not known here: they may change what the model computes");
  flags.add("train_file", &o.train_file, "label<TAB>text lines, or .jsonl with text and label");
  flags.add("validation_file", &o.validation_file, "the same; accuracy after each epoch");
  flags.add("problem_type", &o.problem_type,
            "regression, single_label_classification, multi_label_classification; default: what the model says");
  flags.add("do_predict", &o.do_predict, "print label, probability and text for each line of --test_file");
  flags.add("test_file", &o.test_file, "a text on each line");
  flags.add("max_seq_length", &o.max_seq_length, "tokens; longer texts are cut");
  flags.add("num_train_epochs", &o.num_train_epochs, "passes over the training file");
  flags.add("per_device_train_batch_size", &o.per_device_train_batch_size, "texts of a batch");
  flags.add("per_device_eval_batch_size", &o.per_device_eval_batch_size, "texts of a batch without training");
  flags.add("learning_rate", &o.learning_rate, "at the end of the warm-up; then a straight line to 0");
  flags.add("warmup_ratio", &o.warmup_ratio, "the share of steps with linear warm-up");
  flags.add("weight_decay", &o.weight_decay, "of AdamW, not for biases and norms");
  flags.add("load_best_model_at_end", &o.load_best_model_at_end, "keep the epoch with the lowest validation loss");
  flags.add("bf16", &o.bf16, "products in bfloat16");
  add_options(flags, o, "checkpoints, metrics.jsonl, and at the end the model",
              "of the new head, the order of texts, and dropout");
  add_options(flags, o.compiler);
  return flags;
}

// Returns a string of config.json, such as its model_type. Empty if there is none: from_pretrained() says whether it is
// needed.
std::string config_word(const std::string& folder, std::string_view field) {
  const std::string path = folder + "/config.json", text = io::read_text(path, 16 << 20);
  std::string word;
  io::JsonReader json(path, text);
  json.object([&](std::string& key) {
    if (key == field && json.peek() == '"') word = json.string();
    else json.skip();
  });
  return word;
}

// Returns whether config.json has the id of this special token. A field that is null or below 0 (the first Llamas)
// names none.
bool config_has_token(const std::string& folder, std::string_view field) {
  const std::string path = folder + "/config.json", text = io::read_text(path, 16 << 20);
  bool has = false;
  io::JsonReader json(path, text);
  json.object([&](std::string& key) {
    has = has || (key == field && json.peek() != 'n' && json.peek() != '-');
    json.skip();
  });
  return has;
}

// Returns the names of the model's labels, by number: id2label of config.json, or LABEL_0 and so on if the file has
// only num_labels. The result is empty if the file has neither.
std::vector<std::string> config_labels(const std::string& folder) {
  const std::string path = folder + "/config.json", text = io::read_text(path, 16 << 20);
  std::map<int64_t, std::string> named;
  uint64_t said = 0;
  io::JsonReader json(path, text);
  json.object([&](std::string& key) {
    if (key == "id2label" && json.peek() == '{') {
      json.object([&](std::string& number) {
        int64_t i = 0;
        if (json.peek() == '"' && absl::SimpleAtoi(number, &i)) named[i] = json.string();
        else json.skip();
      });
    } else if (key == "num_labels" && json.peek() >= '0' && json.peek() <= '9') said = json.unsigned_integer();
    else json.skip();
  });
  std::vector<std::string> names;
  for (auto& [number, name] : named) names.push_back(std::move(name));
  if (names.empty() && said <= 1 << 20)
    for (uint64_t i = 0; i < said; ++i) names.push_back(absl::StrCat("LABEL_", i));
  return names;
}

std::optional<nn::ProblemType> problem_named(const std::string& name) {
  for (const auto problem : {nn::ProblemType::kRegression, nn::ProblemType::kSingleLabel, nn::ProblemType::kMultiLabel})
    if (name == nn::name_of(problem)) return problem;
  if (!name.empty()) throw Error("--problem_type is " + name + "; --help lists the three that there are");
  return std::nullopt;
}

class Classifier : optim::Callback {
 public:
  Classifier(const ClassifyOptions& o, const Job& job)
      : o_(o), job_(job), tokenizer_(text::AutoTokenizer::from_pretrained(o.model_name_or_path)) {}

  // Trains the model. Returns false if the user cancelled.
  bool train() {
    problem_ = problem();
    const auto train = read_training();
    say_cut(*train, o_.train_file);
    const bool numbers = problem_ == nn::ProblemType::kRegression;
    load(train->label_names(), numbers ? std::optional(train->label_width()) : std::nullopt);
    job_.say(formatted("%d texts of %d %s, the longest has %d tokens", train->size(),
                       numbers ? train->label_width() : std::ssize(train->label_names()),
                       numbers ? "numbers" : "classes", train->report().longest));
    data::ExampleBatches batches(
        train,
        in_buckets(o_.compiler, {.batch_size = o_.per_device_train_batch_size, .seed = seed(), .pad_id = pad_id_}));
    if (!o_.validation_file.empty()) {
      const auto validation = read(o_.validation_file, train->label_names());
      say_cut(*validation, o_.validation_file);
      validation_.emplace(
          validation,
          in_buckets(o_.compiler, {.batch_size = o_.per_device_eval_batch_size, .shuffle = false, .pad_id = pad_id_}));
    }
    optim::AdamW optimizer(optim::decay_groups(
        (*model_)->parameters(), optim::AdamWOptions{.lr = o_.learning_rate, .weight_decay = o_.weight_decay}));
    compiler_->compile(optimizer);
    const auto loss = [this](const data::Batch& b) {
      compiler_->mark(b);
      return model_->loss(b[0], b[1], segments(b[2]), b[3]);
    };
    const std::string warmed_up = compiler_->warm_up(*job_.group, batches, o_.device, batches.sizes(),
                                                     [&](const data::Batch& b) {
                                                       const amp::Autocast autocast(lower());
                                                       loss(b).backward();
                                                     });
    job_.say(warmed_up);
    std::optional<dist::DistributedDataParallel> ddp;
    if (job_.several()) {
      ddp.emplace(**model_, job_.group);
      replicas_.emplace(*ddp, dist::TrainerReplicasOptions{.check_parameters = o_.check_ranks});
      job_.say(absl::StrCat(job_.group->world_size(), " processes share the batches"));
    }
    optim::TrainerOptions options = trainer_options_of(o_);
    options.num_train_epochs = o_.num_train_epochs;
    options.autocast = lower();
    options.load_best_model_at_end = o_.load_best_model_at_end;
    options.replicas = replicas_ ? &*replicas_ : nullptr;
    const int64_t steps = optim::planned_steps(options, batches.size());
    const auto warmup = static_cast<int64_t>(std::ceil(o_.warmup_ratio * static_cast<double>(steps)));
    options.lr_schedules = {
        optim::LinearWithWarmup{.lr = o_.learning_rate, .warmup_steps = warmup, .total_steps = steps}};
    std::optional<optim::Trainer> trainer;
    if (validation_) trainer.emplace(**model_, optimizer, loss, batches, *validation_, options);
    else trainer.emplace(**model_, optimizer, loss, batches, options);
    OwnsFolder owner(job_, o_.output_dir);
    optim::MetricsLog metrics(o_.output_dir + "/metrics.jsonl");
    ExplainsFirstStep explains(*compiler_, job_, o_.output_dir);
    trainer->add_callback(*this);  // on all ranks, because they measure together
    trainer->add_callback(explains);
    if (job_.lead()) {
      trainer->add_callback(owner);
      trainer->add_callback(metrics);
    }
    resume(*trainer, o_, job_);
    if (!examples::train(*trainer, job_)) return false;
    if (o_.load_best_model_at_end && validation_)
      job_.say(formatted("%s of the best epoch %.4f", measure(), measured()));
    replicas_.reset();
    if (!job_.lead()) return true;
    job_.say(compiler_->finish(*job_.group));
    model_->save_pretrained(o_.output_dir);
    text::AutoTokenizer::copy_files(o_.model_name_or_path, o_.output_dir);
    std::printf("The model is in %s\n", o_.output_dir.c_str());
    return true;
  }

  void predict() {
    if (!model_) load({});
    const auto file = io::MappedFile::open(o_.test_file);
    std::vector<std::string_view> lines;
    for (const absl::string_view line :
         absl::StrSplit(absl::string_view(file->text().data(), file->text().size()), '\n'))
      if (!line.empty()) lines.emplace_back(line.data(), line.size());
    (*model_)->eval();
    const NoGrad off;
    for (size_t at = 0; at < lines.size(); at += batch_rows()) {
      const auto batch = std::span(lines).subspan(at, std::min(batch_rows(), lines.size() - at));
      const Tensor logits = logits_of(batch);
      const Tensor shown = problem_ == nn::ProblemType::kRegression   ? logits
                           : problem_ == nn::ProblemType::kMultiLabel ? ops::sigmoid(logits)
                                                                      : ops::softmax(logits, -1);
      const std::vector<float> p = shown.to_vector<float>();
      const size_t n = p.size() / batch.size();
      for (size_t row = 0; row < batch.size(); ++row)
        std::printf("%s\t%.*s\n", prediction(std::span(p).subspan(row * n, n)).c_str(),
                    static_cast<int>(batch[row].size()), batch[row].data());
    }
  }

 private:
  uint64_t seed() const { return static_cast<uint64_t>(o_.seed); }
  size_t batch_rows() const { return static_cast<size_t>(o_.per_device_eval_batch_size); }
  std::optional<DType> lower() const { return o_.bf16 ? std::optional(kBF16) : std::nullopt; }

  std::string name_of_class(size_t number) const {
    const std::vector<std::string>& names = model_->label_names();
    return number < names.size() ? names[number] : std::to_string(number);
  }
  // Returns the columns for a text. One class: the most likely one and its probability. Several labels: those with a
  // probability of at least 1/2, and the probabilities of all. Regression: the numbers.
  std::string prediction(std::span<const float> values) const {
    std::vector<std::string> chosen, all;
    for (size_t i = 0; i < values.size(); ++i) {
      all.push_back(formatted("%.4f", values[i]));
      if (problem_ == nn::ProblemType::kMultiLabel && values[i] >= 0.5f) chosen.push_back(name_of_class(i));
    }
    if (problem_ == nn::ProblemType::kRegression) return absl::StrJoin(all, ",");
    if (problem_ == nn::ProblemType::kMultiLabel)
      return absl::StrCat(absl::StrJoin(chosen, ","), "\t", absl::StrJoin(all, ","));
    const auto best = static_cast<size_t>(std::max_element(values.begin(), values.end()) - values.begin());
    return absl::StrCat(name_of_class(best), "\t", all[best]);
  }

  // Returns the problem type: the user's choice, or else that of the model's config.json, or else one class for each
  // text. As in transformers, a config.json with one label means regression.
  nn::ProblemType problem() const {
    const auto said = problem_named(!o_.problem_type.empty() ? o_.problem_type
                                                             : config_word(o_.model_name_or_path, "problem_type"));
    if (said || config_labels(o_.model_name_or_path).size() != 1) return said.value_or(nn::ProblemType::kSingleLabel);
    job_.say(
        "config.json has one label and no problem_type: this is a regression. For classes give "
        "--problem_type=single_label_classification");
    return nn::ProblemType::kRegression;
  }

  std::shared_ptr<const data::ExampleSet> read(const std::string& path, const std::vector<std::string>& names) const {
    return std::make_shared<const data::ExampleSet>(data::read_labelled(
        path, tokenizer_, {.max_length = o_.max_seq_length, .label_kind = kind_of_labels(), .label_names = names}));
  }
  // Reads the training file. If the model's config.json names all classes of the file, the classes keep their numbers
  // in config.json, because the model's head depends on these numbers.
  std::shared_ptr<const data::ExampleSet> read_training() const {
    auto set = read(o_.train_file, {});
    if (problem_ == nn::ProblemType::kRegression) return set;
    const std::vector<std::string> names = config_labels(o_.model_name_or_path), &given = set->label_names();
    const auto is_named = [&](const std::string& name) { return absl::c_linear_search(names, name); };
    return given != names && absl::c_all_of(given, is_named) ? read(o_.train_file, names) : set;
  }
  void say_cut(const data::ExampleSet& set, const std::string& path) const {
    if (set.report().truncated > 0)
      job_.say(formatted("%s: %d of %d texts were cut to --max_seq_length=%d", path, set.report().truncated, set.size(),
                         o_.max_seq_length));
  }

  data::LabelKind kind_of_labels() const {
    return problem_ == nn::ProblemType::kRegression   ? data::LabelKind::kNumbers
           : problem_ == nn::ProblemType::kMultiLabel ? data::LabelKind::kClasses
                                                      : data::LabelKind::kClass;
  }

  // Loads the model. It gets a new head if its file has none for these classes or numbers. Without classes and numbers,
  // it keeps the file's head.
  void load(const std::vector<std::string>& label_names, std::optional<int64_t> numbers = std::nullopt) {
    const bool trains = !label_names.empty() || numbers;
    // Ignored weights: the heads of pretraining, and RoBERTa's pooler, which its classifier does not use.
    const std::string family = config_word(o_.model_name_or_path, "model_type");
    nn::PretrainedOptions options{.allow_unknown_fields = o_.allow_unknown_fields,
                                  .num_labels = numbers,
                                  .label_names = label_names,
                                  .problem_type = trains ? std::optional(problem_) : std::nullopt,
                                  .seed = seed(),
                                  .ignore = {"cls.", "lm_head.", "vocab_"}};
    if (family == "roberta") options.ignore.insert(options.ignore.end(), {"pooler.", "roberta.pooler."});
    if (trains) options.fresh = {"classifier.", "bert.pooler.", "pre_classifier.", "score."};
    // A decoder's classifier needs the padding token, to find a row's last token. config.json of a language model
    // seldom names one, so the tokenizer's is taken.
    const bool encoder = absl::c_linear_search(std::array{"bert", "roberta", "distilbert"}, family);
    if (!encoder && !config_has_token(o_.model_name_or_path, "pad_token_id") && tokenizer_.pad_token_id() >= 0)
      options.pad_token_id = tokenizer_.pad_token_id();
    model_.emplace(nn::AutoModelForSequenceClassification::from_pretrained(o_.model_name_or_path, options));
    const nn::TextClassifierFacts facts = model_->facts();
    problem_ = nn::problem_of(facts.problem_type, facts.num_classes, kI64);
    if (tokenizer_.vocab_size() > facts.vocab_size)
      throw Error(absl::StrCat("the tokenizer in ", o_.model_name_or_path, " is not this model's: it has ",
                               tokenizer_.vocab_size(), " tokens, and the model ", facts.vocab_size));
    if (o_.max_seq_length > facts.max_length)
      throw Error(absl::StrCat("--max_seq_length is ", o_.max_seq_length, ", but the model has ", facts.max_length,
                               " positions"));
    pad_id_ = static_cast<int32_t>(facts.padding_idx.value_or(0));  // RoBERTa's positions depend on it
    takes_segments_ = facts.takes_segments;
    (*model_)->to(o_.device);
    compiler_.emplace(o_.compiler, **model_,
                      Varying{.dims = {1}, .max = o_.max_seq_length, .tensors = 3, .is_padded = true});
    if (!o_.train_file.empty()) job_.say(compiler_->loaded());
  }

  Tensor segments(const Tensor& given) const { return takes_segments_ ? given : Tensor(); }

  const char* measure() const { return problem_ == nn::ProblemType::kRegression ? "mean squared error" : "accuracy"; }
  // Measures the model on the validation texts. Returns the share of texts that are right (with several labels: of
  // labels), or the mean squared error. All ranks call this: each measures a part.
  double measured() {
    const NoGrad off;
    const amp::Autocast autocast(lower());
    (*model_)->eval();
    double sum = 0, of = 0;
    data::BatchShare mine(*validation_, job_.group->rank(), job_.group->world_size());
    mine.seek({});
    data::DeviceBatches batches(mine, o_.device);
    for (;;) {
      const bool counts = mine.owns(batches.position());
      const auto batch = batches.next();
      if (!batch) break;
      if (!counts) continue;
      const Tensor logits = (*model_)((*batch)[0], (*batch)[1], segments((*batch)[2])), &labels = (*batch)[3];
      Tensor each;
      if (problem_ == nn::ProblemType::kRegression) each = ops::square(logits.to(kF32) - labels);
      else if (problem_ == nn::ProblemType::kMultiLabel)
        each = ops::equal(ops::greater(logits, 0.0).to(kF32), labels).to(kF32);
      else each = ops::equal(ops::argmax(logits, -1), labels).to(kF32);
      batches.read_ahead();
      sum += ops::sum(each).item();
      of += static_cast<double>(each.numel());
    }
    (*model_)->train();
    if (!replicas_) return sum / of;
    const std::vector<double> all = replicas_->sum({sum, of}, measure());
    return all[0] / all[1];
  }

  Tensor logits_of(std::span<const std::string_view> texts) {
    const std::vector<text::Encoding> rows = tokenizer_.encode_batch(
        texts, {.truncation = {{.max_length = o_.max_seq_length}}, .padding = {{.pad_id = pad_id_}}});
    const auto B = static_cast<int64_t>(rows.size()), T = static_cast<int64_t>(rows[0].size());
    std::vector<int64_t> ids, types, mask;
    for (const text::Encoding& row : rows) {
      ids.insert(ids.end(), row.ids.begin(), row.ids.end());
      types.insert(types.end(), row.type_ids.begin(), row.type_ids.end());
      mask.insert(mask.end(), row.attention_mask.begin(), row.attention_mask.end());
    }
    const amp::Autocast autocast(lower());
    const auto rows_of = [&](const std::vector<int64_t>& values) { return Tensor::from(values, {B, T}, o_.device); };
    return (*model_)(rows_of(ids), rows_of(mask).to(kBool), segments(rows_of(types))).to(kF32);
  }

  void on_log(const optim::Progress& now) override {
    job_.say(
        formatted("step %d/%d  epoch %.2f  loss %.4f  lr %.2e", now.step, now.max_steps, now.epoch, now.loss, now.lr));
  }
  void on_evaluate(const optim::Progress& now) override {
    job_.say(formatted("epoch %.2f  validation loss %.4f  %s %.4f", now.epoch, *now.eval_loss, measure(), measured()));
  }

  const ClassifyOptions& o_;
  const Job& job_;
  std::optional<dist::TrainerReplicas> replicas_;  // while several processes train
  const text::PreTrainedTokenizer tokenizer_;
  std::optional<nn::AutoModelForSequenceClassification> model_;
  std::optional<Compiler> compiler_;
  std::optional<data::ExampleBatches> validation_;
  int32_t pad_id_ = 0;
  bool takes_segments_ = true;
  nn::ProblemType problem_ = nn::ProblemType::kSingleLabel;
};

}  // namespace
}  // namespace rondo::examples

int main(int argc, char** argv) {
  using namespace rondo::examples;
  return run_program("classify", [&] {
    ClassifyOptions options;
    Flags flags = flags_of(options);
    flags.parse({argv + 1, argv + argc});
    if (flags.help_wanted()) {
      std::printf("%s", flags.usage().c_str());
      return 0;
    }
    if (options.model_name_or_path.empty() || (options.train_file.empty() && !options.do_predict))
      throw rondo::Error(
          "--model_name_or_path, and --train_file or --do_predict are needed; --help says what they are");
    if (options.do_predict && options.test_file.empty()) throw rondo::Error("--do_predict needs --test_file");
    if (options.per_device_eval_batch_size < 1) throw rondo::Error("--per_device_eval_batch_size must be positive");
    check(options);
    const std::string note = complete(options.compiler, options.device);
    return rondo::dist::record_errors([&] {
      const Job job(job_options(options));
      if (!options.train_file.empty()) job.say(note);
      Classifier classifier(options, job);
      if (!options.train_file.empty() && !classifier.train()) return 130;
      if (options.do_predict && job.lead()) classifier.predict();
      return 0;
    });
  });
}
