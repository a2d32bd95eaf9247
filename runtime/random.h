// Counter-based random numbers: Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A value depends only on (seed, offset, element index): the same for any number of threads, in eager and compiled
// code, and after a restart from (seed, offset).
#pragma once

#include <array>
#include <cstdint>

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

// Uniform in [0, 1) with 24 bits, or (0, 1] shifted by half a step: never exactly 0 or 1.
inline float uniform_from_bits(uint32_t bits) { return (static_cast<float>(bits >> 8) + 0.5f) * 0x1p-24f; }

// A stream of random tensors. Each use takes the next offset; saving (seed, offset) saves the stream.
// Not thread safe: one per thread, or guard it.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) : seed_(seed) {}
  uint64_t seed() const { return seed_; }
  uint64_t offset() const { return offset_; }
  void set_state(uint64_t seed, uint64_t offset) {
    seed_ = seed;
    offset_ = offset;
  }
  // The offset for one tensor's worth of numbers.
  uint64_t next_offset() { return offset_++; }

 private:
  uint64_t seed_;
  uint64_t offset_ = 0;
};

// The generator used where none is given; one per thread, seeded by manual_seed.
Generator& default_generator();
void manual_seed(uint64_t seed);

}  // namespace rondo
#pragma GCC visibility pop
