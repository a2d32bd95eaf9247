#include "rondo/dist/launcher/blame.h"

#include <sys/wait.h>

#include <algorithm>
#include <vector>

namespace rondo::dist {

bool LaunchedRank::failed() const { return status && (!WIFEXITED(*status) || WEXITSTATUS(*status) != 0); }

std::optional<Culprit> find_culprit(std::span<const LaunchedRank> ranks) {
  const size_t n = ranks.size();
  std::optional<Culprit> culprit;
  int64_t first_time = 0;
  for (size_t r = 0; r < n; ++r) {
    std::optional<int64_t> time;
    if (ranks[r].failed()) time = ranks[r].ended_at;
    if (const auto& record = ranks[r].failure) time = std::min(time.value_or(record->time), record->time);
    if (!time || (culprit && first_time <= *time)) continue;
    culprit = {.rank = r};
    first_time = *time;
  }
  std::vector<bool> seen(n);
  while (culprit && ranks[culprit->rank].failure) {
    seen[culprit->rank] = true;
    std::optional<size_t> next;
    for (const int cause : ranks[culprit->rank].failure->causes)
      if (!next && cause >= 0 && static_cast<size_t>(cause) < n && !seen[static_cast<size_t>(cause)])
        next = static_cast<size_t>(cause);
    if (!next) break;
    culprit = {.rank = *next, .accuser = culprit->rank};
  }
  return culprit;
}

}  // namespace rondo::dist
