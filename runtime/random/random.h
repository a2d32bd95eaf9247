// Counter-based random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A value depends only on (seed, offset, element index): the same for any number of threads, in eager and compiled
// code, and after a restart from (seed, offset).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)
namespace rondo {

// Ten rounds on a 128-bit counter with a 64-bit key.
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

// Uniform in (0, 1), from the upper 24 bits: never exactly 0 or 1. The middle of the last of the 2^24 steps would round
// to 1, so the largest float below 1 takes its place.
inline float uniform_from_bits(uint32_t bits) {
  const float middle = (static_cast<float>(bits >> 8) + 0.5f) * 0x1p-24f;
  return middle < 1.0f ? middle : 0x1.fffffep-1f;
}

// A stream of random tensors. Each tensor takes the next offset, so saving (seed, offset) saves the stream. A copy
// draws the same numbers. A device that runs late reports an error of the data (a bad index) when later ops have drawn
// already; a compiled region on the CPU takes those draws back. Not thread safe: use one per thread, or guard it.
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
  uint64_t id_;  // never used twice in a process; 0 for the default generator of each thread
};

// Holds generators by their addresses, and is told of each generator that ends on its thread. Holders of a thread nest.
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

// The generator that is used where none is given. Each thread has one of its own.
//
// manual_seed(seed) seeds the calling thread with (seed, 0), and every thread that never calls it, now running or still
// to start, with a stream of its own: a function of the seed and of the thread's number. Threads are numbered in the
// order in which they first draw. A thread that called manual_seed keeps its stream when another thread calls it.
Generator& default_generator();
void manual_seed(uint64_t seed);
// Sets what this thread draws in a training step (dropout). The numbers depend on the seed, the rank and the step only,
// not on earlier draws. So a resumed run draws what the run that was cut off would have drawn.
void seed_step(uint64_t seed, int rank, int64_t step);

// The state of a generator before code first used it.
struct GeneratorState {
  uint64_t id, seed, offset;
};

// Notes or replays what this thread draws while in scope, for code that runs twice and must draw the same numbers.
// kNote adds to `states` the state that each generator has when it is first used. kReplay gives each generator that is
// in `states` that state when it is first used; at its end, every generator that was used gets back its state from
// before, unless it was destroyed meanwhile. Reading seed() or offset() is a use, too. Scopes nest.
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
    Generator* generator;  // null once it was destroyed
    uint64_t id, seed, offset;
  };
  Mode mode_;
  std::vector<GeneratorState>& states_;
  std::vector<Used> used_;
  GeneratorScope* outer_;
};

}  // namespace rondo
#pragma GCC visibility pop
