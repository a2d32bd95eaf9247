// What `rondorun` does: starts the processes of a job on this machine, passes on what they print, and ends them
// together.
//
// A rank that fails (another exit code than 0, or a signal) ends the job: the others get SIGTERM and, after the grace
// period, SIGKILL. SIGINT, SIGTERM and SIGHUP are passed on to the ranks, with the same end. Ranks that outlive the
// launcher are killed by the kernel, processes that a rank leaves behind by the launcher.
//
// For a program of its own, with one thread: launch() takes the signals of the calling thread, and reaps every child.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/socket.h"

namespace rondo::dist {

struct LaunchOptions {
  int nproc_per_node = 1;
  int master_port = 0;  // 0: one that is free
  Milliseconds grace_period{5'000};
  bool prefix = true;  // "[rank 1] " before each line
  bool help = false;
  std::vector<std::string> command;
};

// argv without the program's name. Throws Error with a message for the user.
LaunchOptions parse_launch_options(const std::vector<std::string>& args);
std::string launch_usage();

// Receives whole lines: what the ranks wrote to stdout (1) or stderr (2), and sentences of the launcher's own (2).
using LaunchOutput = std::function<void(int stream, std::string_view text)>;

// Returns when no rank is left. 0 if all ended well; else the code of the first rank that failed, 128 + n where it, or
// the launcher, got signal n. Throws Error if a process cannot be started, and DistError.
int launch(const LaunchOptions& options, const LaunchOutput& output);

}  // namespace rondo::dist
