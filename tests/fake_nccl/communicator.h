// One rank of a communicator, and what its collectives do on a stream of the fake driver.
//
// A collective is two items of its stream. The first one sends: it copies the rank's data to where the others read it,
// and fills what will be received with 0xFF. It runs when the stream comes to it and the communicator's collective
// before it has ended. The second one receives: it runs once all ranks have sent. What a program sees of a result
// before the end, or after an abort, is poison.
//
// Communicators live until the driver is reset, so that a use after they were destroyed is seen.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "rondo/tests/fake_cuda/driver_call.h"
#include "rondo/tests/fake_nccl/clique.h"
#include "rondo/tests/fake_nccl/collective.h"
#include "rondo/tests/fake_nccl/faults.h"

namespace rondo::fake_nccl {

class Communicator {
 public:
  enum class Life { kInUse, kFinalized, kDestroyed, kAborted };
  // Buffers and stream of one collective.
  struct Call {
    Collective collective;
    const void* send = nullptr;
    void* receive = nullptr;
    cuda::StreamPtr stream = nullptr;
  };

  Communicator(cuda::OpaqueContext* context, int ranks, int rank, bool blocking);
  // Takes its seat, or fails from now on.
  void join(const MeetingPlace& place);
  // Takes its seat once all ranks of `parent` have said their color. `split`: the number of this split of the parent.
  void join_split(Communicator& parent, uint64_t split, int color);

  // ---- What ncclCommGetAsyncError says. Asking lets time pass: a communicator comes up, calls reach their streams.
  Status state();
  // The same without time passing.
  Status state_now() const;
  bool is_up() const { return up_; }
  // All collectives have ended, and all ranks in other processes have finalized, too.
  bool is_quiet() const;

  void finalize();
  void destroy();
  void abort();
  // Puts calls into their streams, at once or a little later. The state then is kInProgress.
  Status enqueue(const std::vector<Call>& calls);
  // What is wrong with a call; empty: nothing.
  std::string misuse_of(const Call& call) const;
  // The number of the next split, and what this rank says in it.
  uint64_t say_color(int color, int key);

  Life life() const { return life_; }
  bool blocking() const { return blocking_; }
  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  int device() const { return context_->device; }
  cuda::OpaqueContext& context() const { return *context_; }
  uint64_t nonce() const { return clique_ == nullptr ? 0 : clique_->nonce(); }
  const std::string& last_error() const { return last_error_; }
  Clique* clique() const { return clique_.get(); }
  // The thread of its last collective outside of a group.
  std::optional<std::thread::id> caller;

 private:
  struct Operation {
    Call call;
    uint64_t number = 0;       // of the communicator
    int64_t process_wide = 0;  // of the process
    bool sent = false, ends_early = false;
    std::optional<std::chrono::steady_clock::time_point> late_until;
  };
  void fail(Status error, const std::string& what);
  void leave(Life life);
  void come_up();
  void advance_split();
  // What a fault says about this moment. True: go on.
  bool passes_fault(int64_t number, std::optional<std::chrono::steady_clock::time_point>* late_until);
  Status push(const Call& call);
  bool may_send(Operation& operation);
  void send(Operation& operation);
  bool may_receive(const Operation& operation);
  void note_if_gone(int rank);
  void receive(const Operation& operation);
  bool fits(uint64_t number) const;

  cuda::OpaqueContext* context_;
  int ranks_, rank_;  // of a split: once it is known
  const bool blocking_;
  Life life_ = Life::kInUse;
  bool up_ = false;
  int comes_up_in_;  // so many questions, once all are there
  Status error_ = Status::kSuccess;
  std::string last_error_;
  std::unique_ptr<Clique> clique_;
  std::optional<std::chrono::steady_clock::time_point> late_until_;
  uint64_t issued_ = 0, ended_ = 0;
  std::vector<Call> waiting_;  // calls that have not reached their streams
  int calls_reach_in_ = 0;
  struct Awaited {
    Communicator* parent;
    uint64_t number;
    int color;
  };
  std::optional<Awaited> split_;
  std::optional<MeetingPlace> place_;  // where it has yet to go
};

// All communicators since the last reset; the driver's lock is held.
class Communicators {
 public:
  static Communicators& instance();
  Communicator* make(cuda::OpaqueContext* context, int ranks, int rank, bool blocking);
  bool knows(const Communicator* communicator) const;
  // Another rank of the same communicator whose last collective this thread has called.
  const Communicator* other_of_this_thread(const Communicator& communicator) const;
  const Behaviour& behaviour();
  int64_t next_collective() { return collectives_++; }

 private:
  std::vector<std::unique_ptr<Communicator>> all_;
  std::optional<Behaviour> behaviour_;
  int64_t collectives_ = 0;
};

}  // namespace rondo::fake_nccl
