#include "rondo/examples/image_captioning/study.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "rondo/examples/image_captioning/caption_batches.h"
#include "rondo/examples/image_captioning/caption_model.h"
#include "rondo/examples/image_captioning/study_rows.h"
#include "rondo/examples/image_captioning/study_table.h"
#include "rondo/optim/trainer/run_lock.h"
#include "rondo/runtime/cpu_features.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/format.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/safetensors.h"
#include "rondo/runtime/parallel.h"

namespace rondo::examples {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr int64_t kCompileRounds = 5;
constexpr double kLearningRate = 1e-4;

std::string text_of_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The last line that says something: of a program that failed, mostly why. Whatever it is, a terminal shows it.
std::string last_line(const std::string& log) {
  constexpr std::streamoff kMost = 4096;
  std::ifstream file(log, std::ios::binary | std::ios::ate);
  file.seekg(std::max<std::streamoff>(0, file.tellg() - kMost));
  std::stringstream text;
  text << file.rdbuf();
  const Words lines = absl::StrSplit(text.str(), '\n', absl::SkipWhitespace());
  if (lines.empty()) return "it printed nothing";
  std::string line = std::string(absl::StripAsciiWhitespace(lines.back())).substr(0, 300);
  for (char& c : line)
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  return line;
}

// As one word of a shell.
std::string quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

void make_empty(const std::string& folder) {
  fs::remove_all(folder);
  io::make_folders(folder);
}

// Runs a command with its output in `log`. Returns why it failed, or "". It is killed with this process.
std::string run_command(const Words& command, const Words& environment, const std::string& log, double timeout) {
  std::vector<char*> arguments, assignments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  const auto is_replaced = [&](const char* old) {
    return std::ranges::any_of(
        environment, [&](const std::string& one) { return std::strncmp(old, one.c_str(), one.find('=') + 1) == 0; });
  };
  for (char** old = environ; *old != nullptr; ++old)
    if (!is_replaced(*old)) assignments.push_back(*old);
  for (const std::string& one : environment) assignments.push_back(const_cast<char*>(one.c_str()));
  arguments.push_back(nullptr);
  assignments.push_back(nullptr);
  const int out = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (out < 0) throw FileError(log, std::strerror(errno));
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {  // nothing here may allocate: other threads may hold the heap
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(out, STDOUT_FILENO);
    ::dup2(out, STDERR_FILENO);
    ::execvpe(arguments[0], arguments.data(), assignments.data());
    ::_exit(127);
  }
  ::close(out);
  if (child < 0) return absl::StrCat("no process can be made: ", std::strerror(errno));
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(timeout);
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      ::kill(-child, SIGKILL);
      ::waitpid(child, &status, 0);
      return formatted("not done after %.0f s (--study_timeout)", timeout);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (WIFSIGNALED(status)) return absl::StrCat("ended by signal ", WTERMSIG(status), ": ", last_line(log));
  if (WEXITSTATUS(status) == 127) return absl::StrCat(command[0], " cannot be run: ", last_line(log));
  if (WEXITSTATUS(status) != 0) return last_line(log);
  return "";
}

class Study {
 public:
  Study(const CaptioningOptions& o, bool one_dtype)
      : o_(o), program_(fs::read_symlink("/proc/self/exe").string()), threads_(num_threads()) {
    if (one_dtype || o.study.full) dtypes_ = {one_dtype ? o.dtype : "bfloat16"};
    else if (o.device == kCPU && !(host_cpu_features() & (bit(CpuFeature::kAvx512bf16) | bit(CpuFeature::kBf16))))
      dtypes_ = {"float32"};
    else dtypes_ = {"float32", "bfloat16"};
    choose_rows();
  }

