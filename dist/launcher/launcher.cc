#include "rondo/dist/launcher/launcher.h"

#include <fcntl.h>
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

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "rondo/dist/launcher/descendants.h"
#include "rondo/dist/launcher/guard.h"
#include "rondo/dist/launcher/node.h"
#include "rondo/dist/launcher/output_queue.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/dist/transport/keyed_hash.h"
#include "rondo/dist/transport/store.h"
#include "rondo/runtime/base/usable_cores.h"

namespace rondo::dist {
namespace {

// Failures this close together may have one cause: all of them are named.
constexpr Milliseconds kSettle{300};
// How long output is waited for that nobody can be expected to write, or to read, any more.
constexpr Milliseconds kDrain{500};
// How long the rank to blame may take to end, after another rank has reported it.
constexpr Milliseconds kEnding{1'000};
// The timeout of the launcher's connection to its own store.
constexpr Milliseconds kOwnStore{10'000};
constexpr size_t kLongestLine = 1 << 16;
constexpr int kMostProcesses = 1024;

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return absl::StrCat("signal ", signal, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

// For programs that open a store of their own there, such as PyTorch's.
int choose_master_port(const LaunchOptions& options) {
  if (options.master_port == 0) return port_of(listen_on("127.0.0.1", 0));
  try {
    listen_on("127.0.0.1", options.master_port);
  } catch (const ConnectionError& e) {
    throw Error(absl::StrCat("--master-port=", options.master_port, ": ", e.what()));
  }
  return options.master_port;
}

// Takes from this thread, and from threads that it starts, the signals that ask a program to end. A signal that this
// process inherited as ignored stays ignored: that is how nohup, and a shell that starts a job with &, ask for it.
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
  // The next signal that came, or 0.
  int take() {
    signalfd_siginfo info;
    return ::read(fd_.get(), &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
  }

 private:
  sigset_t before_;
  Fd fd_;
};

struct Rank {
  pid_t pid = -1;
  Fd streams[2];
  std::string lines[2];  // the beginning of a line whose end has not come yet
  std::optional<int> status;
  int64_t ended_at = 0;  // microseconds since 1970
  std::optional<FailureRecord> failure;
  bool failed() const { return status && (!WIFEXITED(*status) || WEXITSTATUS(*status) != 0); }
};

// The processes of a job, from their start to the end of the last one. `run_id`: the same in every attempt, and no
// other job's. `restart`: how often they have started before.
class LaunchedJob {
 public:
  LaunchedJob(const LaunchOptions& options, std::string run_id, int restart, Signals& signals,
              const LaunchOutput& output)
      : options_(options),
        run_id_(std::move(run_id)),
        restart_(restart),
        master_port_(choose_master_port(options)),
        signals_(signals),
        guard_(signals_.before()),
        token_(absl::BytesToHexString(random_bytes(16))),
        store_("127.0.0.1", 0, token_),
        records_("127.0.0.1", store_.port(), kOwnStore, token_),
        output_(output),
        ranks_(static_cast<size_t>(options.nproc_per_node)) {}

  int run() {
    start_all();
    while (!guard_.lost() && std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) { return !rank.status; })) {
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

  // A rank failed, and nobody asked the job to end.
  bool may_start_again() const { return has_blamed_ && !is_asked_to_end_ && restart_ < options_.max_restarts; }

 private:
  void say(std::string_view text) { output_.push(STDERR_FILENO, absl::StrCat("rondorun: ", std::string(text), "\n")); }

  // ---- Start
  void start_all() {
    const int n = options_.nproc_per_node;
    std::vector<std::string> variables = {
        absl::StrCat("WORLD_SIZE=", n),
        absl::StrCat("LOCAL_WORLD_SIZE=", n),
        absl::StrCat("ROLE_WORLD_SIZE=", n),
        "GROUP_RANK=0",
        "GROUP_WORLD_SIZE=1",
        "ROLE_NAME=default",
        "MASTER_ADDR=127.0.0.1",
        absl::StrCat("MASTER_PORT=", master_port_),
        absl::StrCat("TORCHELASTIC_RESTART_COUNT=", restart_),
        absl::StrCat("TORCHELASTIC_MAX_RESTARTS=", options_.max_restarts),
        "TORCHELASTIC_RUN_ID=" + run_id_,
        absl::StrCat("RONDO_STORE=127.0.0.1:", store_.port()),
        "RONDO_STORE_TOKEN=" + token_,
    };
    // Each rank gets its share of the cores, unless the user has decided.
    const char* threads = std::getenv("OMP_NUM_THREADS");
    std::string quota;
    const std::string share = threads != nullptr ? threads : absl::StrCat(std::max(1, usable_cores(&quota) / n));
    variables.push_back("OMP_NUM_THREADS=" + share);
    if (std::getenv("RONDO_NUM_THREADS") == nullptr) {
      variables.push_back("RONDO_NUM_THREADS=" + share);
      if (!quota.empty() && restart_ == 0) say(quota);
    }
    for (int r = 0; r < n; ++r) {
      std::vector<std::string> all = variables;
      for (const char* name : {"RANK=", "LOCAL_RANK=", "ROLE_RANK="}) all.push_back(absl::StrCat(name, r));
      guard_.start(r, options_.command, all);
      // One after the other: a program that is not there is reported once.
      while (ranks_[static_cast<size_t>(r)].pid < 0) {
        wait_for_something(std::nullopt);
        take_events();
        if (guard_.lost()) throw Error(absl::StrCat("cannot start rank ", r, ": the guard process has ended"));
      }
    }
  }

  void take_events() {
    while (std::optional<Guard::Event> event = guard_.next()) {
      Rank& rank = ranks_[static_cast<size_t>(event->rank)];
      switch (event->kind) {
        case Guard::Event::Kind::kCannotStart:
          throw Error(absl::StrCat("cannot run ", options_.command[0], ": ", ::strerror(event->status)));
        case Guard::Event::Kind::kStarted:
          rank.pid = event->pid;
          rank.streams[0] = std::move(event->out);
          rank.streams[1] = std::move(event->err);
          for (const Fd& stream : rank.streams) ::fcntl(stream.get(), F_SETFL, O_NONBLOCK);
          break;
        case Guard::Event::Kind::kExited:
          rank.status = event->status;
          rank.ended_at = event->time;
          if (rank.failed() && !ending_ && !blame_at_) blame_at_ = after(kSettle);
          break;
      }
    }
  }

  // ---- While it runs
  std::optional<Deadline> next_deadline() const {
    if (blame_at_ && kill_at_) return std::min(*blame_at_, *kill_at_);
    return blame_at_ ? blame_at_ : kill_at_;
  }

  bool any_open() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.streams[0] || r.streams[1]; });
  }

  // Until a signal, an event, output or the deadline comes. Takes output. Output whose reader is behind stays in its
  // pipe, so its rank waits as it would without a launcher; after a signal it is dropped, so that the rank can end.
  // Returns false if there was no output to take.
  bool wait_for_something(std::optional<Deadline> deadline) {
    const bool room[] = {output_.has_room(STDOUT_FILENO) || dropping_, output_.has_room(STDERR_FILENO) || dropping_};
    std::vector<pollfd> fds = {
        {signals_.fd(), POLLIN, 0}, {guard_.lost() ? -1 : guard_.fd(), POLLIN, 0}, {output_.fd(), POLLIN, 0}};
    const size_t first = fds.size();
    for (const Rank& rank : ranks_)
      for (int s = 0; s < 2; ++s) fds.push_back({room[s] ? rank.streams[s].get() : -1, POLLIN, 0});
    if (::poll(fds.data(), fds.size(), deadline ? milliseconds_until(*deadline) : -1) <= 0) return false;
    output_.clear();
    bool read = false;
    for (size_t i = first; i < fds.size(); ++i)
      if (fds[i].revents != 0) {
        read_from((i - first) / 2, static_cast<int>((i - first) % 2));
        read = true;
      }
    return read;
  }

  void read_from(size_t r, int s) {
    char buffer[1 << 16];
    Rank& rank = ranks_[r];
    const ssize_t n = ::read(rank.streams[s].get(), buffer, sizeof buffer);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
      end_line(r, s);
      rank.streams[s].reset();
    }
    if (n <= 0) return;
    std::string& line = rank.lines[s];
    line.append(buffer, static_cast<size_t>(n));
    size_t begin = 0;
    for (size_t end; (end = line.find('\n', begin)) != std::string::npos; begin = end + 1)
      emit(r, s, std::string_view(line).substr(begin, end - begin));
    line.erase(0, begin);
    if (line.size() >= kLongestLine) end_line(r, s);
  }
  void end_line(size_t r, int s) {
    std::string& line = ranks_[r].lines[s];
    if (!line.empty()) emit(r, s, line);
    line.clear();
  }
  void emit(size_t r, int s, std::string_view line) {
    const int stream = s == 0 ? STDOUT_FILENO : STDERR_FILENO;
    if (dropping_ && !output_.has_room(stream)) return;
    output_.push(stream,
                 options_.prefix ? absl::StrCat("[rank ", r, "] ", std::string(line), "\n") : std::string(line) + "\n");
  }

