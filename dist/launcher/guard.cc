#include "rondo/dist/launcher/guard.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>

#include "absl/strings/str_cat.h"
#include "rondo/dist/launcher/descendants.h"
#include "rondo/dist/transport/store_protocol.h"

extern char** environ;

namespace rondo::dist {
namespace {

// How long processes that received SIGKILL may take to end.
constexpr Milliseconds kDying{10'000};
// The most bytes of an order: a rank's command line and variables.
constexpr size_t kLongestOrder = 1 << 20;

enum class Order : uint8_t { kStart, kSignal, kEndAll };

// An event, without its file descriptors, as it is sent over the connection.
struct Report {
  Guard::Event::Kind kind;
  int rank;
  pid_t pid;
  int status;
  int64_t time;
};

int64_t now_in_microseconds() {
  using std::chrono::duration_cast, std::chrono::microseconds, std::chrono::system_clock;
  return duration_cast<microseconds>(system_clock::now().time_since_epoch()).count();
}

struct Pipe {
  Fd read, write;
};
bool make_pipe(Pipe& pipe) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  pipe.read = Fd(ends[0]);
  pipe.write = Fd(ends[1]);
  return true;
}

// ---- In the guard's process
class GuardProcess {
 public:
  GuardProcess(Fd connection, const sigset_t& mask) : connection_(std::move(connection)), mask_(mask) {}

  // Returns when the launcher asks it to end, or has ended.
  void run() {
    ::setpgid(0, 0);
    ::prctl(PR_SET_NAME, "rondo-guard");
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::signal(SIGCHLD, SIG_DFL);  // if it is ignored, no exit status can be read
    sigset_t all, child;
    sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, nullptr);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    const Fd children(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
    while (children) {
      pollfd fds[] = {{connection_.get(), POLLIN, 0}, {children.get(), POLLIN, 0}};
      if (::poll(fds, 2, -1) < 0 && errno != EINTR) break;
      signalfd_siginfo info;
      while (::read(children.get(), &info, sizeof info) > 0) {
      }
      reap();
      if (fds[0].revents != 0 && !obey()) break;
    }
    kill_descendants(after(kDying));
  }

 private:
  bool obey() {
    order_.resize(kLongestOrder);
    const ssize_t n = ::recv(connection_.get(), order_.data(), order_.size(), 0);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return false;
    MessageReader fields(std::string_view(order_.data(), static_cast<size_t>(n)));
    fields.get<uint32_t>();  // the message's length
    const auto order = static_cast<Order>(fields.get<uint8_t>());
    const auto rank = fields.get<int32_t>();
    if (order == Order::kStart) {
      const auto texts = [&] {
        std::vector<std::string> all;
        for (auto count = fields.get<uint32_t>(); count > 0 && fields.ok(); --count) all.emplace_back(fields.text());
        return all;
      };
      const std::vector<std::string> command = texts(), variables = texts();
      start(rank, command, variables);
    } else if (order == Order::kSignal) {
      const auto number = fields.get<int32_t>();
      for (const auto& [pid, r] : ranks_) {
        if (rank != Guard::kEveryRank && rank != r) continue;
        ::kill(-pid, number);
        ::kill(-pid, SIGCONT);  // a stopped process would not handle the signal
      }
    }
    return order != Order::kEndAll;
  }

  void start(int rank, const std::vector<std::string>& command, const std::vector<std::string>& variables) {
    std::map<std::string, std::string> environment;
    const auto add = [&](std::string_view text) {
      if (const size_t equals = text.find('='); equals != text.npos)
        environment[std::string(text.substr(0, equals))] = text;
    };
    for (char** at = environ; *at != nullptr; ++at) add(*at);
    for (const std::string& variable : variables) add(variable);
    std::vector<char*> assignments, arguments;
    for (auto& [name, text] : environment) assignments.push_back(text.data());
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    assignments.push_back(nullptr);
    arguments.push_back(nullptr);

    Pipe out, err, failure;
    if (!make_pipe(out) || !make_pipe(err) || !make_pipe(failure)) return report_failed_start(rank, errno);
    const pid_t guard = ::getpid(), pid = ::fork();
    if (pid < 0) return report_failed_start(rank, errno);
    if (pid == 0) {
      ::setpgid(0, 0);  // so that Ctrl-C in a terminal reaches only the launcher, which passes it on once
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != guard) ::_exit(1);
      ::signal(SIGPIPE, SIG_DFL);
      ::sigprocmask(SIG_SETMASK, &mask_, nullptr);
      const int nothing = ::open("/dev/null", O_RDONLY);
      ::dup2(nothing, STDIN_FILENO);
      if (nothing > STDERR_FILENO) ::close(nothing);
      ::dup2(out.write.get(), STDOUT_FILENO);
      ::dup2(err.write.get(), STDERR_FILENO);
      ::execvpe(arguments[0], arguments.data(), assignments.data());
      const int error = errno;
      // If this write fails, too, the exit code says so.
      if (::write(failure.write.get(), &error, sizeof error) < 0) ::_exit(126);
      ::_exit(127);
    }
    ::setpgid(pid, pid);  // also in the parent: a signal may come before the child has run
    failure.write.reset();
    int error = 0;
    ssize_t n = 0;
    while ((n = ::read(failure.read.get(), &error, sizeof error)) < 0 && errno == EINTR) {
    }
    if (n == sizeof error) return report_failed_start(rank, error);
    ranks_[pid] = rank;
    const int streams[] = {out.read.get(), err.read.get()};
    report({Guard::Event::Kind::kStarted, rank, pid, 0, now_in_microseconds()}, streams);
  }