  int run() {
    claim_folder();
    if (!o_.study.peer.empty()) write_start();
    for (const std::string& dtype : dtypes_)
      for (const StudyRow* row : rows_) {
        StudyResult& result = results_.emplace_back(StudyResult{.row = row, .dtype = dtype, .ours = {}, .theirs = {}});
        const int64_t rounds = rounds_of(*row);
        for (int64_t round = 0; round < rounds; ++round)
          for (const bool ours : {round % 2 == 0, round % 2 != 0}) {
            StudyRuns& runs = ours ? result.ours : result.theirs;
            if (runs.failure.empty() && (ours ? row->same_as.empty() : !o_.study.peer.empty()))
              measure(*row, dtype, ours, round, runs);
          }
        if (!row->same_as.empty())
          for (const StudyResult& other : results_)
            if (other.dtype == dtype && other.row->name == row->same_as) result.ours = other.ours;
        write_table();
        say(result);
      }
    std::printf("%s\n", to_text(table_of(title(), results_)).c_str());
    std::printf("The table is in %s/study.txt and study.html\n", o_.output_dir.c_str());
    return std::ranges::any_of(
               results_, [](const StudyResult& r) { return !r.ours.failure.empty() || !r.theirs.failure.empty(); })
               ? 1
               : 0;
  }

 private:
  // The rows that are wanted, and those that they refer to.
  void choose_rows() {
    Words wanted = absl::StrSplit(o_.study.rows, ',', absl::SkipWhitespace()), names;
    for (const StudyRow& row : study_rows()) names.push_back(row.name);
    for (const std::string& name : wanted)
      if (!std::ranges::count(names, name))
        throw Error(absl::StrCat("--study_rows: no row is called ", name, did_you_mean(name, names), " (",
                                 absl::StrJoin(names, ", "), ")"));
    for (const StudyRow& row : study_rows())
      if (std::ranges::count(wanted, row.name) && !row.same_as.empty()) wanted.push_back(row.same_as);
    for (const StudyRow& row : study_rows())
      if (wanted.empty() || std::ranges::count(wanted, row.name)) rows_.push_back(&row);
  }
  int64_t rounds_of(const StudyRow& row) const {
    if (o_.study.rounds > 0) return o_.study.rounds;
    return row.is_compile_time ? kCompileRounds : 1;
  }
  int64_t timed_steps(const StudyRow& row) const { return row.is_compile_time ? 0 : o_.study.steps; }
  // So many batches are the data of one process; behind them it begins again.
  int64_t batches_of(const StudyRow& row) const { return o_.untimed_steps + timed_steps(row); }

  // Options of the model and its data, which all rows share.
  Words shared_options() const {
    return {absl::StrCat("--image_size=", o_.image_size),
            absl::StrCat("--patch_size=", o_.patch_size),
            absl::StrCat("--n_layer=", o_.n_layer),
            absl::StrCat("--n_head=", o_.n_head),
            absl::StrCat("--n_embd=", o_.n_embd),
            absl::StrCat("--max_length=", o_.max_length),
            absl::StrCat("--vocab_size=", o_.vocab_size),
            absl::StrCat("--batch_size=", o_.batch_size),
            absl::StrCat("--untimed_steps=", o_.untimed_steps),
            absl::StrCat("--seed=", o_.seed),
            formatted("--learning_rate=%g", kLearningRate),
            absl::StrCat("--device=", to_string(o_.device))};
  }
  std::string title() const {
    return formatted(
        "A ViT of %d layers of %d and a GPT-2 alike, %d x %d pixels, batches of %d, captions of up to %d "
        "tokens; %d untimed steps, %d timed; %s, %d threads",
        o_.n_layer, o_.n_embd, o_.image_size, o_.image_size, o_.batch_size, o_.max_length, o_.untimed_steps,
        o_.study.steps, to_string(o_.device), threads_);
  }

  std::string at(const std::string& name) const { return absl::StrCat(o_.output_dir, "/", name); }