  // ---- Its end
  // Note [Who is to blame]. When one rank fails, the others fail because of it, and may even end before it: with an
  // exit code, an uncaught ConnectionError (SIGABRT), or a shell's code for a signal. So neither the kind of end nor
  // its order decides alone. A rank whose process group fails writes a FailureRecord: when, and which ranks it misses.
  // The launcher starts at the first failure in time, by record or by exit, and goes on to the rank that this one
  // misses, until it finds a rank that misses none. That rank may have exited with 0, or be stopped.
  std::optional<size_t> find_culprit() {
    const auto n = ranks_.size();
    std::vector<std::optional<FailureRecord>> records(n);
    for (size_t r = 0; r < n; ++r) records[r] = ranks_[r].failure = record_of(static_cast<int>(r));
    std::optional<size_t> first;
    int64_t first_time = 0;
    for (size_t r = 0; r < n; ++r) {
      std::optional<int64_t> time;
      if (ranks_[r].failed()) time = ranks_[r].ended_at;
      if (records[r]) time = std::min(time.value_or(records[r]->time), records[r]->time);
      if (!time || (first && first_time <= *time)) continue;
      first = r;
      first_time = *time;
    }
    std::vector<bool> seen(n);
    while (first && records[*first]) {
      seen[*first] = true;
      std::optional<size_t> next;
      for (const int cause : records[*first]->causes)
        if (!next && cause >= 0 && static_cast<size_t>(cause) < n && !seen[static_cast<size_t>(cause)])
          next = static_cast<size_t>(cause);
      if (!next) break;
      accuser_ = *first;
      first = next;
    }
    return first;
  }

