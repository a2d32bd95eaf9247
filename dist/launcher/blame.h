// Which rank made a job fail.
//
// Note [Who is to blame]. When one rank fails, the others fail because of it, and may even end before it: with an exit
// code, an uncaught ConnectionError (SIGABRT), or a shell's code for a signal. So neither how a rank ended nor when it
// ended decides alone. A rank whose process group fails writes a FailureRecord: the time, and the ranks that caused the
// failure. The launcher starts at the earliest failure, by record or by exit, and follows the causes until it finds a
// rank whose failure names no other rank. That rank may have exited with 0, or be stopped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <span>

#include "rondo/dist/transport/failure_record.h"

namespace rondo::dist {

struct LaunchedRank {
  pid_t pid = -1;
  std::optional<int> status;  // as waitpid() gives it; nullopt: the rank has not ended
  int64_t ended_at = 0;       // microseconds since 1970
  std::optional<FailureRecord> failure;
  bool failed() const;  // true if the rank has ended, but not with exit code 0
};

struct Culprit {
  size_t rank = 0;
  std::optional<size_t> accuser = {};  // the rank whose record names the culprit
};
// Returns nullopt if no rank has failed.
std::optional<Culprit> find_culprit(std::span<const LaunchedRank> ranks);

}  // namespace rondo::dist
