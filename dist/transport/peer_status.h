// The status that each rank of a group shares with the others through the store: its progress, and whether it failed or
// left. When a collective fails, diagnose() finds from this status which rank is to blame.
//
// Ranks are numbered as in the job.
//
// Thread safety: like Store.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/transport/environment.h"
#include "rondo/dist/transport/store.h"

namespace rondo::dist {

class PeerStatus {
 public:
  // Collectives of host tensors and those of device tensors have separate numbers.
  enum class Lane : uint8_t { kHost, kDevice };

  // `prefix`: begins the group's keys. `members`: the group's ranks, numbered as in the job. If the connection ends
  // without leave(), the store publishes "its process ended".
  PeerStatus(Store& store, const Environment& environment, std::string prefix, std::vector<int> members);

  // Publishes the collective that this rank begins. Takes microseconds. Never throws.
  void begin(Lane lane, uint64_t number, std::string_view description) noexcept;
  // Publishes `sentence`, which other ranks report, and writes the record for the launcher. Only a rank's first failure
  // counts: later ones may name ranks that failed because of the first one, and two ranks would then name each other.
  // Never throws.
  void fail(const std::string& sentence, const std::vector<int>& causes) noexcept;
  // Publishes how this rank leaves, without waiting for an answer. Never throws.
  void leave(const char* how) noexcept;

  struct Diagnosis {
    std::string sentence;
    std::vector<int> causes;  // the ranks that `sentence` names
  };
  // Finds why collective `number`, described by `what`, did not complete: names the rank that has ended, has failed or
  // has not begun it. `late`: the timeout has passed. Looks for up to two seconds, because a socket may show a rank's
  // end before the store does. Never throws.
  Diagnosis diagnose(Lane lane, uint64_t number, std::string_view what, bool late, Milliseconds timeout,
                     std::string_view error);
  // True if the store knows that a rank has ended or failed, so collective `number` cannot complete. Never throws.
  bool has_lost_one(Lane lane, uint64_t number) noexcept;

  // For ranks that disagree: publishes what this rank calls, and reads what `rank` calls.
  void publish_call(std::string_view description);
  std::string call_of(int rank, Milliseconds timeout);

 private:
  enum class State { kUnknown, kGone, kFailed, kBehind, kThere };
  struct Peer {
    State state = State::kUnknown;
    bool is_silent = false;  // the rank has not published that its collective is late, too
    std::string text;
  };
  Peer look_at(Lane lane, int rank, uint64_t number);
  std::string key(const char* what, int rank) const;

  Store& store_;
  const Environment environment_;
  const std::string prefix_;
  const std::vector<int> members_;
  std::atomic<bool> has_failed_{false};
};

}  // namespace rondo::dist