  std::optional<FailureRecord> record_of(int rank) {
    Environment job;  // as start_all() names it
    job.run_id = run_id_;
    job.restart_count = restart_;
    try {
      const std::optional<std::string> text = records_.get_if_there(failure_key(job, rank));
      return text ? FailureRecord::from_text(*text) : std::nullopt;
    } catch (const DistError&) {
      return std::nullopt;
    }
  }

  bool is_stopped(const Rank& rank) const {
    ProcessInfo info;
    if (rank.status || !read_process(rank.pid, info)) return false;
    std::vector<ProcessInfo> all = descendants_of(rank.pid);
    all.push_back(info);
    return std::any_of(all.begin(), all.end(), [](const ProcessInfo& process) { return process.state == 'T'; });
  }

  // Says which rank failed first, then the others, in the order in which they ended; and ends the job.
  void blame() {
    blame_at_.reset();
    accuser_.reset();
    const std::optional<size_t> culprit = find_culprit();
    if (!culprit) return;
    const Rank& root = ranks_[*culprit];
    const bool stopped = is_stopped(root);
    if (!root.status && !stopped && !has_waited_) {  // it may be about to end
      has_waited_ = true;
      blame_at_ = after(kEnding);
      return;
    }
    std::vector<size_t> failed;
    for (size_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r].failed() && r != *culprit) failed.push_back(r);
    std::stable_sort(failed.begin(), failed.end(),
                     [this](size_t a, size_t b) { return ranks_[a].ended_at < ranks_[b].ended_at; });
    say(absl::StrCat(name_of_rank(*culprit),
                     stopped        ? " is stopped (SIGSTOP or SIGTSTP)"
                     : !root.status ? " does not take part any more"
                                    : how_it_ended(*root.status),
                     root.status && !root.failed() ? " while other ranks needed it" : "",
                     restart_ == options_.max_restarts ? "; the job ends"
                                                       : absl::StrCat("; all ranks start again (restart ", restart_ + 1,
                                                                      " of ", options_.max_restarts, ")")));
    has_blamed_ = true;
    if (root.failure) say(absl::StrCat("rank ", *culprit, " reports: ", root.failure->message));
    else if (accuser_ && !root.failed())
      say(absl::StrCat("rank ", *accuser_, " reports: ", ranks_[*accuser_].failure->message));
    for (const size_t r : failed) say(absl::StrCat(name_of_rank(r), how_it_ended(*ranks_[r].status)));
    const int status = *(root.failed() || failed.empty() ? root : ranks_[failed.front()]).status;
    code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    end_all(SIGTERM);
  }
  std::string name_of_rank(size_t r) const { return absl::StrCat("rank ", r, " (pid ", ranks_[r].pid, ")"); }
  static std::string how_it_ended(int status) {
    return WIFSIGNALED(status) ? absl::StrCat(" was killed by ", signal_text(WTERMSIG(status)))
                               : absl::StrCat(" exited with code ", WEXITSTATUS(status));
  }

