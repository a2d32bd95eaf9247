// The status that each rank of a group tells the others through the store: how far it is, whether it failed or left.
// When a collective fails, this says which rank is to blame.
//
// Ranks are those of the job here.
//
// Thread safety: as Store.
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
  // Collectives of host tensors and those of device tensors are numbered apart.
  enum class Lane : uint8_t { kHost, kDevice };

  // `prefix`: of the group's keys. `members`: the ranks, in the job, that the group consists of. The store publishes
  // "its process ended" when the connection ends without leave().
  PeerStatus(Store& store, const Environment& environment, std::string prefix, std::vector<int> members);

  // The collective that this rank begins. Costs microseconds; never throws.
  void begin(Lane lane, uint64_t number, std::string_view description) noexcept;
  // The sentence that other ranks will report; and the record for the launcher. Only a rank's first failure counts:
  // later ones may name ranks that failed because of it, and then two ranks would name each other. Never throws.
  void fail(const std::string& sentence, const std::vector<int>& causes) noexcept;
  // Waits for no answer. Never throws.
  void leave(const char* how) noexcept;

  struct Diagnosis {
    std::string sentence;
    std::vector<int> causes;  // the ranks that it names
  };
  // Why collective `number`, which `what` describes, did not complete: the rank that has ended, has failed or has not
  // come. `late`: the timeout is over. Looks for two seconds, as a socket may tell of a rank's end before the store
  // does. Never throws.
  Diagnosis diagnose(Lane lane, uint64_t number, std::string_view what, bool late, Milliseconds timeout,
                     std::string_view error);
  // True if the store knows of a rank that has ended or failed: `number` cannot complete. Never throws.
  bool has_lost_one(Lane lane, uint64_t number) noexcept;

  // For ranks that disagree: publishes what this rank calls, and reads what `rank` calls.
  void publish_call(std::string_view description);
  std::string call_of(int rank, Milliseconds timeout);

 private:
  enum class State { kUnknown, kGone, kFailed, kBehind, kThere };
  struct Peer {
    State state = State::kUnknown;
    bool is_silent = false;  // has not said that it is late, too
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
