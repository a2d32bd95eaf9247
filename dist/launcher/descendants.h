// The processes below one process, found in /proc, and how to end them.
//
// A process that calls become_subreaper() inherits every orphan below it. Orphans therefore stay below it, also after
// setsid() or a double fork, and this file finds them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "rondo/dist/transport/socket.h"

namespace rondo::dist {

struct ProcessInfo {
  pid_t pid = -1, parent = -1, group = -1;
  char state = '?';    // as in /proc/PID/stat: T is stopped, Z is dead but not reaped
  uint64_t start = 0;  // clock ticks after boot: tells a process from a later one with the same number
};

// False if there is no such process.
bool read_process(pid_t pid, ProcessInfo& info);
// Living descendants of `root`, without `root`, without the processes in `except` and without what is below those.
std::vector<ProcessInfo> descendants_of(pid_t root, const std::vector<pid_t>& except = {});
std::vector<pid_t> children_of(pid_t root);

// Sends SIGKILL to every descendant of this process, and reaps those that become its children, until none is left.
// False if some are left at the deadline: a process of another user, or one that waits inside the kernel.
// Children in `except` are neither killed nor reaped.
bool kill_descendants(Deadline deadline, const std::vector<pid_t>& except = {});

// Orphans below this process become its children while this object lives.
class SubreaperScope {
 public:
  SubreaperScope();
  ~SubreaperScope();
  SubreaperScope(const SubreaperScope&) = delete;
  SubreaperScope& operator=(const SubreaperScope&) = delete;

 private:
  int before_ = 0;
};

}  // namespace rondo::dist
