#include "rondo/examples/study.h"

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
#include <optional>
#include <sstream>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "rondo/examples/study_table.h"
#include "rondo/optim/trainer/run_lock.h"
#include "rondo/runtime/base/cpu_features.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::examples {
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

constexpr int64_t kCompileRounds = 5;

std::string text_of_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// Returns the last line of a log that is not blank. If a program has failed, this line mostly says why. '?' replaces
// characters that a terminal may not show.
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

// Quotes a text as one word for a shell.
std::string quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

void make_empty(const std::string& folder) {
  fs::remove_all(folder);
  io::make_folders(folder);
}

// Runs a command and writes its output to `log`. Returns why it failed, or "". The command is killed if this process
// ends.
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

class Runner {
 public:
  explicit Runner(const Study& study)
      : s_(study), program_(fs::read_symlink("/proc/self/exe").string()), threads_(num_threads()) {
    choose_rows();
  }

  int run() {
    claim_folder();
    if (!s_.options.peer.empty()) s_.write_start(at("runs/start"));
    for (const std::string& dtype : s_.dtypes)
      for (const StudyRow* row : rows_) {
        StudyResult& result = results_.emplace_back(StudyResult{.row = row, .dtype = dtype, .ours = {}, .theirs = {}});
        const int64_t rounds = rounds_of(*row);
        for (int64_t round = 0; round < rounds; ++round)
          for (const bool ours : {round % 2 == 0, round % 2 != 0}) {
            StudyRuns& runs = ours ? result.ours : result.theirs;
            if (runs.failure.empty() && (ours ? row->same_as.empty() : !s_.options.peer.empty()))
              measure(*row, dtype, ours, round, runs);
          }
        if (!row->same_as.empty())
          for (const StudyResult& other : results_)
            if (other.dtype == dtype && other.row->name == row->same_as) result.ours = other.ours;
        write_table();
        say(result);
      }
    std::printf("%s\n", to_text(table()).c_str());
    std::printf("The table is in %s/study.txt and study.html\n", s_.folder.c_str());
    return std::ranges::any_of(
               results_, [](const StudyResult& r) { return !r.ours.failure.empty() || !r.theirs.failure.empty(); })
               ? 1
               : 0;
  }

 private:
  // Chooses the rows that --study_rows names, and the rows that they refer to.
  void choose_rows() {
    Words wanted = absl::StrSplit(s_.options.rows, ',', absl::SkipWhitespace()), names;
    for (const StudyRow& row : s_.rows) names.push_back(row.name);
    for (const std::string& name : wanted)
      if (!std::ranges::count(names, name))
        throw Error(absl::StrCat("--study_rows: no row is called ", name, did_you_mean(name, names), " (",
                                 absl::StrJoin(names, ", "), ")"));
    for (const StudyRow& row : s_.rows)
      if (std::ranges::count(wanted, row.name) && !row.same_as.empty()) wanted.push_back(row.same_as);
    for (const StudyRow& row : s_.rows)
      if (wanted.empty() || std::ranges::count(wanted, row.name)) rows_.push_back(&row);
  }
  int64_t rounds_of(const StudyRow& row) const {
    if (s_.options.rounds > 0) return s_.options.rounds;
    return row.is_compile_time ? kCompileRounds : 1;
  }
  StudyTable table() const { return table_of(s_.heading, s_.title, s_.published, results_); }

  std::string at(const std::string& name) const { return absl::StrCat(s_.folder, "/", name); }

