// Counter-based random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A value depends only on (seed, offset, element index): the same for any number of threads, in eager and compiled
// code, and after a restart from (seed, offset).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo {

// Returns four random words: ten Philox rounds on a 128-bit counter with a 64-bit key.
inline std::array<uint32_t, 4> philox(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  uint32_t c0 = static_cast<uint32_t>(counter_low), c1 = static_cast<uint32_t>(counter_low >> 32);
  uint32_t c2 = static_cast<uint32_t>(counter_high), c3 = static_cast<uint32_t>(counter_high >> 32);
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

// Returns a uniform number in (0, 1), never 0 or 1: the midpoint of one of 2^24 equal intervals, which the upper 24
// bits choose. The midpoint of the last interval would round to 1, so the largest float below 1 replaces it.
inline float uniform_from_bits(uint32_t bits) {
  const float middle = (static_cast<float>(bits >> 8) + 0.5f) * 0x1p-24f;
  return middle < 1.0f ? middle : 0x1.fffffep-1f;
}

// A stream of random tensors. Each tensor takes the next offset, so saving (seed, offset) saves the stream. A copy
// draws the same numbers. If an op finds bad data (an index out of range), a compiled region on the CPU undoes the
// draws of ops that did not run. A device that runs asynchronously may report bad data only after later ops have drawn;
// these draws are not undone. Not thread safe: use one generator per thread, or guard it.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0);
  Generator(const Generator& other);
  Generator& operator=(const Generator& other);
  ~Generator();
  uint64_t seed() const;
  uint64_t offset() const;
  void set_state(uint64_t seed, uint64_t offset);
  // Returns the offset for the numbers of one tensor, and advances the generator by one.
  uint64_t next_offset();

 private:
  friend class GeneratorScope;
  friend Generator& default_generator();
  struct Default {};
  explicit Generator(Default) : seed_(0), id_(0) {}
  uint64_t seed_;
  uint64_t offset_ = 0;
  uint64_t id_;  // unique in the process; 0 for the default generator of every thread
};

// Base class for objects that keep pointers to generators: forget() is called for each generator that is destroyed on
// the holder's thread. Holders of a thread nest.
class GeneratorHolder {
 protected:
  GeneratorHolder();
  ~GeneratorHolder();
  GeneratorHolder(const GeneratorHolder&) = delete;
  GeneratorHolder& operator=(const GeneratorHolder&) = delete;

 private:
  friend class Generator;
  virtual void forget(const Generator& generator) noexcept = 0;
  GeneratorHolder* outer_;
};

// Returns the generator that is used if a call names none. Each thread has its own default generator.
//
// manual_seed(seed) seeds the calling thread with (seed, 0). It also seeds every thread, running or future, that never
// calls manual_seed itself: with a stream that depends on `seed` and the thread's number. Threads are numbered in the
// order of their first draws. A thread that has called manual_seed keeps its stream when another thread calls it.
Generator& default_generator();
void manual_seed(uint64_t seed);
// Sets the stream from which this thread draws in a training step (dropout). It depends only on the seed, the rank and
// the step, not on earlier draws, so a resumed run draws the same numbers as an uninterrupted run.
void seed_step(uint64_t seed, int rank, int64_t step);

// The state that a generator had before the code of a GeneratorScope first used it.
struct GeneratorState {
  uint64_t id, seed, offset;
};

// Records or replays the draws of this thread while in scope, for code that runs twice and must draw the same numbers.
// kNote adds to `states` the state that each generator has at its first use. kReplay sets each generator that is in
// `states` to that state at its first use. When a kReplay scope ends, every generator that was used gets its earlier
// state back, unless it was destroyed meanwhile. Reading seed() or offset() is a use, too. Scopes nest.
class GeneratorScope final : GeneratorHolder {
 public:
  enum Mode { kNote, kReplay };
  GeneratorScope(Mode mode, std::vector<GeneratorState>& states);
  ~GeneratorScope();

 private:
  friend class Generator;
  static void note_use(const Generator& generator);
  void forget(const Generator& generator) noexcept override;
  static void set(Generator& generator, uint64_t seed, uint64_t offset);
  void first_use(Generator& generator);

  struct Used {
    Generator* generator;  // null after it was destroyed
    uint64_t id, seed, offset;
  };
  Mode mode_;
  std::vector<GeneratorState>& states_;
  std::vector<Used> used_;
  GeneratorScope* outer_;
};

}  // namespace rondo
#pragma GCC visibility pop