  void report_failed_start(int rank, int error) {
    report({Guard::Event::Kind::kCannotStart, rank, -1, error, now_in_microseconds()}, nullptr);
  }

  void reap() {
    for (;;) {
      siginfo_t info = {};
      // WNOWAIT: while the dead rank is not reaped, its process group id cannot be reused.
      if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
      const auto rank = ranks_.find(info.si_pid);
      const int64_t time = now_in_microseconds();
      int status = 0;
      if (rank != ranks_.end()) ::kill(-info.si_pid, SIGKILL);  // processes that it left behind in its group
      if (::waitpid(info.si_pid, &status, 0) != info.si_pid || rank == ranks_.end()) continue;
      report({Guard::Event::Kind::kExited, rank->second, rank->first, status, time}, nullptr);
      ranks_.erase(rank);
    }
  }

  // Sends a report to the launcher. `streams`: two descriptors to send along, or null.
  void report(const Report& report, const int* streams) {
    iovec bytes = {const_cast<Report*>(&report), sizeof report};
    msghdr message = {};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    if (streams != nullptr) {
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(2 * sizeof(int));
      ::memcpy(CMSG_DATA(header), streams, 2 * sizeof(int));
    }
    while (::sendmsg(connection_.get(), &message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
  }

  Fd connection_;
  const sigset_t mask_;
  std::map<pid_t, int> ranks_;  // the running ranks by process id
  std::string order_;
};

}  // namespace

// ---- In the launcher's process
Guard::Guard(const sigset_t& mask) : strangers_(children_of(::getpid())) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    throw Error(absl::StrCat("socketpair: ", ::strerror(errno)));
  connection_ = Fd(ends[0]);
  Fd theirs(ends[1]);
  const int room = kLongestOrder;
  ::setsockopt(connection_.get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
  pid_ = ::fork();
  if (pid_ < 0) throw Error(absl::StrCat("cannot start the guard process: ", ::strerror(errno)));
  if (pid_ == 0) {
    connection_.reset();
    GuardProcess(std::move(theirs), mask).run();
    ::_exit(0);
  }
}

Guard::~Guard() {
  if (!lost_) {
    end_all();
    while (!lost_) {
      pollfd ready = {connection_.get(), POLLIN, 0};
      ::poll(&ready, 1, -1);
      while (next()) {
      }
    }
  }
  // Kills something only if the guard was killed: then the ranks' processes have become descendants of this process.
  std::vector<pid_t> except = strangers_;
  except.push_back(pid_);
  kill_descendants(after(kDying), except);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guard::send(const std::string& order) {
  while (::send(connection_.get(), order.data(), order.size(), MSG_NOSIGNAL) < 0) {
    if (errno == EINTR) continue;
    if (errno == EMSGSIZE) throw Error(absl::StrCat("the command line is too long (", order.size(), " bytes)"));
    return;  // the guard has ended: next() will find out
  }
}

void Guard::start(int rank, const std::vector<std::string>& command, const std::vector<std::string>& variables) {
  MessageWriter order(static_cast<uint8_t>(Order::kStart));
  order.put(static_cast<int32_t>(rank));
  for (const std::vector<std::string>* texts : {&command, &variables}) {
    order.put(static_cast<uint32_t>(texts->size()));
    for (const std::string& text : *texts) order.text(text);
  }
  send(order.finish());
}

void Guard::signal(int rank, int signal) {
  send(MessageWriter(static_cast<uint8_t>(Order::kSignal))
           .put(static_cast<int32_t>(rank))
           .put(static_cast<int32_t>(signal))
           .finish());
}

void Guard::end_all() { send(MessageWriter(static_cast<uint8_t>(Order::kEndAll)).put(int32_t{kEveryRank}).finish()); }

std::optional<Guard::Event> Guard::next() {
  if (lost_) return std::nullopt;
  Report report;
  iovec bytes = {&report, sizeof report};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = ::recvmsg(connection_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (n != sizeof report) {
    lost_ = true;
    return std::nullopt;
  }
  Event event;
  event.kind = report.kind;
  event.rank = report.rank;
  event.pid = report.pid;
  event.status = report.status;
  event.time = report.time;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int streams[2] = {-1, -1};
    ::memcpy(streams, CMSG_DATA(header), std::min(sizeof streams, header->cmsg_len - CMSG_LEN(0)));
    event.out = Fd(streams[0]);
    event.err = Fd(streams[1]);
  }
  // This process had no descriptors left for the rank's streams.
  if (event.kind == Event::Kind::kStarted && (message.msg_flags & MSG_CTRUNC) != 0) {
    event.kind = Event::Kind::kCannotStart;
    event.status = EMFILE;
  }
  return event;
}

}  // namespace rondo::dist
