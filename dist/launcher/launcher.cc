#include "rondo/dist/launcher/launcher.h"

#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rondo/dist/launcher/blame.h"
#include "rondo/dist/launcher/descendants.h"
#include "rondo/dist/launcher/guard.h"
#include "rondo/dist/launcher/job_store.h"
#include "rondo/dist/launcher/rank_output.h"
#include "rondo/dist/transport/keyed_hash.h"
#include "rondo/runtime/base/usable_cores.h"

namespace rondo::dist {
namespace {

// Failures this close together may have one cause: they are all reported.
constexpr Milliseconds kSettle{300};
// How long to wait for more output at the end of the job: no process may be left that writes output or reads it.
constexpr Milliseconds kDrain{500};
// How long the rank to blame may take to end, after another rank has reported it.
constexpr Milliseconds kEnding{1'000};

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return absl::StrCat("signal ", signal, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

std::string how_it_ended(int status) {
  return WIFSIGNALED(status) ? absl::StrCat(" was killed by ", signal_text(WTERMSIG(status)))
                             : absl::StrCat(" exited with code ", WEXITSTATUS(status));
}

bool is_stopped(const LaunchedRank& rank) {
  ProcessInfo info;
  if (rank.status || !read_process(rank.pid, info)) return false;
  std::vector<ProcessInfo> all = descendants_of(rank.pid);
  all.push_back(info);
  return std::any_of(all.begin(), all.end(), [](const ProcessInfo& process) { return process.state == 'T'; });
}

// Blocks the signals that ask a program to end, in this thread and in threads that it starts, and reads them from a
// descriptor. A signal that this process inherited as ignored stays ignored: nohup, and a shell that starts a job with
// &, rely on this.
class Signals {
 public:
  Signals() {
    sigset_t taken;
    sigemptyset(&taken);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction now;
      if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) sigaddset(&taken, signal);
    }
    pthread_sigmask(SIG_BLOCK, &taken, &before_);
    fd_ = Fd(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) {
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
      throw Error(absl::StrCat("signalfd: ", ::strerror(errno)));
    }
  }
  ~Signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }
  // Returns the next signal that has come, or 0.
  int take() {
    signalfd_siginfo info;
    if (::read(fd_.get(), &info, sizeof info) != sizeof info) return 0;
    have_come_ = true;
    return static_cast<int>(info.ssi_signo);
  }
  bool have_come() const { return have_come_; }

 private:
  sigset_t before_;
  Fd fd_;
  bool have_come_ = false;
};

// The processes of a job, from their start to the end of the last one.
class LaunchedJob {
 public:
  LaunchedJob(const LaunchOptions& options, std::string run_id, int restart, Signals& signals,
              const LaunchOutput& output)
      : options_(options),
        signals_(signals),
        guard_(signals_.before()),
        store_(options, std::move(run_id), restart),
        output_(options.nproc_per_node, options.prefix, output),
        ranks_(static_cast<size_t>(options.nproc_per_node)) {}

  int run() {
    start_all();
    while (!guard_.lost() && any_runs()) {
      wait_for_something(next_deadline());
      while (const int signal = signals_.take()) pass_on(signal);
      take_events();
      const auto now = std::chrono::steady_clock::now();
      if (blame_at_ && now >= *blame_at_) blame();
      if (kill_at_ && now >= *kill_at_) kill_all();
    }
    while (blame_at_) blame();
    end();
    return code_;
  }

  // True if a rank failed, no signal asked the job to end, and restarts are left.
  bool may_start_again() const {
    return has_blamed_ && !signals_.have_come() && store_.restart() < options_.max_restarts;
  }

