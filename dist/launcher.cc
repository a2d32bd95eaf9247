#include "rondo/dist/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "rondo/dist/store.h"

extern char** environ;

namespace rondo::dist {
namespace {

// Failures this close together have one cause: all of them are named.
constexpr Milliseconds kSettle{300};
// How long the output of processes that escaped us is waited for.
constexpr Milliseconds kDrain{500};
constexpr size_t kLongestLine = 1 << 16;

struct Pipe {
  Fd read, write;
};
Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(absl::StrCat("pipe: ", ::strerror(errno)));
  return {Fd(ends[0]), Fd(ends[1])};
}

std::string signal_text(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return absl::StrCat("signal ", signal, name == nullptr ? "" : absl::StrCat(" (SIG", name, ")"));
}

int usable_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

// A port that nobody has now: for programs that open a store of their own there, as PyTorch's.
int free_port() { return port_of(listen_on("127.0.0.1", 0)); }

using Variables = std::map<std::string, std::string>;

Variables own_variables() {
  Variables variables;
  for (char** at = environ; *at != nullptr; ++at) {
    const std::string_view text = *at;
    const size_t equals = text.find('=');
    if (equals != text.npos) variables[std::string(text.substr(0, equals))] = text.substr(equals + 1);
  }
  return variables;
}

// Takes SIGCHLD and what asks a program to end from this thread, and from threads that it starts.
class Signals {
 public:
  Signals() {
    sigset_t taken;
    sigemptyset(&taken);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&taken, signal);
    pthread_sigmask(SIG_BLOCK, &taken, &before_);
    fd_ = Fd(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!fd_) throw Error(absl::StrCat("signalfd: ", ::strerror(errno)));
  }
  ~Signals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }
  // The next one that came, or 0.
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
  std::string lines[2];  // what has come of the line that is not complete
  std::optional<int> status;
};