  // runs/ is new, or holds results of the same options. All that a study deletes is in there.
  void claim_folder() {
    const std::string settings = absl::StrCat(absl::StrJoin(shared_options(), " "), " --study_steps=", o_.study.steps,
                                              " --threads=", threads_, "\n"),
                      file = at("runs/options"), peer = at("runs/peer"), others = "name another --output_dir";
    if (fs::exists(at("runs")) && !fs::exists(file) && !fs::exists(at("runs/.lock")))
      throw Error(absl::StrCat("--study: ", at("runs"), " is not of a study: ", others));
    lock_.emplace(at("runs"));
    if (o_.overwrite_output_dir)
      for (const std::string& name : io::list_folder(at("runs")))
        if (name != ".lock") fs::remove_all(at("runs/" + name));
    const auto refuse = [&](const char* what) {
      throw Error(absl::StrCat("--study: ", o_.output_dir, " holds a study with ", what, ": ", others,
                               ", or set --overwrite_output_dir"));
    };
    if (fs::exists(file) && text_of_file(file) != settings) refuse("other options (runs/options)");
    if (fs::exists(peer) && !o_.study.peer.empty() && text_of_file(peer) != o_.study.peer + "\n")
      refuse("another --study_peer (runs/peer)");
    io::write_file_atomic(file, settings);
    if (!o_.study.peer.empty()) io::write_file_atomic(peer, o_.study.peer + "\n");
  }

  // What the peer begins with.
  void write_start() const {
    const std::string start = at("runs/start");
    io::make_folders(start);
    const CaptionModel model(o_, nullptr);
    model.save(start);
    int64_t count = 0;
    for (const StudyRow* row : rows_) count = std::max(count, batches_of(*row) * row->processes * o_.batch_size);
    const auto seed = static_cast<uint64_t>(o_.seed);
    CaptionBatches captions(
        random_captions(count, o_.max_length, o_.vocab_size, model->config.decoder_start_token_id, model.end(), seed),
        random_pixels(1, 1, seed),
        {.order = {.batch_size = count, .shuffle = false, .group_by_length = false, .sizes = {o_.max_length}}});
    const RandomPixels pixels(model->config.encoder.n_channel * o_.image_size * o_.image_size, seed);
    std::vector<int64_t> starts;
    for (int64_t i = 0; i < count; ++i) starts.push_back(pixels.start(i));
    io::save_safetensors(start + "/data.safetensors", {{"labels", captions.next()->front().contiguous()},
                                                       {"starts", Tensor::from<int64_t>(starts, {count}, kCPU)},
                                                       {"field", pixels.field}});
  }

  // Adds a run, from its file if it was made before.
  void measure(const StudyRow& row, const std::string& dtype, bool ours, int64_t round, StudyRuns& runs) const {
    const std::string name = at(absl::StrCat("runs/", dtype, "-", row.name, ours ? "-ours-" : "-peer-", round + 1));
    const std::string file = name + ".json", fresh = name + ".new";
    if (fs::exists(file)) {
      try {
        return runs.runs.push_back(facts_from_json(text_of_file(file), file));
      } catch (const FileError&) {
        fs::remove(file);  // damaged: it is measured again
      }
    }
    make_empty(at("runs/cache"));
    fs::remove(fresh);  // of one that was killed
    runs.failure.clear();
    if (row.code != StudyRow::Code::kNone) {
      fs::remove(at("runs/artifact"));
      runs.failure = start_process(row, dtype, ours, /*fill=*/true, fresh, name + "-fill.log");
      if (row.code == StudyRow::Code::kArtifact) make_empty(at("runs/cache"));
      fs::remove(fresh);
    }
    if (runs.failure.empty()) runs.failure = start_process(row, dtype, ours, /*fill=*/false, fresh, name + ".log");
    fs::remove_all(at("runs/cache"));
    if (runs.failure.empty() && !fs::is_regular_file(fresh)) runs.failure = "it wrote no report";
    if (!runs.failure.empty()) return;
    try {
      runs.runs.push_back(facts_from_json(text_of_file(fresh), fresh));
      fs::rename(fresh, file);
    } catch (const FileError& error) {
      runs.failure = absl::StrCat("its report: ", error.what());
    }
  }

