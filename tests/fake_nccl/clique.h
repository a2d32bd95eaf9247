// Where the ranks of a communicator meet, whichever processes they are in: a block of shared memory that says how far
// each rank is, and two buffers of each rank with what it sends.
//
// The memory has no name: it belongs to a process (memfd), and others open it through /proc/PID/fd. The unique id says
// which process and file. So nothing is left behind by a process that is killed.
//
// Note [Two buffers]. A rank sends its collective number n through buffer n % 2. It may do so when all others have
// ended number n - 2, which read that buffer: they have published it as `ended`.
//
// Thread safety: none; the fake driver's lock is held.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rondo/tests/fake_nccl/collective.h"
#include "rondo/tests/fake_nccl/types.h"

namespace rondo::fake_nccl {

inline constexpr int kMostRanks = 64;

// The contents of a unique id.
struct MeetingPlace {
  uint64_t magic = 0, nonce = 0;
  int32_t process = 0, file = -1;

  static MeetingPlace of(const UniqueId& id);
  UniqueId id() const;
  bool is_one() const;
};

// ---- The shared block. All zero at first; written by the rank whose seat it is, with the exceptions that are named.
struct Buffer {
  std::atomic<int32_t> file;
  std::atomic<uint64_t> capacity;
};
struct Issued {
  Collective collective;
  uint64_t bytes;  // in the buffer
};
struct Split {
  int32_t color, key;
  std::atomic<uint64_t> placed;  // the number of the split for which `place` holds, from 1
  MeetingPlace place;            // for the ranks of this color, made by the first of them
};
struct Seat {
  std::atomic<int32_t> process;  // 0: free. Whoever takes it first has it
  std::atomic<uint32_t> joined, finalized, aborted;
  char bus[16];                        // of its device
  std::atomic<uint64_t> begun, ended;  // collectives
  Issued issued[2];
  Buffer buffers[2];
  std::atomic<uint64_t> splits;  // that it has asked for
  Split split[2];
};
struct SharedBlock {
  uint64_t nonce;                // of the meeting place
  std::atomic<int32_t> ranks;    // by the first rank that comes; 0: none has
  std::atomic<uint32_t> broken;  // by a rank that wants another number of them
  Seat seats[kMostRanks];
};

// A part of a file that is mapped.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int file, size_t bytes, bool writable);  // !ok() if it fails
  Mapping(Mapping&& other) noexcept { *this = std::move(other); }
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();
  bool ok() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A rank's place in it. It leaves with the object; what it has sent stays readable until then.
class Clique {
 public:
  // A new meeting place, which this process keeps until all have come.
  static MeetingPlace make_place();
  // Null: nothing is there any more, or the seat is taken (`why`).
  static std::unique_ptr<Clique> join(const MeetingPlace& place, int ranks, int rank, const std::string& bus,
                                      std::string* why);
  ~Clique();
  Clique(const Clique&) = delete;
  Clique& operator=(const Clique&) = delete;

  int ranks() const { return ranks_; }
  int rank() const { return rank_; }
  uint64_t nonce() const { return place_.nonce; }
  SharedBlock& block() const { return *reinterpret_cast<SharedBlock*>(shared_.data()); }
  Seat& seat(int rank) const { return block().seats[rank]; }
  Seat& own() const { return seat(rank_); }
  bool all_joined();
  bool is_of_this_process(int rank) const;
  // The process has ended, or the rank has aborted. REQUIRES: all have joined once.
  bool is_gone(int rank);

  // The buffer for collective `number`, of at least so many bytes. REQUIRES: Note [Two buffers].
  std::byte* buffer_for(uint64_t number, size_t bytes);
  bool buffer_is_free(uint64_t number) const;
  void publish(uint64_t number, const Collective& collective, size_t bytes);
  bool all_have_begun(uint64_t number) const;
  const Issued& issued(int rank, uint64_t number) const { return seat(rank).issued[number % 2]; }
  // What a rank has sent. False: its process has taken it along.
  bool read(int rank, uint64_t number, Sent* sent);

 private:
  Clique() = default;
  struct Peer {
    Mapping buffers[2];
    int watch = -1;  // a descriptor that becomes readable when the process ends
  };
  MeetingPlace place_;
  int ranks_ = 0, rank_ = 0;
  bool have_all_joined_ = false;
  Mapping shared_;
  int files_[2] = {-1, -1};
  Mapping buffers_[2];
  std::vector<Peer> peers_;
};

}  // namespace rondo::fake_nccl