class Job {
 public:
  Job(const LaunchOptions& options, const LaunchOutput& output)
      : options_(options),
        output_(output),
        store_("127.0.0.1", 0),
        ranks_(static_cast<size_t>(options.nproc_per_node)) {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  ~Job() {
    // Only where starting the job has failed.
    for (const Rank& rank : ranks_)
      if (rank.pid > 0 && !rank.status) {
        ::kill(-rank.pid, SIGKILL);
        ::waitpid(rank.pid, nullptr, 0);
      }
  }

  int run() {
    start_all();
    while (std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return !r.status; })) {
      wait_for_something(next_deadline());
      while (const int signal = signals_.take())
        if (signal != SIGCHLD) pass_on(signal);
      reap();
      const auto now = std::chrono::steady_clock::now();
      if (blame_at_ && now >= *blame_at_) blame();
      if (kill_at_ && now >= *kill_at_) kill_all();
    }
    if (blame_at_) blame();
    for (const Deadline until = after(kDrain); any_open() && std::chrono::steady_clock::now() < until;)
      wait_for_something(until);
    for (size_t r = 0; r < ranks_.size(); ++r)
      for (int s = 0; s < 2; ++s) end_line(r, s);
    while (::waitpid(-1, nullptr, WNOHANG) > 0) {
    }
    return code_;
  }

 private:
  void say(std::string_view text) { output_(STDERR_FILENO, absl::StrCat("rondorun: ", std::string(text), "\n")); }

  // ---- Start
  void start_all() {
    Variables variables = own_variables();
    const int n = options_.nproc_per_node;
    const std::string world = absl::StrCat(n);
    variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = variables["ROLE_WORLD_SIZE"] = world;
    variables["GROUP_RANK"] = "0";
    variables["GROUP_WORLD_SIZE"] = "1";
    variables["ROLE_NAME"] = "default";
    variables["MASTER_ADDR"] = "127.0.0.1";
    variables["MASTER_PORT"] = absl::StrCat(options_.master_port > 0 ? options_.master_port : free_port());
    variables["TORCHELASTIC_RESTART_COUNT"] = variables["TORCHELASTIC_MAX_RESTARTS"] = "0";
    variables["TORCHELASTIC_RUN_ID"] = "none";
    variables["RONDO_STORE"] = absl::StrCat("127.0.0.1:", store_.port());
    // Each rank its share of the cores, unless the user has decided.
    variables.try_emplace("OMP_NUM_THREADS", absl::StrCat(std::max(1, usable_cores() / n)));
    variables.try_emplace("RONDO_NUM_THREADS", variables["OMP_NUM_THREADS"]);
    for (int r = 0; r < n; ++r) {
      variables["RANK"] = variables["LOCAL_RANK"] = variables["ROLE_RANK"] = absl::StrCat(r);
      start(r, variables);
    }
  }

  void start(int r, const Variables& variables) {
    std::vector<std::string> pairs;
    for (const auto& [name, value] : variables) pairs.push_back(absl::StrCat(name, "=", value));
    const auto pointers = [](const std::vector<std::string>& texts) {
      std::vector<char*> all;
      for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
      all.push_back(nullptr);
      return all;
    };
    const std::vector<char*> environment = pointers(pairs), arguments = pointers(options_.command);
    Pipe out = make_pipe(), err = make_pipe(), failure = make_pipe();
    const pid_t launcher = ::getpid(), pid = ::fork();
    if (pid < 0) throw Error(absl::StrCat("cannot start rank ", r, ": ", ::strerror(errno)));
    if (pid == 0) {
      // The store's thread may hold any lock: only system calls from here on.
      ::setpgid(0, 0);  // a terminal's Ctrl-C goes to the launcher alone, which passes it on once
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != launcher) ::_exit(1);
      ::signal(SIGPIPE, SIG_DFL);
      ::sigprocmask(SIG_SETMASK, &signals_.before(), nullptr);
      const int nothing = ::open("/dev/null", O_RDONLY);
      ::dup2(nothing, STDIN_FILENO);
      if (nothing > STDERR_FILENO) ::close(nothing);
      ::dup2(out.write.get(), STDOUT_FILENO);
      ::dup2(err.write.get(), STDERR_FILENO);
      ::execvpe(arguments[0], arguments.data(), environment.data());
      const int error = errno;
      // Nothing helps if this fails, too: the exit code tells.
      if (::write(failure.write.get(), &error, sizeof error) < 0) ::_exit(126);
      ::_exit(127);
    }
    Rank& rank = ranks_[static_cast<size_t>(r)];
    rank.pid = pid;
    ::setpgid(pid, pid);  // here as well: it may not have run yet when it is to be killed
    failure.write.reset();
    int error = 0;
    ssize_t n = 0;
    while ((n = ::read(failure.read.get(), &error, sizeof error)) < 0 && errno == EINTR) {
    }
    if (n == sizeof error) throw Error(absl::StrCat("cannot run ", options_.command[0], ": ", ::strerror(error)));
    rank.streams[0] = std::move(out.read);
    rank.streams[1] = std::move(err.read);
    for (const Fd& stream : rank.streams) ::fcntl(stream.get(), F_SETFL, O_NONBLOCK);
  }

  // ---- While it runs
  std::optional<Deadline> next_deadline() const {
    if (blame_at_ && kill_at_) return std::min(*blame_at_, *kill_at_);
    return blame_at_ ? blame_at_ : kill_at_;
  }

  bool any_open() const {
    return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.streams[0] || r.streams[1]; });
  }

  // Until a signal, output or the deadline comes. Passes output on.
  void wait_for_something(std::optional<Deadline> deadline) {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    for (const Rank& rank : ranks_)
      for (const Fd& stream : rank.streams) fds.push_back({stream.get(), POLLIN, 0});
    if (::poll(fds.data(), fds.size(), deadline ? milliseconds_until(*deadline) : -1) <= 0) return;
    for (size_t i = 1; i < fds.size(); ++i)
      if (fds[i].revents != 0) read_from((i - 1) / 2, static_cast<int>((i - 1) % 2));
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
    output_(s == 0 ? STDOUT_FILENO : STDERR_FILENO,
            options_.prefix ? absl::StrCat("[rank ", r, "] ", std::string(line), "\n") : std::string(line) + "\n");
  }

  // ---- Its end
  void reap() {
    for (;;) {
      siginfo_t info = {};
      // Looks before it takes: while the dead rank is there, its process group cannot be another's.
      if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
      const auto rank = std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& r) { return r.pid == info.si_pid; });
      int status = 0;
      if (rank != ranks_.end()) ::kill(-rank->pid, SIGKILL);  // what it left behind
      if (::waitpid(info.si_pid, &status, 0) != info.si_pid || rank == ranks_.end()) continue;
      rank->status = status;
      const bool failed = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
      if (!failed || ending_) continue;
      failed_.push_back(static_cast<size_t>(rank - ranks_.begin()));
      if (!blame_at_) blame_at_ = after(kSettle);
    }
  }

  // Says who failed, and ends the others.
  void blame() {
    blame_at_.reset();
    // A signal is a cause; an exit code may be the consequence of another rank's end.
    const auto signalled = [this](size_t r) { return WIFSIGNALED(*ranks_[r].status); };
    std::stable_partition(failed_.begin(), failed_.end(), signalled);
    for (const size_t r : failed_) {
      const int status = *ranks_[r].status;
      say(absl::StrCat("rank ", r, " (pid ", ranks_[r].pid, ") ",
                       signalled(r) ? absl::StrCat("was killed by ", signal_text(WTERMSIG(status)))
                                    : absl::StrCat("exited with code ", WEXITSTATUS(status)),
                       r == failed_.front() ? "; the job ends" : ""));
    }
    const int status = *ranks_[failed_.front()].status;
    code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    end_all(SIGTERM);
  }

  void pass_on(int signal) {
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
    for (const Rank& rank : ranks_)
      if (!rank.status) {
        ::kill(-rank.pid, signal);
        ::kill(-rank.pid, SIGCONT);  // one that was stopped would not hear it
      }
  }

  void kill_all() {
    kill_at_.reset();
    for (size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].status) continue;
      say(absl::StrCat("rank ", r, " (pid ", ranks_[r].pid, ") did not end in time and is killed"));
      ::kill(-ranks_[r].pid, SIGKILL);
    }
  }

  const LaunchOptions& options_;
  const LaunchOutput& output_;
  Signals signals_;  // before the store: its thread takes none either
  StoreServer store_;
  std::vector<Rank> ranks_;
  std::vector<size_t> failed_;
  std::optional<Deadline> blame_at_, kill_at_;
  bool ending_ = false;
  int code_ = 0;
};

}  // namespace