  // Locks runs/, and deletes its contents if the study overwrites. Throws Error unless runs/ is new or holds results of
  // the same options. A study deletes nothing outside of runs/.
  void claim_folder() {
    const std::string settings = absl::StrCat(absl::StrJoin(s_.shared, " "), " --study_steps=", s_.options.steps,
                                              " --threads=", threads_, "\n"),
                      file = at("runs/options"), peer = at("runs/peer"), others = "name another folder";
    if (fs::exists(at("runs")) && !fs::exists(file) && !fs::exists(at("runs/.lock")))
      throw Error(absl::StrCat("--study: ", at("runs"), " is not of a study: ", others));
    lock_.emplace(at("runs"));
    if (s_.overwrites)
      for (const std::string& name : io::list_folder(at("runs")))
        if (name != ".lock") fs::remove_all(at("runs/" + name));
    const auto refuse = [&](const char* what) {
      throw Error(
          absl::StrCat("--study: ", s_.folder, " holds a study with ", what, ": ", others, ", or remove ", at("runs")));
    };
    if (fs::exists(file) && text_of_file(file) != settings) refuse("other options (runs/options)");
    if (fs::exists(peer) && !s_.options.peer.empty() && text_of_file(peer) != s_.options.peer + "\n")
      refuse("another --study_peer (runs/peer)");
    io::write_file_atomic(file, settings);
    if (!s_.options.peer.empty()) io::write_file_atomic(peer, s_.options.peer + "\n");
  }

  // Adds the result of a run to `runs`. If an earlier study has left the file of this run, reads it; otherwise makes
  // the run.
  void measure(const StudyRow& row, const std::string& dtype, bool ours, int64_t round, StudyRuns& runs) const {
    const std::string name = at(absl::StrCat("runs/", dtype, "-", row.name, ours ? "-ours-" : "-peer-", round + 1));
    const std::string file = name + ".json", fresh = name + ".new";
    if (fs::exists(file)) {
      try {
        return runs.runs.push_back(facts_from_json(text_of_file(file), file));
      } catch (const FileError&) {
        fs::remove(file);  // the file is damaged: the run is made again
      }
    }
    make_empty(at("runs/cache"));
    fs::remove(fresh);  // a killed run may have left it
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
    Words command, options = s_.shared;
    const auto add = [&](auto... words) { options.push_back(absl::StrCat(words...)); };
    add("--report=", report);
    add("--dtype=", dtype);
    if (ours) {
      if (row.processes > 1)
        command = {fs::path(program_).replace_filename("rondorun").string(), "--no-prefix",
                   absl::StrCat("--nproc-per-node=", row.processes)};
      command.push_back(program_);
      options.insert(options.end(), row.options.begin(), row.options.end());
      const Words own = s_.own(row);
      options.insert(options.end(), own.begin(), own.end());
      if (row.code == StudyRow::Code::kArtifact)
        add(fill ? "--save_code=cat > " : "--load_code=cat ", quoted(artifact));
    } else {
      // `env`, because --study_peer may have settings in front of the command.
      command = {"sh", "-c", absl::StrCat("exec env ", s_.options.peer, " \"$@\""), "sh"};
      add("--row=", row.name);
      add("--initial=", at("runs/start"));
      add("--timed_steps=", s_.timed_steps(row));
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
        log, s_.options.timeout);
  }

  void write_table() const {
    const StudyTable now = table();
    io::write_file_atomic(at("study.txt"), to_text(now));
    io::write_file_atomic(at("study.html"), to_html(now));
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

  const Study& s_;
  const std::string program_;
  const int threads_;
  std::vector<const StudyRow*> rows_;
  std::vector<StudyResult> results_;
  std::optional<optim::RunLock> lock_;
};

}  // namespace

void add_options(Flags& flags, StudyOptions& o, const std::string& folder) {
  flags.add("study", &o.on,
            absl::StrCat("measures the rows of the published study, each in a process of its own with an empty cache: "
                         "study.txt and study.html in --",
                         folder, ". A second call goes on"));
  flags.add("study_rows", &o.rows, "some of them, by name, with commas between them; empty: all");
  flags.add("study_steps", &o.steps, "that are timed");
  flags.add("study_rounds", &o.rounds, "of each row; 0: 5 where compiling is timed, else 1");
  flags.add("study_timeout", &o.timeout, "seconds for a process");
}

std::vector<std::string> dtypes_of_host(Device device) {
  if (device == kCPU && !(host_cpu_features() & (bit(CpuFeature::kAvx512bf16) | bit(CpuFeature::kBf16))))
    return {"float32"};
  return {"float32", "bfloat16"};
}

int run_study(const Study& study) { return Runner(study).run(); }

}  // namespace rondo::examples
