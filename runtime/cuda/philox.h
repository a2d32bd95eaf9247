// Philox in kernels: random.h's generator, word for word.
#pragma once

namespace rondo::cuda {

inline constexpr const char* kPhilox = R"cuda(
struct RondoWords { unsigned word[4]; };
RONDO_DEVICE RondoWords philox(unsigned long long key, unsigned long long low, unsigned long long high) {
  unsigned c0 = static_cast<unsigned>(low), c1 = static_cast<unsigned>(low >> 32);
  unsigned c2 = static_cast<unsigned>(high), c3 = static_cast<unsigned>(high >> 32);
  unsigned k0 = static_cast<unsigned>(key), k1 = static_cast<unsigned>(key >> 32);
#pragma unroll 5  // all ten would spill in the backward of attention
  for (int round = 0; round < 10; ++round) {
    const unsigned long long p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
    const unsigned n0 = static_cast<unsigned>(p1 >> 32) ^ c1 ^ k0, n2 = static_cast<unsigned>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<unsigned>(p1);
    c3 = static_cast<unsigned>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}
)cuda";

// Behind kPhilox and kDropoutText, for kernels of attention: which weights dropout keeps (Note [Dropped weights] in
// ops/attention.cc). `row`: the number of a query among all queries of all heads.
inline constexpr const char* kDroppedWeights = R"cuda(
struct Dropout : DropoutArgument {
  // A bit for each of four neighbouring keys, set if its weight is kept.
  RONDO_DEVICE unsigned kept(long long row, long long first_key) const {
    const RondoWords words = philox(read(state), static_cast<unsigned long long>(row * counters + first_key / 4),
                                    read(state + 1) + static_cast<unsigned long long>(increment));
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) {  // in two steps: GCC 12 with UBSan takes one statement for another index
      const unsigned is_kept = words.word[k] >= static_cast<unsigned>(threshold) ? 1u : 0u;
      bits |= is_kept << k;
    }
    return bits;
  }
};
)cuda";

}  // namespace rondo::cuda
