// The processes below one process, found in /proc, and how to end them.
//
// A process that calls become_subreaper() becomes the parent of every orphan among its descendants. Orphans therefore
// remain its descendants, also after setsid() or a double fork, and this file finds them.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "rondo/dist/transport/socket.h"

namespace rondo::dist {

struct ProcessInfo {
  pid_t pid = -1, parent = -1, group = -1;
  char state = '?';    // as in /proc/PID/stat: T is stopped, Z is dead but not reaped
  uint64_t start = 0;  // clock ticks after boot: with `pid`, identifies a process even if its number is reused
};

// Reads the data of a process. Returns false if there is no such process.
bool read_process(pid_t pid, ProcessInfo& info);
// Returns the living descendants of `root`. Not included: `root` itself, the processes in `except`, and the descendants
// of these.
std::vector<ProcessInfo> descendants_of(pid_t root, const std::vector<pid_t>& except = {});
std::vector<pid_t> children_of(pid_t root);

// Sends SIGKILL to every descendant of this process, and reaps those that are or become its children, until none is
// left. Returns false if some are left at the deadline, such as a process of another user, or one that is blocked in
// the kernel. Children in `except` are neither killed nor reaped.
bool kill_descendants(Deadline deadline, const std::vector<pid_t>& except = {});

// While this object lives, orphaned descendants of this process become its children.
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
