// The guard: a small process between the launcher and the ranks. It starts the ranks and reports how they end. When the
// job ends or the launcher dies (in any way), the guard ends every process below it.
//
//   launcher -- guard -- rank 0 -- its children
//                     `- rank 1
//
// Note [Who ends whom]. PR_SET_PDEATHSIG ends a rank with its parent, but a rank's own children do not inherit it. The
// guard is a subreaper, so orphans remain its descendants, also after setsid(). It notices the launcher's end because
// their connection closes. It has its own process group, so a signal to the launcher's group does not reach it. If the
// guard itself is killed, the ranks get SIGKILL by PR_SET_PDEATHSIG, and the launcher, a subreaper too, ends their
// orphans. Not covered: SIGKILL to launcher and guard at the same time (then only the ranks end), processes of another
// user (setuid), and processes that a service outside of the job starts on request.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rondo/dist/transport/socket.h"

namespace rondo::dist {

class Guard {
 public:
  struct Event {
    enum class Kind : uint8_t { kStarted, kCannotStart, kExited };
    Kind kind = Kind::kExited;
    int rank = 0;
    pid_t pid = -1;
    int status = 0;    // as waitpid() gives it; an errno for kCannotStart
    int64_t time = 0;  // microseconds since 1970
    Fd out, err;       // kStarted: the pipes of the rank's stdout and stderr
  };

  // Forks the guard. REQUIRES: no thread of this process holds a lock that the child needs, so call this before
  // starting threads. `mask`: the signals that the ranks block.
  explicit Guard(const sigset_t& mask);
  // Ends the guard and every process below it.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  // Asks the guard to start a rank; an event says whether it has started. `variables` ("NAME=value") are added to this
  // process's environment; they replace variables of the same name.
  void start(int rank, const std::vector<std::string>& command, const std::vector<std::string>& variables);
  // Sends a signal to the process group of a rank; kEveryRank: to all running ranks. A stopped rank is continued.
  void signal(int rank, int signal);
  static constexpr int kEveryRank = -1;
  // Kills every process below the guard, also those that left their rank's process group. The guard then ends.
  void end_all();

  // Returns a descriptor that is readable when there is an event.
  int fd() const { return connection_.get(); }
  // Returns the next event, or nullopt if none has arrived. Always nullopt once lost() is true.
  std::optional<Event> next();
  // True if the guard has ended.
  bool lost() const { return lost_; }

 private:
  void send(const std::string& order);

  Fd connection_;
  pid_t pid_ = -1;
  bool lost_ = false;
  std::vector<pid_t> strangers_;  // children that this process had before the guard
};

}  // namespace rondo::dist
