// Checkpoints of Trainer: resuming bit for bit, kill -9, their number, what they hold, and which are refused.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/compile/log.h"
#include "rondo/modules/layers/layers.h"
#include "rondo/optim/sgd.h"
#include "rondo/optim/trainer/run_lock.h"
#include "rondo/runtime/checkpoint/checkpoint.h"
#include "rondo/runtime/data/function_batches.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/optim/trainer_fixture.h"

namespace rondo::optim {
namespace {

using namespace rondo::optim::test;

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct ResumeCase {
  Variant variant;
  std::optional<DType> autocast = std::nullopt;
};

const ResumeCase kCases[] = {
    {{.name = "plain"}},
    {{.name = "dropout", .dropout = 0.2}},
    {{.name = "workers", .dropout = 0.2, .workers = 2}},
    {{.name = "bf16", .dropout = 0.2}, kBF16},
    {{.name = "f16", .dropout = 0.2}, kF16},
    {{.name = "compiled", .dropout = 0.2, .compiled = true}},
    {{.name = "compiled_bf16", .dropout = 0.2, .compiled = true}, kBF16},
    {{.name = "average", .average = true}},
    {{.name = "bf16_weights", .dropout = 0.2, .average = true, .weights = kBF16}},
    {{.name = "compiled_f16_weights", .compiled = true, .weights = kF16}},
    {{.name = "frozen", .dropout = 0.2, .only_norm = true}},
    {{.name = "lora", .dropout = 0.2, .lora = true}},
    {{.name = "lora_compiled_bf16", .dropout = 0.2, .compiled = true, .lora = true}, kBF16},
};

class TrainerResume : public ::testing::TestWithParam<ResumeCase> {
 protected:
  void SetUp() override {
    if (GetParam().variant.compiled && !compile::jit_available()) GTEST_SKIP() << "this build has no code generator";
  }
  // 8 batches an epoch, 3 for a step: a step of 2 batches ends each epoch.
  TrainerOptions options(const std::string& folder) const {
    return {.max_steps = 10,
            .gradient_accumulation_steps = 3,
            .max_grad_norm = 0.5,
            .autocast = GetParam().autocast,
            .lr_schedules = {[](int64_t step) { return 1e-2 / (1.0 + static_cast<double>(step)); }},
            .eval_steps = 4,
            .output_dir = folder,
            .save_steps = 1};
  }
};

TEST_P(TrainerResume, BitForBitFromEveryStep) {
  const TempFolder nowhere;
  SmallRun undisturbed(GetParam().variant, options(""));
  undisturbed.trainer->train();
  ASSERT_EQ(undisturbed.notes.losses.size(), 10u);
  const TempFolder folder;
  // Each run makes one step, dies in the next one, and the next run goes on from its checkpoint.
  for (int64_t step = 0; step < 10; ++step) {
    SmallRun run(GetParam().variant, options(folder.path()));
    const std::optional<Trainer::Resumed> resumed = run.trainer->resume_from_checkpoint();
    ASSERT_EQ(resumed.has_value(), step > 0);
    if (resumed) {
      EXPECT_EQ(resumed->step, step);
    }
    int64_t micro_steps = 0;
    run.notes.each_micro_step = [&](const Progress& now) {
      if (now.step > step && ++micro_steps == 2) throw Error("killed");
    };
    try {
      run.trainer->train();
    } catch (const Error& error) {
      ASSERT_STREQ(error.what(), "killed");
    }
    expect_part_of(run.notes, undisturbed.notes);
    EXPECT_TRUE(run.notes.losses.contains(step + 1));
    if (step == 9) expect_same_parameters(run, undisturbed);
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, TrainerResume, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.variant.name); });

// A child trains and is killed, at a random moment or in a random micro-step. The next one resumes.
TEST(TrainerKill, LosesAtMostTheStepsSinceTheLastCheckpoint) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "forks beside threads";
#endif
  constexpr int64_t kSteps = 40, kEvery = 3;
  const Variant variant{.dropout = 0.2};
  TrainerOptions options{.max_steps = kSteps, .gradient_accumulation_steps = 2, .eval_steps = 5, .save_steps = kEvery};
  const TempFolder folder;
  options.output_dir = folder.path();
  struct Report {
    int64_t step;
    double loss;
    bool saved;
  };
  std::mt19937 random(3);
  std::map<int64_t, double> losses;
  int64_t newest = 0;  // checkpoint that a child reported
  int kills = 0;
  for (bool finished = false; !finished;) {
    int reports[2];
    ASSERT_EQ(pipe(reports), 0);
    const int64_t at = kills % 2 == 0 ? 1 + static_cast<int64_t>(random() % 14) : -1;  // micro-step; -1: any moment
    const auto delay = std::chrono::microseconds(random() % 30'000);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(reports[0]);
      const auto tell = [&](Report report) {
        if (write(reports[1], &report, sizeof report) != sizeof report) _exit(2);
      };
      try {
        SmallRun run(variant, options);
        run.notes.each_micro_step = [&](const Progress&) {
          if (run.notes.micro_steps == at) raise(SIGKILL);
        };
        run.notes.each_step = [&](const Progress& now) { tell({now.step, now.loss, false}); };
        struct Saves : Callback {
          explicit Saves(std::function<void(Report)> tell) : say(std::move(tell)) {}
          void on_save(const Progress& now, const std::string&) override { say({now.step, 0, true}); }
          std::function<void(Report)> say;
        } saves(tell);
        run.trainer->add_callback(saves);
        run.trainer->resume_from_checkpoint();
        if (run.trainer->progress().step < newest) _exit(3);
        run.trainer->train();
      } catch (...) {
        _exit(4);
      }
      _exit(0);
    }
    close(reports[1]);
    if (at < 0) {
      std::this_thread::sleep_for(delay);
      kill(child, SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    int64_t first = 0, last = 0;
    Report report{};
    while (read(reports[0], &report, sizeof report) == sizeof report) {
      if (report.saved) {
        newest = report.step;
        continue;
      }
      if (first == 0) first = report.step;
      last = report.step;
      const auto [known, is_new] = losses.try_emplace(report.step, report.loss);
      EXPECT_EQ(known->second, report.loss) << "step " << report.step << " came out otherwise after a kill";
    }
    close(reports[0]);
    // The checkpoint that a child reported exists. The child may have died between the rename and its report.
    const auto found = io::load_latest_checkpoint(folder.path()).checkpoint;
    const int64_t on_disk = found ? found->step : 0;
    EXPECT_GE(on_disk, newest);
    newest = on_disk;
    EXPECT_LE(last - on_disk, kEvery);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      finished = true;
    } else {
      ASSERT_EQ(WTERMSIG(status), SIGKILL);
      ASSERT_LT(++kills, 2000);
    }
  }
  EXPECT_GE(kills, 5);
  SmallRun undisturbed(variant, {.max_steps = kSteps, .gradient_accumulation_steps = 2, .eval_steps = 5});
  undisturbed.trainer->train();
  EXPECT_EQ(losses, undisturbed.notes.losses);
}

TEST(TrainerCheckpoints, CancelLeavesOneThatResumesInTheSameEpoch) {
  const TempFolder folder;
  const Variant variant{.dropout = 0.1};
  const TrainerOptions options{.max_steps = 8, .gradient_accumulation_steps = 3, .output_dir = folder.path()};
  SmallRun cancelled(variant, options);
  cancelled.notes.each_micro_step = [&](const Progress& now) {
    if (now.step == 4) cancelled.trainer->cancel();  // in the first of the three micro-steps of step 5
  };
  EXPECT_EQ(cancelled.trainer->train().reason, StopReason::kCancelled);
  EXPECT_EQ(cancelled.notes.saved, std::vector<int64_t>{4});
  EXPECT_EQ(cancelled.notes.micro_steps, 3 + 3 + 2 + 3 + 1);
  TrainerOptions spelled = options;
  spelled.output_dir = folder.path() + "/../" + std::filesystem::path(folder.path()).filename().string() + "/";
  SmallRun resumed(variant, spelled), undisturbed(variant, {.max_steps = 8, .gradient_accumulation_steps = 3});
  EXPECT_EQ(resumed.trainer->resume_from_checkpoint(folder.path())->step, 4);
  EXPECT_NEAR(resumed.trainer->progress().epoch, 1 + 3.0 / 8, 1e-12);
  resumed.trainer->train();
  undisturbed.trainer->train();
  expect_part_of(resumed.notes, undisturbed.notes);
  expect_same_parameters(resumed, undisturbed);
}

TEST(TrainerCheckpoints, OnlySoManyStay) {
  const TempFolder folder;
  SmallRun run({}, {.max_steps = 11, .output_dir = folder.path(), .save_steps = 2, .save_total_limit = 3});
  run.trainer->train();
  EXPECT_EQ(run.notes.saved, (std::vector<int64_t>{2, 4, 6, 8, 10, 11}));
  const std::vector<std::string> paths = io::list_checkpoints(folder.path());
  ASSERT_EQ(paths.size(), 3u);
  EXPECT_TRUE(paths[0].ends_with("ckpt-00000011.safetensors"));
  EXPECT_TRUE(paths[2].ends_with("ckpt-00000008.safetensors"));
}

TEST(TrainerCheckpoints, MoreStepsAfterTheLast) {
  const TempFolder folder;
  SmallRun first({}, {.max_steps = 4, .output_dir = folder.path()});
  first.trainer->train();
  SmallRun again({}, {.max_steps = 4, .output_dir = folder.path()});
  again.trainer->resume_from_checkpoint();
  EXPECT_EQ(again.trainer->train().reason, StopReason::kFinished);
  EXPECT_EQ(again.notes.micro_steps, 0);
  SmallRun more({}, {.max_steps = 7, .output_dir = folder.path()}), undisturbed({}, {.max_steps = 7});
  more.trainer->resume_from_checkpoint();
  more.trainer->train();
  undisturbed.trainer->train();
  expect_same_parameters(more, undisturbed);
}

// A folder with the checkpoints of another run: neither mixed with the new ones nor deleted unasked.
// Settings that a resumed run takes from its own options: others are said, equal ones are not.
TEST(TrainerCheckpoints, OtherSettingsAreSaid) {
  const TempFolder folder;
  SmallRun({}, {.max_steps = 1, .output_dir = folder.path(), .seed = 5}).trainer->train();
  std::string heard;
  const compile::log::Sink before = compile::log::set_log_sink([&](std::string_view text) { heard += text; });
  SmallRun({}, {.max_steps = 2, .seed = 5}).trainer->resume_from_checkpoint(folder.path());
  EXPECT_EQ(heard, "");
  SmallRun other({}, {.max_steps = 2, .max_grad_norm = 2, .autocast = kBF16, .seed = 6});
  other.trainer->resume_from_checkpoint(folder.path());
  compile::log::set_log_sink(before);
  for (const char* text : {"seed = 5 and is resumed with 6", "max_grad_norm = 1 and is resumed with 2",
                           "autocast = off and is resumed with bf16"})
    EXPECT_NE(heard.find(text), std::string::npos) << heard;
}

TEST(TrainerCheckpoints, ANewRunDoesNotMixWithAnOldOne) {
  const TempFolder folder;
  { SmallRun({}, {.max_steps = 6, .output_dir = folder.path(), .save_steps = 3}).trainer->train(); }
  SmallRun anew({}, {.max_steps = 2, .output_dir = folder.path()});
  EXPECT_NE(error_of([&] { anew.trainer->train(); }).find("overwrite_output_dir"), std::string::npos);
  EXPECT_EQ(anew.notes.micro_steps, 0);
  EXPECT_EQ(io::list_checkpoints(folder.path()).size(), 2u);
  // From an older file on, the later ones are another run's, too.
  const std::string older = io::list_checkpoints(folder.path())[1];
  SmallRun back({}, {.max_steps = 5, .output_dir = folder.path()});
  back.trainer->resume_from_file(older);
  EXPECT_NE(error_of([&] { back.trainer->train(); }).find("later checkpoints of another run"), std::string::npos);
  SmallRun over({}, {.max_steps = 5, .output_dir = folder.path(), .overwrite_output_dir = true});
  over.trainer->resume_from_file(folder.path() + "/./" + std::filesystem::path(older).filename().string());
  over.trainer->train();
  EXPECT_EQ(io::list_checkpoints(folder.path()),
            (std::vector<std::string>{folder / "ckpt-00000005.safetensors", older}));
  SmallRun replaced({}, {.max_steps = 1, .output_dir = folder.path(), .overwrite_output_dir = true});
  replaced.trainer->train();
  EXPECT_EQ(io::list_checkpoints(folder.path()), std::vector<std::string>{folder / "ckpt-00000001.safetensors"});
}

TEST(TrainerCheckpoints, TwoRunsDoNotShareAFolder) {
  const TempFolder folder;
  SmallRun run({}, {.max_steps = 1, .output_dir = folder.path()});
  const RunLock other(folder.path());
  EXPECT_NE(error_of([&] { run.trainer->train(); }).find("another run writes to"), std::string::npos);
}

TEST(TrainerCheckpoints, ADamagedOneIsPassedOver) {
  const TempFolder folder;
  const TrainerOptions options{.max_steps = 4, .output_dir = folder.path(), .save_steps = 2};
  { SmallRun({}, options).trainer->train(); }
  const std::string newest = folder / "ckpt-00000004.safetensors", older = folder / "ckpt-00000002.safetensors";
  std::filesystem::resize_file(newest, std::filesystem::file_size(newest) - 3);
  SmallRun run({}, options), undisturbed({}, {.max_steps = 4});
  const auto resumed = run.trainer->resume_from_checkpoint();
  EXPECT_EQ(resumed->step, 2);
  ASSERT_EQ(resumed->skipped.size(), 1u);
  EXPECT_EQ(resumed->skipped[0].path, newest);
  run.trainer->train();
  undisturbed.trainer->train();
  expect_same_parameters(run, undisturbed);
  // No whole one is left: that is no new run.
  for (const std::string& path : {newest, older}) std::filesystem::resize_file(path, 100);
  SmallRun lost({}, options);
  EXPECT_NE(error_of<FileError>([&] { lost.trainer->resume_from_checkpoint(); }).find(newest), std::string::npos);
}

// ---- A full disk

class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(TrainerFullDisk, OlderCheckpointsStayAndTrainingGoesOn) {
  SmallRun undisturbed({}, {.max_steps = 8});
  undisturbed.trainer->train();
  for (const bool go_on : {false, true}) {
    const TempFolder folder;
    SmallRun run({}, {.max_steps = 8, .output_dir = folder.path(), .save_steps = 2});
    std::optional<FullDisk> full;
    run.notes.each_step = [&](const Progress& now) {
      if (now.step == 3) full.emplace(2000);
      if (now.step == 7) full.reset();
    };
    struct Errors : Callback {
      bool on_save_error(const Progress& now, const FileError& error) override {
        steps.push_back(now.step);
        path = error.path();
        return go_on;
      }
      bool go_on = false;
      std::vector<int64_t> steps;
      std::string path;
    } errors;
    errors.go_on = go_on;
    run.trainer->add_callback(errors);
    const std::string whole = folder / "ckpt-00000002.safetensors";
    std::string before;
    run.notes.each_micro_step = [&](const Progress& now) {
      if (now.step == 2) before = contents(whole);
    };
    if (!go_on) {
      EXPECT_NE(error_of<FileError>([&] { run.trainer->train(); }).find("ckpt-00000004"), std::string::npos);
      EXPECT_EQ(run.trainer->progress().step, 4);
      EXPECT_EQ(contents(whole), before);
      EXPECT_EQ(io::list_checkpoints(folder.path()).size(), 1u);
      // No room yet: the same error, and no step is made. With room it goes on.
      EXPECT_THROW(run.trainer->train(), FileError);
      EXPECT_EQ(run.trainer->progress().step, 4);
      full.reset();
    }
    EXPECT_EQ(run.trainer->train().reason, StopReason::kFinished);
    EXPECT_EQ(errors.steps, (go_on ? std::vector<int64_t>{4, 6} : std::vector<int64_t>{4, 4}));
    EXPECT_EQ(run.notes.saved, (go_on ? std::vector<int64_t>{2, 8} : std::vector<int64_t>{2, 4, 6, 8}));
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-"));
    expect_same_parameters(run, undisturbed);
  }
}

TEST(TrainerFullDisk, ParametersThatAreNotFiniteAreNotSaved) {
  const TempFolder folder;
  SmallRun run({}, {.max_steps = 4, .output_dir = folder.path(), .save_steps = 2});
  run.notes.each_step = [&](const Progress& now) {
    if (now.step == 3) run.model.ln_f.weight.detach().fill_(std::nan(""));
  };
  EXPECT_THROW(run.trainer->train(), io::NonFiniteError);
  EXPECT_EQ(io::list_checkpoints(folder.path()).size(), 1u);
}

// ---- Adapters

TEST(TrainerAdapters, ACheckpointHoldsOnlyWhatIsTrained) {
  const TempFolder folder;
  SmallRun run({.lora = true}, {.max_steps = 3, .load_best_model_at_end = true, .output_dir = folder.path()});
  run.trainer->train();
  const io::Checkpoint checkpoint = io::load_checkpoint(folder / "ckpt-00000003.safetensors");
  EXPECT_EQ(checkpoint.model.size(), 4u);  // A and B of two layers
  for (const auto& [name, tensor] : checkpoint.model) EXPECT_NE(name.find(".lora.default."), std::string::npos) << name;
  int64_t trained = 0;
  for (const Tensor& p : run.model.parameters()) trained += p.requires_grad() ? p.numel() : 0;
  int64_t saved = 0;
  for (const auto& [name, tensor] : checkpoint.model) saved += tensor.numel();
  EXPECT_EQ(saved, trained);
  SmallRun whole({}, {.max_steps = 1, .output_dir = folder / "whole"});
  whole.trainer->train();
  EXPECT_GT(io::load_checkpoint(folder / "whole/ckpt-00000001.safetensors").model.size(), 20u);
}

// A refused checkpoint changes nothing.
template <class E> std::string refused(SmallRun& run, const std::string& folder) {
  nn::StateDict before = run.model.state_dict(), optimizer = run.optimizer->state_dict();
  for (nn::StateDict* state : {&before, &optimizer})
    for (auto& [name, tensor] : *state) tensor = tensor.clone();
  const std::string message = error_of<E>([&] { run.trainer->resume_from_checkpoint(folder); });
  for (const auto& [name, tensor] : run.model.state_dict()) EXPECT_TRUE(same_bits(tensor, before.at(name))) << name;
  const nn::StateDict after = run.optimizer->state_dict();
  EXPECT_EQ(after.size(), optimizer.size());
  for (const auto& [name, tensor] : after) EXPECT_TRUE(same_bits(tensor, optimizer.at(name))) << name;
  EXPECT_EQ(run.trainer->progress().step, 0);
  EXPECT_EQ(run.train_data->position(), data::BatchSource::Position{});
  return message;
}
void expect_has(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "'" << message << "' lacks '" << part << "'";
}

TEST(TrainerRefuses, AnotherBaseAdapterModelOptimizerOrData) {
  const TempFolder folder;
  const std::string adapter = folder / "adapter", whole = folder / "whole";
  { SmallRun({.lora = true}, {.max_steps = 3, .output_dir = adapter}).trainer->train(); }
  { SmallRun({}, {.max_steps = 3, .output_dir = whole}).trainer->train(); }
  const auto run = [](Variant variant, TrainerOptions options = {}) {
    return std::make_unique<SmallRun>(variant, options);
  };

  expect_has(refused<ResumeError>(*run({.lora = true, .model_seed = 4}), adapter), "another base");
  expect_has(refused<ResumeError>(*run({.lora = true, .lora_rank = 3}), adapter), "rank 2");
  expect_has(refused<ResumeError>(*run({.lora = true, .lora_alpha = 5}), adapter), "alpha 4");
  expect_has(refused<ResumeError>(*run({}), adapter), "only what was trained");
  const std::string norm = folder / "norm";
  { SmallRun({.only_norm = true}, {.max_steps = 3, .output_dir = norm}).trainer->train(); }
  expect_has(refused<ResumeError>(*run({.only_norm = true, .model_seed = 4}), norm), "another base");
  EXPECT_EQ(io::load_latest_checkpoint(norm).checkpoint->model.size(), 2u);
  expect_has(refused<ResumeError>(*run({.lora = true}), whole), "a whole model");
  expect_has(refused<ResumeError>(*run({.rows = 30}), whole), "8 batches an epoch, now there are 10");
  expect_has(refused<ResumeError>(*run({.rows = 24}), whole), "its batches differ");
  // Another seed of the parameters is no other model: they are in the checkpoint.
  EXPECT_TRUE(run({.model_seed = 4})->trainer->resume_from_checkpoint(whole));

  SmallRun other({}, {});
  const auto with_model = [&](nn::ModuleBase& model, Optimizer& optimizer) {
    Trainer trainer(model, optimizer, [](const data::Batch& b) { return b[0]; }, *other.train_data,
                    {.count_targets = unmasked_targets});
    return error_of<nn::StateDictError>([&] { trainer.resume_from_checkpoint(whole); });
  };
  nn::GPT2 wider({.vocab_size = kVocab, .block_size = kLength, .n_layer = 2, .n_head = 2, .n_embd = 20});
  AdamW of_wider(wider.parameters(), {});
  expect_has(with_model(wider, of_wider), "c_attn.bias: f32[60] wanted, f32[48] given");
  nn::GPT2 deeper({.vocab_size = kVocab, .block_size = kLength, .n_layer = 3, .n_head = 2, .n_embd = 16});
  AdamW of_deeper(deeper.parameters(), {});
  expect_has(with_model(deeper, of_deeper), "h.2.");
  const std::vector<float> before = other.model.wte.weight.detach().to_vector<float>();
  SGD sgd(other.model.parameters(), {.lr = 0.1});
  EXPECT_NE(with_model(other.model, sgd), "");
  AdamW fewer({other.model.wte.weight}, {});
  EXPECT_NE(with_model(other.model, fewer), "");
  EXPECT_EQ(other.model.wte.weight.detach().to_vector<float>(), before);

  // Other data, on purpose: from its beginning.
  const auto elsewhere = run({.rows = 30}, {.max_steps = 5, .ignore_data_skip = true});
  EXPECT_EQ(elsewhere->trainer->resume_from_checkpoint(whole)->step, 3);
  EXPECT_EQ(elsewhere->train_data->position(), data::BatchSource::Position{});
  EXPECT_EQ(elsewhere->trainer->train().last.step, 5);
}

TEST(TrainerRefuses, FilesOfOthers) {
  const TempFolder folder;
  SmallRun run({}, {});
  io::Checkpoint other{.step = 3, .model = run.model.state_dict()};
  io::save_checkpoint(folder.path(), other);
  expect_has(refused<ResumeError>(run, folder.path()), "a Trainer did not write it");
  other.state["trainer"] = int64_t{2};
  io::save_checkpoint(folder.path(), other);
  expect_has(refused<ResumeError>(run, folder.path()), "format 2");
  other.state["trainer"] = int64_t{1};
  io::save_checkpoint(folder.path(), other);
  expect_has(refused<Error>(run, folder.path()), "is missing");
  std::ofstream(folder / "text.safetensors") << "no checkpoint";
  EXPECT_THROW(run.trainer->resume_from_file(folder / "text.safetensors"), FileError);
  EXPECT_THROW(run.trainer->resume_from_file(folder / "nothing"), FileError);
  EXPECT_FALSE(run.trainer->resume_from_checkpoint(folder / "no_folder"));
}

// Data whose epoch does not end: checkpoints know it by its first batches, and a run needs max_steps.
TEST(TrainerEndless, ResumesAndNeedsMaxSteps) {
  const auto make_source = [](int64_t shift) {
    return data::FunctionBatches(
        data::FunctionBatches::kEndless, [shift](data::BatchSource::Position at) -> data::Batch {
          EXPECT_LT(at.batch, 1000) << "nobody asks for the last batch";
          Generator generator(static_cast<uint64_t>(at.batch + shift));
          return {Tensor::randn({2, 4, 6}, {kF32}, &generator), Tensor::full({2, 4}, at.batch % 5, {kI64})};
        });
  };
  struct Run {
    Run(data::FunctionBatches given, TrainerOptions options) : source(std::move(given)) {
      manual_seed(1);
      net = std::make_unique<Classifier>();
      optimizer = std::make_unique<SGD>(net->parameters(), SGDOptions{.lr = 0.1});
      trainer = std::make_unique<Trainer>(
          *net, *optimizer, [this](const data::Batch& b) { return net->loss(b); }, source, std::move(options));
    }
    data::FunctionBatches source;
    std::unique_ptr<Classifier> net;
    std::unique_ptr<SGD> optimizer;
    std::unique_ptr<Trainer> trainer;
  };
  const TempFolder folder;
  Run whole(make_source(0), {.max_steps = 6});
  whole.trainer->train();
  {
    Run cut(make_source(0), {.max_steps = 3, .output_dir = folder.path()});
    cut.trainer->train();
  }
  Run resumed(make_source(0), {.max_steps = 6, .output_dir = folder.path()});
  const auto from = resumed.trainer->resume_from_checkpoint();
  ASSERT_TRUE(from.has_value());
  EXPECT_EQ(from->step, 3);
  const TrainResult result = resumed.trainer->train();
  EXPECT_EQ(result.last.step, 6);
  EXPECT_GE(result.last.epoch, 0);
  EXPECT_LT(result.last.epoch, 1e-9);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(same_bits(resumed.net->parameters()[i], whole.net->parameters()[i])) << i;

  Run other(make_source(7), {.max_steps = 6, .output_dir = folder.path()});
  EXPECT_NE(error_of([&] { other.trainer->resume_from_checkpoint(); }).find("its batches differ"), std::string::npos);
  EXPECT_NE(error_of([&] { Run(make_source(0), {}); }).find("does not end (BatchSource::kEndless); set max_steps"),
            std::string::npos);
  EXPECT_NE(error_of([&] { planned_steps({}, data::BatchSource::kEndless); }).find("set max_steps"), std::string::npos);
  EXPECT_GT(planned_steps({.num_train_epochs = 1e9}, int64_t{1} << 61), 0);
  data::FunctionBatches evaluation = make_source(0);
  EXPECT_NE(error_of([&] {
              Trainer(*other.net, *other.optimizer, [](const data::Batch&) { return Tensor(); }, other.source,
                      evaluation, {.max_steps = 1});
            }).find("the evaluation data does not end"),
            std::string::npos);
}

}  // namespace
}  // namespace rondo::optim