 private:
  bool any_runs() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const LaunchedRank& rank) { return !rank.status; });
  }

  // ---- The start of the job
  void start_all() {
    const int n = options_.nproc_per_node;
    std::vector<std::string> variables = store_.variables();
    // Each rank gets an equal share of the cores, unless the user has set the number.
    const char* threads = std::getenv("OMP_NUM_THREADS");
    std::string quota;
    const std::string share = threads != nullptr ? threads : absl::StrCat(std::max(1, usable_cores(&quota) / n));
    variables.push_back("OMP_NUM_THREADS=" + share);
    if (std::getenv("RONDO_NUM_THREADS") == nullptr) {
      variables.push_back("RONDO_NUM_THREADS=" + share);
      if (!quota.empty() && store_.restart() == 0) output_.say(quota);
    }
    for (int r = 0; r < n; ++r) {
      std::vector<std::string> all = variables;
      for (const char* name : {"RANK=", "LOCAL_RANK=", "ROLE_RANK="}) all.push_back(absl::StrCat(name, r));
      guard_.start(r, options_.command, all);
      // Starts one rank after another, so that a missing program is reported once.
      while (ranks_[static_cast<size_t>(r)].pid < 0) {
        wait_for_something(std::nullopt);
        take_events();
        if (guard_.lost()) throw Error(absl::StrCat("cannot start rank ", r, ": the guard process has ended"));
      }
    }
  }

  void take_events() {
    while (std::optional<Guard::Event> event = guard_.next()) {
      LaunchedRank& rank = ranks_[static_cast<size_t>(event->rank)];
      switch (event->kind) {
        case Guard::Event::Kind::kCannotStart:
          throw Error(absl::StrCat("cannot run ", options_.command[0], ": ", ::strerror(event->status)));
        case Guard::Event::Kind::kStarted:
          rank.pid = event->pid;
          output_.open(static_cast<size_t>(event->rank), std::move(event->out), std::move(event->err));
          break;
        case Guard::Event::Kind::kExited:
          rank.status = event->status;
          rank.ended_at = event->time;
          if (rank.failed() && !is_ending() && !blame_at_) blame_at_ = after(kSettle);
          break;
      }
    }
  }

  // ---- While the job runs
  // True if a rank was blamed, or a signal came.
  bool is_ending() const { return has_blamed_ || signals_.have_come(); }

  std::optional<Deadline> next_deadline() const {
    if (blame_at_ && kill_at_) return std::min(*blame_at_, *kill_at_);
    return blame_at_ ? blame_at_ : kill_at_;
  }

  // Waits for a signal, an event, output or the deadline. Reads output; returns false if there was none.
  bool wait_for_something(std::optional<Deadline> deadline) {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}, {guard_.lost() ? -1 : guard_.fd(), POLLIN, 0}};
    const size_t first = fds.size();
    output_.watch(fds);
    if (::poll(fds.data(), fds.size(), deadline ? milliseconds_until(*deadline) : -1) <= 0) return false;
    return output_.take(std::span<const pollfd>(fds).subspan(first));
  }

  // ---- The end of the job
  // Says which rank failed first, then the others, in the order in which they ended. Ends the job.
  void blame() {
    blame_at_.reset();
    for (size_t r = 0; r < ranks_.size(); ++r) ranks_[r].failure = store_.record_of(static_cast<int>(r));
    const std::optional<Culprit> culprit = find_culprit(ranks_);
    if (!culprit) return;
    const LaunchedRank& root = ranks_[culprit->rank];
    const bool stopped = is_stopped(root);
    if (!root.status && !stopped && !has_waited_) {  // waits once: the rank may be about to end
      has_waited_ = true;
      blame_at_ = after(kEnding);
      return;
    }
    std::vector<size_t> failed;
    for (size_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r].failed() && r != culprit->rank) failed.push_back(r);
    std::stable_sort(failed.begin(), failed.end(),
                     [this](size_t a, size_t b) { return ranks_[a].ended_at < ranks_[b].ended_at; });
    output_.say(absl::StrCat(name_of_rank(culprit->rank),
                             stopped        ? " is stopped (SIGSTOP or SIGTSTP)"
                             : !root.status ? " does not take part any more"
                                            : how_it_ended(*root.status),
                             root.status && !root.failed() ? " while other ranks needed it" : "",
                             store_.restart() == options_.max_restarts
                                 ? "; the job ends"
                                 : absl::StrCat("; all ranks start again (restart ", store_.restart() + 1, " of ",
                                                options_.max_restarts, ")")));
    has_blamed_ = true;
    if (root.failure) output_.say(absl::StrCat("rank ", culprit->rank, " reports: ", root.failure->message));
    else if (culprit->accuser && !root.failed())
      output_.say(absl::StrCat("rank ", *culprit->accuser, " reports: ", ranks_[*culprit->accuser].failure->message));
    for (const size_t r : failed) output_.say(absl::StrCat(name_of_rank(r), how_it_ended(*ranks_[r].status)));
    const int status = *(root.failed() || failed.empty() ? root : ranks_[failed.front()]).status;
    code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    end_all(SIGTERM);
  }
  std::string name_of_rank(size_t r) const { return absl::StrCat("rank ", r, " (pid ", ranks_[r].pid, ")"); }

  void pass_on(int signal) {
    output_.drop();
    if (kill_at_) {
      output_.say(absl::StrCat(signal_text(signal), " once more; killing what is left"));
      return kill_all();
    }
    output_.say(absl::StrCat("passing ", signal_text(signal), " on to the ranks"));
    blame_at_.reset();
    code_ = 128 + signal;
    end_all(signal);
  }

  void end_all(int signal) {
    kill_at_ = after(options_.grace_period);
    guard_.signal(Guard::kEveryRank, signal);
  }

  void kill_all() {
    kill_at_.reset();
    for (size_t r = 0; r < ranks_.size(); ++r)
      if (!ranks_[r].status)
        output_.say(absl::StrCat("rank ", r, " (pid ", ranks_[r].pid, ") did not end in time and is killed"));
    guard_.signal(Guard::kEveryRank, SIGKILL);
  }

  // Call when all ranks have ended or the guard was killed. Ends all processes of the job that are left, then delivers
  // the rest of the output. Waits for a slow reader, unless a signal came.
  void end() {
    if (guard_.lost() && any_runs()) {
      output_.say("the guard process was killed; the job ends");
      code_ = 128 + SIGKILL;
    }
    guard_.end_all();
    while (!guard_.lost()) {
      wait_for_something(std::nullopt);
      while (const int signal = signals_.take()) pass_on_late(signal);
      take_events();
    }
    for (Deadline until = after(kDrain); output_.any_open() && std::chrono::steady_clock::now() < until;) {
      const bool waits_for_reader = output_.waits_for_reader();
      if (wait_for_something(until) || (waits_for_reader && !output_.drops())) until = after(kDrain);
      while (const int signal = signals_.take()) pass_on_late(signal);
    }
    output_.end_lines();
    for (const Deadline began = std::chrono::steady_clock::now(); !output_.is_empty();) {
      if (output_.drops() && std::chrono::steady_clock::now() >= began + kDrain) break;
      wait_for_something(after(kDrain));
      while (const int signal = signals_.take()) pass_on_late(signal);
    }
  }
  // Handles a signal that came after all ranks had ended: stops waiting for the reader of the output.
  void pass_on_late(int signal) {
    output_.drop();
    if (code_ == 0) code_ = 128 + signal;
  }

  const LaunchOptions& options_;
  Signals& signals_;
  SubreaperScope subreaper_;  // Note [Who ends whom]
  Guard guard_;               // constructed before any thread: it forks
  JobStore store_;
  RankOutput output_;
  std::vector<LaunchedRank> ranks_;
  std::optional<Deadline> blame_at_, kill_at_;
  bool has_waited_ = false;  // blame() has given the culprit time to end
  bool has_blamed_ = false;
  int code_ = 0;
};

}  // namespace

int launch(const LaunchOptions& options, const LaunchOutput& output) {
  Signals signals;  // before any thread, so that all threads block these signals
  const std::string run_id = absl::BytesToHexString(random_bytes(8));
  for (int restart = 0;; ++restart) {
    LaunchedJob job(options, run_id, restart, signals, output);
    const int code = job.run();
    if (!job.may_start_again()) return code;
  }
}

}  // namespace rondo::dist
