// rondorun as a test starts it: in the foreground through a shell, or in the background to send signals to.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/dist/transport/socket.h"
#include "rondo/tests/paths.h"

namespace rondo::test {

using dist::Milliseconds;

struct Finished {
  int code = -1;
  std::string out;  // stdout and stderr
  std::chrono::duration<double> took{};
};

// rondorun with these arguments, through a shell.
inline Finished rondorun(const std::string& arguments, const std::string& variables = "") {
  const std::string command = absl::StrCat("env -u OMP_NUM_THREADS -u RONDO_NUM_THREADS ", variables, " ",
                                           tests::kRondorun, " ", arguments, " 2>&1");
  Finished run;
  const auto began = std::chrono::steady_clock::now();
  std::FILE* pipe = ::popen(command.c_str(), "r");
  char buffer[4096];
  for (size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) run.out.append(buffer, n);
  const int status = ::pclose(pipe);
  run.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  run.took = std::chrono::steady_clock::now() - began;
  return run;
}

inline bool has(const Finished& run, const std::string& part) { return run.out.find(part) != std::string::npos; }
inline std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

// Asks until it is so, for a minute at most.
inline bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 3000; ++i, std::this_thread::sleep_for(Milliseconds(20)))
    if (condition()) return true;
  return false;
}
// True once process `pid` has ended. Whoever inherits an orphan may take its time to reap it.
inline bool ends_soon(pid_t pid) {
  return comes_true([pid] {
    return ::kill(pid, 0) != 0 || text_of(absl::StrCat("/proc/", pid, "/stat")).find(") Z ") != std::string::npos;
  });
}
// The number that a process writes into the file; -1 if none comes.
inline pid_t pid_in(const std::string& path) {
  comes_true([&path] { return text_of(path).ends_with("\n"); });
  const std::string text = text_of(path);
  return text.ends_with("\n") ? std::stoi(text) : -1;
}

// A launcher in the background. It is killed with the object.
class Launched {
 public:
  // `prepare` runs in the new process before rondorun starts there; its stdout and stderr go to `out`, a file or a
  // descriptor.
  Launched(
      const std::vector<std::string>& arguments, int out, const std::function<void()>& prepare = [] {}) {
    std::vector<char*> argv = {const_cast<char*>(tests::kRondorun)};
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    prepare();
    if (::dup2(out, 1) < 0 || ::dup2(1, 2) < 0) ::_exit(99);
    ::execv(argv[0], argv.data());
    ::_exit(98);
  }
  Launched(
      const std::vector<std::string>& arguments, const std::string& out, const std::function<void()>& prepare = [] {})
      : Launched(arguments, ::fileno(std::fopen(out.c_str(), "we")), prepare) {}
  ~Launched() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Launched(const Launched&) = delete;
  Launched& operator=(const Launched&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const { ::kill(pid_, number); }
  // As a shell says it: 128 + n for signal n. -1 if it does not end within a minute.
  int wait() {
    int status = 0;
    if (!comes_true([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; })) return -1;
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace rondo::test
