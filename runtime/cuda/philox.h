// Random numbers in hand-written kernels; philox() itself is in device_math().
#pragma once

namespace rondo::cuda {

// Source text that follows kDropoutText in attention's kernels. Decides which weights dropout keeps (Note [Dropped
// weights] in ops/attention.cc). `row`: the number of a query among all queries of all heads.
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