LaunchOptions parse_launch_options(const std::vector<std::string>& args) {
  LaunchOptions options;
  bool has_count = false;
  size_t i = 0;
  for (; i < args.size() && args[i].starts_with("-"); ++i) {
    const size_t equals = args[i].find('=');
    const std::string name = absl::StrReplaceAll(args[i].substr(0, equals), {{"_", "-"}});
    const auto number = [&](int least, int most) {
      const bool inside = equals != std::string::npos;
      if (!inside && i + 1 == args.size()) throw Error(absl::StrCat(name, " needs a value"));
      const std::string text = inside ? args[i].substr(equals + 1) : args[++i];
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
    if (name == "--nproc-per-node") options.nproc_per_node = number(1, 1024), has_count = true;
    else if (name == "--master-port") options.master_port = number(1, 65535);
    else if (name == "--grace-period") options.grace_period = Milliseconds(1000) * number(0, 3600);
    else if (name == "--no-prefix") options.prefix = false;
    else if (name == "--standalone") continue;  // torchrun's: one machine
    else if (name == "--nnodes") number(1, 1);
    else throw Error(absl::StrCat("unknown option ", args[i], " (--help lists all)"));
  }
  options.command.assign(args.begin() + static_cast<std::ptrdiff_t>(i), args.end());
  if (options.command.empty()) throw Error("no program to run (--help tells more)");
  if (!has_count) throw Error("--nproc-per-node is missing: how many processes to start");
  return options;
}

std::string launch_usage() {
  return R"(Starts the processes of a data parallel job on this machine.

Usage: rondorun --nproc-per-node N [options] program [arguments ...]

  --nproc-per-node N    processes to start, one rank each
  --master-port PORT    MASTER_PORT for programs with a store of their own; a free one if not given
  --grace-period S      seconds between asking the ranks to end and killing them (5)
  --no-prefix           lines of output as they are, without "[rank 1] "
  --nnodes 1            machines; more than one is not supported yet
  --help

Each process finds torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the
others, besides RONDO_STORE. OMP_NUM_THREADS and RONDO_NUM_THREADS are the cores divided by N, unless they are set.
Standard input is empty. A rank that fails ends the job; its exit code, or 128 + n for signal n, is that of rondorun.
)";
}

int launch(const LaunchOptions& options, const LaunchOutput& output) { return Job(options, output).run(); }

}  // namespace rondo::dist
