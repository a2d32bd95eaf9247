// The launcher behind `rondorun`: it starts the processes of a job on this machine, forwards their output, and
// ends them together.
//
// A rank fails if it exits with a code other than 0 or is killed by a signal. Its failure ends the job. The other ranks
// get SIGTERM and, after the grace period, SIGKILL. SIGINT, SIGTERM and SIGHUP are passed on to the ranks, and the job
// ends the same way. A signal that the launcher inherited as ignored stays ignored (nohup).
//
// With max_restarts, the job does not end with a failed rank: when all processes have ended, all ranks start again, at
// most max_restarts times. They see TORCHELASTIC_RESTART_COUNT (Environment::restart_count) and continue from their
// last checkpoint, if they write one. A signal to the launcher, and a program that cannot be started, cause no restart.
//
// No process of the job outlives the launcher, even if the launcher is killed: guard.h, Note [Who ends whom].
//
// For single-threaded programs: launch() forks, and blocks the signals above while it runs.
#pragma once

#include <functional>
#include <string_view>

#include "rondo/dist/launcher/launch_options.h"

namespace rondo::dist {

// Receives whole lines: what the ranks wrote to stdout (1) or stderr (2), and the launcher's own messages (2). Called
// from two threads, one for each stream. May block; signals still end the job. The function's captures must stay valid
// even if a call never returns.
using LaunchOutput = std::function<void(int stream, std::string_view text)>;

// Returns when all processes of the job have ended: 0 if every rank exited with 0, otherwise the exit code of the rank
// that failed first (in the last attempt). For a rank, or a launcher, that received signal n, the code is 128 + n.
// Throws Error if a process cannot be started or the master port is in use. Throws DistError.
int launch(const LaunchOptions& options, const LaunchOutput& output);

}  // namespace rondo::dist
