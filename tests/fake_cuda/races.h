// The order between pieces of work: by its stream, by events, by the host's waits. Work that touches the same bytes
// without such an order is a race, whatever order the queue runs it in.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rondo::fake_cuda {

// How much of each stream's work came before: one number for each stream.
class Clock {
 public:
  uint32_t operator[](size_t stream) const { return stream < counts_.size() ? counts_[stream] : 0; }
  void merge(const Clock& other) {
    if (counts_.size() < other.counts_.size()) counts_.resize(other.counts_.size());
    for (size_t i = 0; i < other.counts_.size(); ++i) counts_[i] = std::max(counts_[i], other.counts_[i]);
  }
  void tick(size_t stream) {
    if (counts_.size() <= stream) counts_.resize(stream + 1);
    ++counts_[stream];
  }

 private:
  std::vector<uint32_t> counts_;
};

// One piece of work: the n-th of a stream.
struct Work {
  size_t stream = 0;
  uint32_t number = 0;  // 0: none
  std::string name;
  bool before(const Clock& clock) const { return clock[stream] >= number; }
};

class Races {
 public:
  // Empty, or what is wrong. `clock`: what comes before `work`.
  std::string note(uintptr_t begin, size_t bytes, bool writes, const Work& work, const Clock& clock);
  // The name of work that uses these bytes and does not come before `clock`; empty: there is none.
  std::string unordered(uintptr_t begin, size_t bytes, const Clock& clock) const;
  void forget(uintptr_t begin, size_t bytes);

  // Kernels that do not say what they touch. A pointer into bytes that a collective uses counts as an access to them: a
  // write, unless the kernel takes it as one to constants.
  // A collective writes these bytes from here on, or reads them.
  void watch(uintptr_t begin, size_t bytes, bool writes, const Work& work);
  // A kernel got this address.
  void note_pointer(uintptr_t address, bool writes, const Work& work);
  // The name of a kernel that got a pointer into bytes that are about to be written, or read, and does not come before
  // `clock`; empty: there is none.
  std::string pointer_into(uintptr_t begin, size_t bytes, bool writes, const Clock& clock) const;
  // The name of a collective that uses the byte and does not come before `clock`; empty: there is none.
  std::string watched(uintptr_t address, bool writes, const Clock& clock) const;

 private:
  struct Interval {
    uintptr_t end;
    Work write;
    std::vector<Work> reads;
  };
  void split(uintptr_t at);
  void unwatch(uintptr_t begin, uintptr_t end);
  std::map<uintptr_t, Interval> intervals_;  // by their begin; they do not overlap
  struct Watched {
    uintptr_t end;
    bool writes;
    Work work;
  };
  std::map<uintptr_t, Watched> watched_;  // by their begin; they do not overlap
  struct Pointer {
    bool writes;
    Work work;
  };
  std::map<uintptr_t, std::vector<Pointer>> pointers_;  // by address: the last kernels of each stream
};

}  // namespace rondo::fake_cuda