  void pass_on(int signal) {
    dropping_ = true;
    is_asked_to_end_ = true;
    if (ending_ && kill_at_) {
      say(absl::StrCat(signal_text(signal), " once more; killing what is left"));
      return kill_all();
    }
    say(absl::StrCat("passing ", signal_text(signal), " on to the ranks"));
    blame_at_.reset();
    code_ = 128 + signal;
    end_all(signal);
  }

  void end_all(int signal) {
    ending_ = true;
    kill_at_ = after(options_.grace_period);
    guard_.signal(Guard::kEveryRank, signal);
  }

  void kill_all() {
    kill_at_.reset();
    for (size_t r = 0; r < ranks_.size(); ++r)
      if (!ranks_[r].status)
        say(absl::StrCat("rank ", r, " (pid ", ranks_[r].pid, ") did not end in time and is killed"));
    guard_.signal(Guard::kEveryRank, SIGKILL);
  }

  // No rank is left: ends the processes that they left behind, then delivers the rest of the output. A reader that is
  // merely slow is waited for; after a signal it is not.
  void end() {
    if (guard_.lost() && std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return !r.status; })) {
      say("the guard process was killed; the job ends");
      code_ = 128 + SIGKILL;
    }
    guard_.end_all();
    while (!guard_.lost()) {
      wait_for_something(std::nullopt);
      while (const int signal = signals_.take()) pass_on_late(signal);
      take_events();
    }
    for (Deadline until = after(kDrain); any_open() && std::chrono::steady_clock::now() < until;) {
      const bool waits_for_reader = !output_.has_room(STDOUT_FILENO) || !output_.has_room(STDERR_FILENO);
      if (wait_for_something(until) || (waits_for_reader && !dropping_)) until = after(kDrain);
      while (const int signal = signals_.take()) pass_on_late(signal);
    }
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (int s = 0; s < 2; ++s) end_line(r, s);
    for (const Deadline began = std::chrono::steady_clock::now(); !output_.is_empty();) {
      if (dropping_ && std::chrono::steady_clock::now() >= began + kDrain) break;
      wait_for_something(after(kDrain));
      while (const int signal = signals_.take()) pass_on_late(signal);
    }
  }
  // A signal when no rank is there to get it: the reader is waited for no longer.
  void pass_on_late(int signal) {
    dropping_ = true;
    is_asked_to_end_ = true;
    if (code_ == 0) code_ = 128 + signal;
  }

  const LaunchOptions& options_;
  const std::string run_id_;
  const int restart_;
  const int master_port_;
  Signals& signals_;
  SubreaperScope subreaper_;  // Note [Who ends whom]
  Guard guard_;               // before all threads: it forks
  const std::string token_;
  StoreServer store_;
  Store records_;
  OutputQueue output_;
  std::vector<Rank> ranks_;
  std::optional<Deadline> blame_at_, kill_at_;
  std::optional<size_t> accuser_;  // the rank whose record names the one to blame
  bool has_waited_ = false;        // for that one to end
  bool ending_ = false;
  bool has_blamed_ = false;
  bool is_asked_to_end_ = false;  // by a signal
  bool dropping_ = false;         // after a signal: output that has no room is dropped
  int code_ = 0;
};

}  // namespace

