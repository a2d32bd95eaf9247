#include "rondo/dist/launcher/descendants.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <unordered_set>

namespace rondo::dist {
namespace {

std::vector<ProcessInfo> all_processes() {
  std::vector<ProcessInfo> all;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), ::closedir);
  if (!folder) return all;
  while (const dirent* entry = ::readdir(folder.get())) {
    ProcessInfo info;
    if (const int pid = std::atoi(entry->d_name); pid > 0 && read_process(pid, info)) all.push_back(info);
  }
  return all;
}

// Sends SIGKILL to `process`, unless its number now belongs to another process. The pidfd is opened before this check:
// a pidfd always refers to the same process.
void kill_exactly(const ProcessInfo& process) {
  const Fd handle(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  ProcessInfo now;
  if (!read_process(process.pid, now) || now.start != process.start) return;
  if (handle) ::syscall(SYS_pidfd_send_signal, handle.get(), SIGKILL, nullptr, 0);
  else ::kill(process.pid, SIGKILL);  // Linux before 5.3
}

void reap_children(const std::vector<pid_t>& except) {
  for (const pid_t child : children_of(::getpid()))
    if (std::find(except.begin(), except.end(), child) == except.end()) ::waitpid(child, nullptr, WNOHANG);
}

}  // namespace

bool read_process(pid_t pid, ProcessInfo& info) {
  char path[32], text[1024];
  std::snprintf(path, sizeof path, "/proc/%d/stat", static_cast<int>(pid));
  const Fd file(::open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t n = file ? ::read(file.get(), text, sizeof text - 1) : -1;
  if (n <= 0) return false;
  text[n] = '\0';
  // PID (NAME) STATE PPID PGRP ...; NAME may contain anything, also parentheses. The start time is the 20th field after
  // it.
  const char* at = std::strrchr(text, ')');
  int parent = 0, group = 0;
  unsigned long long start = 0;
  if (at == nullptr ||
      std::sscanf(at + 1, " %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &info.state,
                  &parent, &group, &start) != 4)
    return false;
  info.pid = pid;
  info.parent = parent;
  info.group = group;
  info.start = start;
  return true;
}

std::vector<ProcessInfo> descendants_of(pid_t root, const std::vector<pid_t>& except) {
  std::unordered_map<pid_t, std::vector<ProcessInfo>> children;
  for (const ProcessInfo& process : all_processes()) children[process.parent].push_back(process);
  const std::unordered_set<pid_t> skipped(except.begin(), except.end());
  std::vector<ProcessInfo> found;
  std::vector<pid_t> open = {root};
  while (!open.empty()) {
    const pid_t parent = open.back();
    open.pop_back();
    for (const ProcessInfo& child : children[parent]) {
      if (skipped.contains(child.pid)) continue;
      open.push_back(child.pid);
      if (child.state != 'Z' && child.state != 'X') found.push_back(child);
    }
  }
  return found;
}

std::vector<pid_t> children_of(pid_t root) {
  std::vector<pid_t> children;
  for (const ProcessInfo& process : all_processes())
    if (process.parent == root) children.push_back(process.pid);
  return children;
}

bool kill_descendants(Deadline deadline, const std::vector<pid_t>& except) {
  for (auto pause = Milliseconds(1);; pause = std::min(2 * pause, Milliseconds(50))) {
    const std::vector<ProcessInfo> left = descendants_of(::getpid(), except);
    for (const ProcessInfo& process : left) kill_exactly(process);
    reap_children(except);
    if (left.empty()) return true;
    if (std::chrono::steady_clock::now() >= deadline) return false;
    ::poll(nullptr, 0, static_cast<int>(pause.count()));
  }
}

SubreaperScope::SubreaperScope() {
  if (::prctl(PR_GET_CHILD_SUBREAPER, &before_) != 0) before_ = 0;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}
SubreaperScope::~SubreaperScope() { ::prctl(PR_SET_CHILD_SUBREAPER, static_cast<unsigned long>(before_)); }

}  // namespace rondo::dist
