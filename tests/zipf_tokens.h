// Token ids as texts have them, for steps that are timed: by Zipf's law, id k comes up in proportion to 1 / (k + 1).
// What adds up rows by token is slow where few ids share most of the rows: ids that are all equal invent time, and ids
// that are equally likely hide it. tests/bench/peers/gpt_step.py draws by the same formula.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace rondo::test {

// `n` ids in [0, vocabulary), the same for the same seed.
inline std::vector<int64_t> zipf_tokens(int64_t n, int64_t vocabulary, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int64_t> tokens(static_cast<size_t>(n));
  for (int64_t& token : tokens) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;  // in [0, 1)
    // log(token + 1) is uniform in [0, log(vocabulary + 1)).
    token = static_cast<int64_t>(std::pow(static_cast<double>(vocabulary + 1), u)) - 1;
    if (token >= vocabulary) token = vocabulary - 1;  // pow has rounded up
  }
  return tokens;
}

}  // namespace rondo::test
