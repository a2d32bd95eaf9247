// Checkpoints: bit-exact, pruned, robust against damage, and whole after a kill at any moment.
#include "rondo/runtime/checkpoint/checkpoint.h"

#include <signal.h>
#include <sys/wait.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>

#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::io {
namespace {

constexpr int64_t kElements = 20'000;

// Everything in it follows from the step, so that a test can tell whether what it reads is what was written.
Checkpoint checkpoint_of(int64_t step, int64_t elements = kElements) {
  std::vector<float> values(static_cast<size_t>(elements));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(step) + 0.001f * static_cast<float>(i);
  Checkpoint checkpoint;
  checkpoint.step = step;
  checkpoint.model = {{"wte.weight", Tensor::from(values, {elements})}, {"ln.bias", Tensor::from<float>({-0.0f}, {1})}};
  checkpoint.optimizer = {{"exp_avg.0", Tensor::from(values, {elements})}, {"step", Tensor::scalar<int64_t>(step)}};
  checkpoint.state = {{"position", step}, {"best_loss", 1.0 / (static_cast<double>(step) + 3)}};
  return checkpoint;
}

void expect_is_step(const Checkpoint& checkpoint, int64_t step, int64_t elements = kElements) {
  const Checkpoint expected = checkpoint_of(step, elements);
  EXPECT_EQ(checkpoint.step, step);
  EXPECT_EQ(checkpoint.state, expected.state);
  for (auto part : {&Checkpoint::model, &Checkpoint::optimizer}) {
    ASSERT_EQ((checkpoint.*part).size(), (expected.*part).size());
    for (const auto& [name, tensor] : expected.*part) {
      const Tensor& read = (checkpoint.*part).at(name);
      ASSERT_EQ(read.sizes(), tensor.sizes()) << name;
      ASSERT_EQ(read.dtype(), tensor.dtype()) << name;
      const Tensor a = read.to(kCPU), b = tensor.to(kCPU);
      EXPECT_EQ(std::memcmp(a.raw_data(), b.raw_data(), static_cast<size_t>(b.nbytes())), 0) << name;
    }
  }
}

// NaN and infinities are not saved unasked: what is there stays the newest checkpoint.
TEST(Checkpoint, ValuesThatAreNotFiniteAreRefused) {
  const double bad[] = {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity(),
                        -std::numeric_limits<double>::infinity()};
  for (const bool of_model : {true, false}) {
    for (const DType dtype : {kF64, kF32, kBF16, kF16}) {
      for (const double value : bad) {
        TempFolder folder;
        save_checkpoint(folder / "out", checkpoint_of(1));
        Checkpoint checkpoint = checkpoint_of(2);
        Tensor tensor = Tensor::full({70'000, 2}, 1.5, {dtype});
        tensor.mul_(0).add_(dtype == kF16 ? 65504.0 : 3.3e38);  // large, and finite
        (of_model ? checkpoint.model : checkpoint.optimizer)["extra"] = tensor.t();
        save_checkpoint(folder / "out", checkpoint);
        tensor[69'999][1].fill_(value);
        checkpoint.step = 3;
        const std::string name = of_model ? "model.extra" : "optimizer.extra";
        try {
          save_checkpoint(folder / "out", checkpoint);
          ADD_FAILURE() << "saved";
        } catch (const NonFiniteError& error) {
          EXPECT_EQ(error.tensor(), name);
          EXPECT_NE(std::string(error.what()).find("1 of the 140000 values of " + name + " are NaN or infinite"),
                    std::string::npos)
              << error.what();
        }
        EXPECT_EQ(load_latest_checkpoint(folder / "out").checkpoint->step, 2);
        save_checkpoint(folder / "out", checkpoint, {.allow_nonfinite = true});
        const Checkpoint read = *load_latest_checkpoint(folder / "out").checkpoint;
        EXPECT_EQ(read.step, 3);
        EXPECT_FALSE(std::isfinite((of_model ? read.model : read.optimizer).at("extra").to_vector<double>().back()));
      }
    }
  }
}

TEST(Checkpoint, RoundTripIsBitExact) {
  TempFolder folder;
  const std::string out = folder / "runs/first";  // is created
  Checkpoint checkpoint = checkpoint_of(7);
  const double nan = std::bit_cast<double>(0x7FF8'0000'DEAD'BEEFu);
  checkpoint.state = {{"flag", true},
                      {"off", false},
                      {"int", INT64_MIN},
                      {"big", INT64_MAX},
                      {"whole", 3.0},
                      {"tiny", std::numeric_limits<double>::denorm_min()},
                      {"tenth", 0.1},
                      {"huge", std::numeric_limits<double>::max()},
                      {"minus zero", -0.0},
                      {"inf", std::numeric_limits<double>::infinity()},
                      {"nan", nan},
                      {"empty", ""},
                      {"text", "a\n\"b\" \\ \u4f60"},
                      {"", 1e300}};
  const std::string path = save_checkpoint(out, checkpoint);
  EXPECT_EQ(path, out + "/ckpt-00000007.safetensors");

  const LatestCheckpoint latest = load_latest_checkpoint(out);
  ASSERT_TRUE(latest.checkpoint);
  EXPECT_EQ(latest.path, path);
  EXPECT_TRUE(latest.skipped.empty());
  const Checkpoint& read = *latest.checkpoint;
  ASSERT_EQ(read.state.size(), checkpoint.state.size());
  for (const auto& [name, scalar] : checkpoint.state) {
    ASSERT_EQ(read.state.at(name).index(), scalar.index()) << name;
    if (const double* number = std::get_if<double>(&scalar)) {
      EXPECT_EQ(std::bit_cast<uint64_t>(read.get<double>(name)), std::bit_cast<uint64_t>(*number)) << name;
    } else {
      EXPECT_EQ(read.state.at(name), scalar) << name;
    }
  }
  EXPECT_THROW(read.get<double>("none"), Error);
  EXPECT_THROW(read.get<double>("int"), Error);
  EXPECT_EQ(std::bit_cast<uint32_t>(read.model.at("ln.bias").to_vector<float>()[0]), 0x80000000u);
}

TEST(Checkpoint, DoublesRoundTrip) {
  TempFolder folder;
  std::mt19937_64 random(3);
  Checkpoint checkpoint;
  for (int i = 0; i < 5000; ++i) checkpoint.state[std::to_string(i)] = std::bit_cast<double>(random());
  const Checkpoint read = load_checkpoint(save_checkpoint(folder.path(), checkpoint));
  for (const auto& [name, scalar] : checkpoint.state)
    EXPECT_EQ(std::bit_cast<uint64_t>(std::get<double>(scalar)), std::bit_cast<uint64_t>(read.get<double>(name)));
}

TEST(Checkpoint, NothingThere) {
  TempFolder folder;
  EXPECT_FALSE(load_latest_checkpoint(folder / "none").checkpoint);
  EXPECT_FALSE(load_latest_checkpoint(folder.path()).checkpoint);
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
}

TEST(Checkpoint, PrunesToTheNewestAndTouchesNothingElse) {
  TempFolder folder;
  write_bytes(folder / "metrics.jsonl", "{}");
  write_bytes(folder / "ckpt-best.safetensors", "mine");
  write_bytes(folder / "ckpt-7.safetensors", "mine");
  write_bytes(folder / ".tmp-ckpt-00000001.safetensors.99.0", "left by a killed run");
  for (int64_t step = 1; step <= 5; ++step) save_checkpoint(folder.path(), checkpoint_of(step, 10), {.keep = 3});
  std::vector<std::string> names;
  for (const std::string& path : list_checkpoints(folder.path()))
    names.push_back(path.substr(folder.path().size() + 1));
  EXPECT_EQ(names, (std::vector<std::string>{"ckpt-00000005.safetensors", "ckpt-00000004.safetensors",
                                             "ckpt-00000003.safetensors"}));
  EXPECT_EQ(folder.entries(), 6);

  // A run that went back writes an earlier step: the later ones are not its to remove, and its own one stays.
  save_checkpoint(folder.path(), checkpoint_of(2, 10), {.keep = 1});
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 4u);
  // The same step again replaces.
  save_checkpoint(folder.path(), checkpoint_of(5, 11), {.keep = 9});
  expect_is_step(*load_latest_checkpoint(folder.path()).checkpoint, 5, 11);
  // Steps beyond eight digits still order by number.
  save_checkpoint(folder.path(), checkpoint_of(123'456'789, 10));
  EXPECT_EQ(load_latest_checkpoint(folder.path()).checkpoint->step, 123'456'789);

  remove_checkpoints(folder.path());
  EXPECT_TRUE(list_checkpoints(folder.path()).empty());
  EXPECT_EQ(folder.entries(), 3);
  EXPECT_THROW(save_checkpoint(folder.path(), checkpoint_of(1), {.keep = 0}), Error);
  EXPECT_THROW(save_checkpoint(folder.path(), checkpoint_of(-1)), Error);
}

TEST(Checkpoint, SkipsDamagedOnesWithTheReason) {
  TempFolder folder;
  for (int64_t step = 1; step <= 4; ++step) save_checkpoint(folder.path(), checkpoint_of(step), {.keep = 9});
  const auto path = [&](int64_t step) { return folder / ("ckpt-0000000" + std::to_string(step) + ".safetensors"); };
  const std::string whole = read_bytes(path(4));
  write_bytes(path(4), whole.substr(0, whole.size() - 1));
  std::string flipped = read_bytes(path(3));
  flipped[flipped.size() - 5] ^= 1;
  write_bytes(path(3), flipped);
  write_bytes(path(2), "");
  LatestCheckpoint latest = load_latest_checkpoint(folder.path());
  ASSERT_TRUE(latest.checkpoint);
  expect_is_step(*latest.checkpoint, 1);
  ASSERT_EQ(latest.skipped.size(), 3u);
  EXPECT_EQ(latest.skipped[0].path, path(4));
  EXPECT_NE(latest.skipped[0].reason.find("truncated"), std::string::npos);
  EXPECT_EQ(latest.skipped[0].reason.find(path(4)), std::string::npos);
  EXPECT_NE(latest.skipped[1].reason.find("checksum"), std::string::npos);
  EXPECT_NE(latest.skipped[2].reason.find("not a safetensors file"), std::string::npos);

  // All damaged: nothing to load, every reason told.
  save_safetensors(path(1), {{"a", Tensor::zeros({1})}});
  latest = load_latest_checkpoint(folder.path());
  EXPECT_FALSE(latest.checkpoint);
  ASSERT_EQ(latest.skipped.size(), 4u);
  EXPECT_NE(latest.skipped[3].reason.find("not a checkpoint"), std::string::npos);
}

// No flipped bit, wherever it is, passes for a good checkpoint, and no truncation does.
TEST(Checkpoint, EveryDamageIsNoticed) {
  TempFolder folder;
  const std::string path = save_checkpoint(folder.path(), checkpoint_of(3, 4));
  const std::string whole = read_bytes(path);
  uint64_t header = 0;
  std::memcpy(&header, whole.data(), 8);
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = at < 8 + header ? 0 : 7; bit < 8; ++bit) {
      poke(path, at, static_cast<char>(whole[at] ^ (1 << bit)));
      EXPECT_THROW(load_checkpoint(path), FileError) << "byte " << at << ", bit " << bit;
    }
    poke(path, at, whole[at]);
  }
  load_checkpoint(path);
  for (size_t length = whole.size(); length-- > 0;) {
    std::filesystem::resize_file(path, length);
    EXPECT_THROW(load_checkpoint(path), FileError) << length;
  }
}

TEST(Checkpoint, TensorsStayValidAfterPruning) {
  TempFolder folder;
  save_checkpoint(folder.path(), checkpoint_of(1), {.keep = 1});
  const LatestCheckpoint first = load_latest_checkpoint(folder.path());
  save_checkpoint(folder.path(), checkpoint_of(2), {.keep = 1});
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 1u);
  expect_is_step(*first.checkpoint, 1);
}

// A child saves one step after another and reports each on a pipe; it is killed at a random moment, half of the time
// after its first report. What is then the latest loadable checkpoint is at least the last one reported, and whole. The
// moments follow from how long a save takes, so that many of them are within one, however busy the machine is.
TEST(Checkpoint, SurvivesKillAtAnyMoment) {
  TempFolder folder;
  std::mt19937 random(11);
  struct Saved {
    int64_t step, microseconds;
  };
  const auto save = [](const TempFolder& to, int64_t step, int keep) {
    const Checkpoint checkpoint = checkpoint_of(step);
    const auto start = std::chrono::steady_clock::now();
    save_checkpoint(to.path(), checkpoint, {.keep = keep});
    const auto took = std::chrono::steady_clock::now() - start;
    return Saved{step, std::chrono::duration_cast<std::chrono::microseconds>(took).count()};
  };
  int64_t step = 0, typical = save(TempFolder(), 1, 1).microseconds;
  int kills_within_a_save = 0;
  for (int kill_count = 0; kill_count < 60 || kills_within_a_save < 20; ++kill_count) {
    ASSERT_LT(kill_count, 3000) << "only " << kills_within_a_save << " kills hit a save: the test proves little";
    int reports[2];
    ASSERT_EQ(pipe(reports), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(reports[0]);
      for (int64_t next = step + 1;; ++next) {
        const Saved saved = save(folder, next, 1 + kill_count % 3);
        if (write(reports[1], &saved, sizeof saved) != sizeof saved) _exit(1);
      }
    }
    close(reports[1]);
    int64_t reported = step;
    Saved saved{};
    if (kill_count % 2 == 1) {
      ASSERT_EQ(read(reports[0], &saved, sizeof saved), static_cast<ssize_t>(sizeof saved)) << "the child has ended";
      reported = saved.step;
      typical = saved.microseconds;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(static_cast<int64_t>(random()) % (3 * typical + 1)));
    kill(child, SIGKILL);
    ASSERT_EQ(waitpid(child, nullptr, 0), child);
    while (read(reports[0], &saved, sizeof saved) == sizeof saved) reported = saved.step;
    close(reports[0]);

    const LatestCheckpoint latest = load_latest_checkpoint(folder.path());
    EXPECT_TRUE(latest.skipped.empty()) << latest.skipped[0].reason;
    if (reported == 0 && !latest.checkpoint) continue;  // killed before the first was complete
    ASSERT_TRUE(latest.checkpoint);
    EXPECT_GE(latest.checkpoint->step, reported);
    expect_is_step(*latest.checkpoint, latest.checkpoint->step);
    step = latest.checkpoint->step;
    bool within = false;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      within = within || entry.path().filename().string().starts_with(".tmp-");
    kills_within_a_save += within;
  }
  // The next save cleans up after all of them.
  save_checkpoint(folder.path(), checkpoint_of(step + 1), {.keep = 1});
  EXPECT_EQ(folder.entries(), 1);
}

}  // namespace
}  // namespace rondo::io
