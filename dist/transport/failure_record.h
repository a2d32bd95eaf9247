// Why a rank failed: a record that the rank writes into the job's store before it ends. The launcher reads these
// records to name the rank that failed first, not one that failed because of it. Note [Who is to blame] in blame.h.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/transport/environment.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

class Store;

struct FailureRecord {
  int64_t time = 0;         // microseconds since 1970
  std::vector<int> causes;  // the ranks that made this rank fail; empty: it failed by itself
  std::string message;

  static FailureRecord now(std::vector<int> causes, std::string message);
  std::string to_text() const;
  // Returns nullopt if the text is not a record.
  static std::optional<FailureRecord> from_text(std::string_view text);
};

// Returns the prefix of the store's keys for this start of the job. A restart has another prefix, so it never reads old
// keys.
std::string job_prefix(const Environment& environment);
std::string failure_key(const Environment& environment, int rank);
// Writes the record of this process's rank.
void write_failure(Store& store, const Environment& environment, const FailureRecord& record) noexcept;

// Runs `body` and returns what it returns. If `body` throws, writes the error's text into the job's store, for the
// launcher to report, and rethrows. Without a launcher, only runs `body`.
//   int main(int argc, char** argv) { return dist::record_errors([&] { return train(argc, argv); }); }
int record_errors(const std::function<int()>& body);

}  // namespace rondo::dist
#pragma GCC visibility pop