namespace {

// The value of --nproc-per-node.
int parse_process_count(const std::string& text) {
  int value = 0;
  if (absl::SimpleAtoi(text, &value) && value >= 1 && value <= kMostProcesses) return value;
  if (text == "cpu") return usable_cores();
  if (text != "gpu" && text != "auto")
    throw Error(absl::StrCat("--nproc-per-node=", text, ": must be a number from 1 to ", kMostProcesses,
                             ", or gpu, cpu or auto (a process for each GPU; for each core; for each GPU, or core if "
                             "there is none)"));
  std::string why_not;
  if (const int n = count_gpus(&why_not); n > 0) return n;
  if (text == "auto") return usable_cores();
  throw Error("--nproc-per-node=gpu: no GPU was found: " + why_not);
}

}  // namespace

LaunchOptions parse_launch_options(const std::vector<std::string>& args) {
  LaunchOptions options;
  bool has_count = false;
  size_t i = 0;
  for (; i < args.size() && args[i].starts_with("-"); ++i) {
    const size_t equals = args[i].find('=');
    const std::string name = absl::StrReplaceAll(args[i].substr(0, equals), {{"_", "-"}});
    const auto value_text = [&] {
      const bool inside = equals != std::string::npos;
      if (!inside && i + 1 == args.size()) throw Error(absl::StrCat(name, " needs a value"));
      return inside ? args[i].substr(equals + 1) : args[++i];
    };
    const auto number = [&](int least, int most) {
      const std::string text = value_text();
      int value = 0;
      if (!absl::SimpleAtoi(text, &value) || value < least || value > most)
        throw Error(absl::StrCat(name, "=", text, ": must be a number from ", least, " to ", most));
      return value;
    };
    if (name == "--") {
      ++i;
      break;
    }
    if (name == "--help" || name == "-h") return options.help = true, options;
    if (name == "--nproc-per-node") options.nproc_per_node = parse_process_count(value_text()), has_count = true;
    else if (name == "--max-restarts") options.max_restarts = number(0, 1000);
    else if (name == "--master-port") options.master_port = number(1, 65535);
    else if (name == "--grace-period") options.grace_period = Milliseconds(1000) * number(0, 3600);
    else if (name == "--no-prefix") options.prefix = false;
    else if (name == "--standalone") continue;  // torchrun's: one machine
    else if (name == "--nnodes") {
      if (const std::string n = value_text(); n != "1")
        throw Error(absl::StrCat("--nnodes=", n, ": rondorun starts the processes of one machine only (--nnodes=1)"));
    } else throw Error(absl::StrCat("unknown option ", args[i], " (--help lists all)"));
  }
  options.command.assign(args.begin() + static_cast<std::ptrdiff_t>(i), args.end());
  if (options.command.empty()) throw Error("no program to run (--help tells more)");
  if (!has_count) throw Error("--nproc-per-node is missing: how many processes to start");
  return options;
}

std::string launch_usage() {
  return R"(Starts the processes of a data parallel job on this machine.

Usage: rondorun --nproc-per-node N [options] program [arguments ...]

  --nproc-per-node N    processes to start, one rank each; gpu: one for each GPU, cpu: for each core, auto: for each GPU,
                        or core if there is none
  --max-restarts N      after a failure start all ranks again, at most N times (0); TORCHELASTIC_RESTART_COUNT tells them
  --master-port PORT    MASTER_PORT for programs with a store of their own; must be free (default: any free port)
  --grace-period S      seconds between asking the ranks to end and killing them (5)
  --no-prefix           lines of output as they are, without "[rank 1] "
  --nnodes 1            machines; more than one is not supported yet
  --help

Each process gets torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and
the others), RONDO_STORE and RONDO_STORE_TOKEN. OMP_NUM_THREADS and RONDO_NUM_THREADS are the cores divided by N, unless
they are set. Standard input is empty. A rank that fails ends all ranks, with every process that they started; then the
job ends, or starts again from the ranks' last checkpoint (--max-restarts). rondorun exits with the code of the rank that
failed first, or 128 + n for signal n.
)";
}

int launch(const LaunchOptions& options, const LaunchOutput& output) {
  Signals signals;  // before all threads: they take none of these signals either
  const std::string run_id = absl::BytesToHexString(random_bytes(8));
  for (int restart = 0;; ++restart) {
    LaunchedJob job(options, run_id, restart, signals, output);
    const int code = job.run();
    if (!job.may_start_again()) return code;
  }
}

}  // namespace rondo::dist
