// BatchShare: processes that read one source share its batches in the source's order.
#include "rondo/runtime/data/batch_share.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "rondo/runtime/data/data_loader.h"
#include "rondo/tests/errors.h"

namespace rondo::data {
namespace {

// Item i is the number i. Counts what is asked for.
class Numbers : public Dataset {
 public:
  explicit Numbers(int64_t n) : n_(n) {}
  int64_t size() const override { return n_; }
  std::vector<Tensor> get(int64_t index) const override {
    ++asked;
    return {Tensor::from<int64_t>({index}, {1})};
  }
  mutable std::atomic<int64_t> asked = 0;

 private:
  const int64_t n_;
};

int64_t number_of(const Batch& batch) { return batch.at(0).to_vector<int64_t>().at(0); }

// What rank `rank` of `n` gets from `share` in the rest of the epoch; -1 for what is not its own.
std::vector<int64_t> rest_of_epoch(BatchShare& share) {
  std::vector<int64_t> got;
  for (;;) {
    const bool mine = share.owns(share.position());
    const auto batch = share.next();
    if (!batch) return got;
    got.push_back(mine ? number_of(*batch) : -1);
  }
}

TEST(BatchShareTest, GroupsFollowTheSourcesOrder) {
  for (const int workers : {0, 3}) {
    SCOPED_TRACE(workers);
    const auto numbers = std::make_shared<Numbers>(8);
    for (int rank = 0; rank < 3; ++rank) {
      DataLoader loader(numbers, {.num_workers = workers});
      BatchShare share(loader, rank, 3);
      EXPECT_EQ(share.size(), 8);
      for (int epoch = 0; epoch < 2; ++epoch) {
        EXPECT_EQ(share.position(), (BatchSource::Position{epoch, 0}));
        EXPECT_EQ(rest_of_epoch(share), (std::vector<int64_t>{rank, 3 + rank, rank == 2 ? -1 : 6 + rank}));
      }
    }
  }
}

TEST(BatchShareTest, APositionHoldsForAnotherNumberOfProcesses) {
  const auto numbers = std::make_shared<Numbers>(10);
  DataLoader loader(numbers, {.num_workers = 2});
  BatchShare two(loader, 1, 2);
  for (int i = 0; i < 3; ++i) two.next();
  const BatchSource::Position at = two.position();
  EXPECT_EQ(at, (BatchSource::Position{0, 6}));
  std::vector<int64_t> all;
  for (int rank = 0; rank < 3; ++rank) {
    DataLoader other(numbers, {.num_workers = 1});
    BatchShare three(other, rank, 3);
    three.seek(at);
    for (const int64_t number : rest_of_epoch(three)) all.push_back(number);
    EXPECT_EQ(three.position(), (BatchSource::Position{1, 0}));
  }
  EXPECT_EQ(all, (std::vector<int64_t>{6, 9, 7, -1, 8, -1}));
  EXPECT_NE(test::error_of([&] { two.seek({0, 11}); }), "");
  EXPECT_EQ(two.position(), at);
}

// Workers prepare this process's batches, not all of them.
TEST(BatchShareTest, WorkersPrepareTheShareOnly) {
  const auto numbers = std::make_shared<Numbers>(1'000);
  {
    DataLoader loader(numbers, {.num_workers = 2, .prefetch = 2});
    BatchShare share(loader, 1, 10);
    for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(number_of(*share.next()), 10 * i + 1);
  }
  EXPECT_GE(numbers->asked.load(), 50);
  EXPECT_LE(numbers->asked.load(), 50 + 2 * 2 + 2);  // what workers may be ahead, and what they begin
}

TEST(BatchShareTest, RefusesRanksThatAreNotThere) {
  DataLoader loader(std::make_shared<Numbers>(3), {});
  EXPECT_EQ(test::error_of([&] { BatchShare(loader, 2, 2); }), "BatchShare: there is no rank 2 of 2");
  EXPECT_EQ(test::error_of([&] { BatchShare(loader, -1, 2); }), "BatchShare: there is no rank -1 of 2");
}

}  // namespace
}  // namespace rondo::data
