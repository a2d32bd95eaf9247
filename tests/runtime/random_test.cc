// Default generators: each thread draws numbers of its own, all of them functions of manual_seed.
#include "rondo/runtime/random/random.h"

#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/data/data_loader.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

using test::same_bits;

Tensor draw() { return Tensor::randn({100}); }
Tensor drawn_by_a_thread(const std::function<void()>& before = [] {}) {
  Tensor result;
  std::thread([&] {
    before();
    result = draw();
  }).join();
  return result;
}

// Review [9]: all threads but the one that called manual_seed drew the same numbers, from (0, 0).
TEST(DefaultGenerator, ThreadsDrawNumbersOfTheirOwn) {
  manual_seed(1);
  const Tensor mine = draw(), first = drawn_by_a_thread(), second = drawn_by_a_thread();
  EXPECT_FALSE(same_bits(mine, first));
  EXPECT_FALSE(same_bits(mine, second));
  EXPECT_FALSE(same_bits(first, second));
}

TEST(DefaultGenerator, ManualSeedReachesRunningThreads) {
  Tensor drawn[5];
  std::thread other([&] {
    const auto seeded = [](uint64_t seed) { std::thread([seed] { manual_seed(seed); }).join(); };
    seeded(1);
    drawn[0] = draw();
    drawn[1] = draw();
    seeded(2);
    drawn[2] = draw();
    seeded(1);
    drawn[3] = draw();
    drawn[4] = draw();
  });
  other.join();
  EXPECT_FALSE(same_bits(drawn[0], drawn[1]));
  EXPECT_FALSE(same_bits(drawn[0], drawn[2]));
  EXPECT_TRUE(same_bits(drawn[0], drawn[3]));
  EXPECT_TRUE(same_bits(drawn[1], drawn[4]));
}

TEST(DefaultGenerator, AThreadThatSeedsItselfKeepsItsStream) {
  manual_seed(7);
  const Tensor a = draw(), b = draw();
  EXPECT_TRUE(same_bits(drawn_by_a_thread([] { manual_seed(7); }), a));
  manual_seed(7);
  EXPECT_TRUE(same_bits(draw(), a));
  drawn_by_a_thread([] { manual_seed(9); });
  EXPECT_TRUE(same_bits(draw(), b));
}

// Items that draw, and that check where they run.
class Noise final : public data::Dataset {
 public:
  int64_t size() const override { return 64; }
  std::vector<Tensor> get(int64_t) const override {
    return {Tensor::randn({4}), Tensor::full({1}, in_parallel() ? 1.0 : 0.0)};
  }
};

TEST(DefaultGenerator, WorkersOfADataLoaderDrawNumbersOfTheirOwnOnOneThreadEach) {
  manual_seed(1);
  data::DataLoader loader(std::make_shared<Noise>(), {.batch_size = 1, .num_workers = 3});
  std::vector<Tensor> seen;
  while (auto batch = loader.next()) {
    EXPECT_EQ((*batch)[1].to_vector<float>()[0], 1.0f);
    for (const Tensor& other : seen) ASSERT_FALSE(same_bits((*batch)[0], other));
    seen.push_back((*batch)[0]);
  }
  EXPECT_EQ(seen.size(), 64u);
}

}  // namespace
}  // namespace rondo