  std::string start_process(const StudyRow& row, const std::string& dtype, bool ours, bool fill,
                            const std::string& report, const std::string& log) const {
    const std::string cache = fs::absolute(at("runs/cache")).string(),
                      artifact = fs::absolute(at("runs/artifact")).string();
    const int threads = std::max(1, threads_ / row.processes);
    Words command, options = shared_options();
    const auto add = [&](auto... words) { options.push_back(absl::StrCat(words...)); };
    add("--report=", report);
    add("--dtype=", dtype);
    if (ours) {
      if (row.processes > 1)
        command = {fs::path(program_).replace_filename("rondorun").string(), "--no-prefix",
                   absl::StrCat("--nproc-per-node=", row.processes)};
      command.push_back(program_);
      options.insert(options.end(), row.options.begin(), row.options.end());
      for (const char* word : {"--data=random", "--output_dir=", "--lr_scheduler_type=constant", "--warmup_ratio=0",
                               "--weight_decay=0", "--max_grad_norm=0"})
        add(word);
      const int64_t batches = batches_of(row);
      add("--train_pictures=", batches * row.processes * o_.batch_size);
      add("--max_steps=", batches + o_.untimed_steps);
      add("--logging_steps=", batches + o_.untimed_steps);
      if (row.code == StudyRow::Code::kArtifact)
        add(fill ? "--save_code=cat > " : "--load_code=cat ", quoted(artifact));
    } else {
      // env: settings may stand in front of the command.
      command = {"sh", "-c", absl::StrCat("exec env ", o_.study.peer, " \"$@\""), "sh"};
      add("--row=", row.name);
      add("--initial=", at("runs/start"));
      add("--timed_steps=", timed_steps(row));
      add("--threads=", threads);
      add("--processes=", row.processes);
      add("--artifact=", artifact);
      add("--fill=", fill ? 1 : 0);
    }
    command.insert(command.end(), options.begin(), options.end());
    return run_command(
        command,
        {"RONDO_CACHE=on", absl::StrCat("RONDO_CACHE_DIR=", cache), absl::StrCat("RONDO_NUM_THREADS=", threads),
         absl::StrCat("OMP_NUM_THREADS=", threads), absl::StrCat("MKL_NUM_THREADS=", threads),
         absl::StrCat("TORCHINDUCTOR_CACHE_DIR=", cache), absl::StrCat("TRITON_CACHE_DIR=", cache)},
        log, o_.study.timeout);
  }

  void write_table() const {
    const StudyTable table = table_of(title(), results_);
    io::write_file_atomic(at("study.txt"), to_text(table));
    io::write_file_atomic(at("study.html"), to_html(table));
  }

  static void say(const StudyResult& result) {
    const auto side = [](const char* name, const StudyRuns& runs) {
      if (!runs.failure.empty()) return absl::StrCat("  ", name, " failed: ", runs.failure);
      if (runs.runs.empty()) return std::string();
      const double steps_per_s = median_of(runs, &RunFacts::steps_per_s), first_s = median_of(runs, &RunFacts::first_s);
      return absl::StrCat("  ", name, std::isnan(steps_per_s) ? "" : formatted(" %.2f steps/s,", steps_per_s),
                          formatted(" the first in %.2f s", first_s));
    };
    std::printf("%s %s:%s%s\n", result.dtype.c_str(), result.row->name.c_str(), side("ours", result.ours).c_str(),
                side("the peer", result.theirs).c_str());
    std::fflush(stdout);
  }

  const CaptioningOptions& o_;
  const std::string program_;
  const int threads_;
  Words dtypes_;
  std::vector<const StudyRow*> rows_;
  std::vector<StudyResult> results_;
  std::optional<optim::RunLock> lock_;
};

}  // namespace

int run_study(const CaptioningOptions& options, bool one_dtype) { return Study(options, one_dtype).run(); }

}  // namespace rondo::examples
