// The launcher behind `rondorun`: it starts the processes of a job on this machine, passes on what they print, and ends
// them together.
//
// A rank that fails ends the job: it exits with another code than 0, or a signal kills it. The other ranks get SIGTERM
// and, after the grace period, SIGKILL. SIGINT, SIGTERM and SIGHUP are passed on to the ranks, with the same end. A
// signal that the launcher inherited as ignored stays ignored (nohup).
//
// With max_restarts a rank that fails does not end the job: when no process of it is left, all ranks start again, at
// most so many times. They see TORCHELASTIC_RESTART_COUNT (Environment::restart_count) and go on from their last
// checkpoint, if they write one. A signal to the launcher, and a program that cannot be started, restart nothing.
//
// No process of the job outlives it, also if the launcher is killed: guard.h, Note [Who ends whom].
//
// For a program of its own, with one thread: launch() forks, and blocks the signals above while it runs.
#pragma once

#include <functional>
#include <string_view>

#include "rondo/dist/launcher/launch_options.h"

namespace rondo::dist {

// Receives whole lines: what the ranks wrote to stdout (1) or stderr (2), and the launcher's own messages (2). Called
// from two threads, one for each stream. May block: signals still end the job. Must outlive a call that does not
// return.
using LaunchOutput = std::function<void(int stream, std::string_view text)>;

// Returns when no process of the job is left. Returns 0 if every rank exited with 0, otherwise the exit code of the
// rank that failed first (in the last attempt). For a rank, or a launcher, that got signal n the code is 128 + n.
// Throws Error if a process cannot be started or the master port is in use, and DistError.
int launch(const LaunchOptions& options, const LaunchOutput& output);

}  // namespace rondo::dist
