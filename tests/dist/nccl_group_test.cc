// ProcessGroup with a device for each rank, over NCCL: values, orders, groups of some ranks.
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "rondo/dist/groups/nccl_group.h"
#include "rondo/dist/groups/tcp_group.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/dist/nccl_ranks.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::NcclRanks;

struct Shape {
  int ranks;
  uint64_t seed;  // of the order in which streams run
  friend std::ostream& operator<<(std::ostream& out, const Shape& s) { return out << s.ranks << " ranks, " << s.seed; }
};

class NcclGroups : public testing::TestWithParam<Shape> {
 protected:
  void SetUp() override { RONDO_SKIP_WITHOUT_NCCL(); }
};

Tensor on(Device device, const std::vector<float>& values, Dims sizes, DType dtype) {
  return Tensor::from(values, sizes, kCPU).to(dtype).to(device);
}

// Small whole numbers: exact in every dtype, in whatever order they are added.
float value_of(int rank, size_t i) { return static_cast<float>(i % 5) + static_cast<float>(2 * rank); }
float sum_at(int ranks, size_t i) {
  return static_cast<float>(ranks) * static_cast<float>(i % 5) + static_cast<float>(ranks * (ranks - 1));
}

TEST_P(NcclGroups, SumsAndAveragesEveryDType) {
  NcclRanks ranks(GetParam().ranks, GetParam().seed);
  ranks.with_groups([](ProcessGroup& group, Device device) {
    const int n = group.world_size();
    EXPECT_EQ(group.device(), device);
    for (const DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32})
      for (const int64_t size : {0, 1, 3, 1000})
        for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
          if (op == ReduceOp::kAverage && !is_floating(dtype)) continue;
          SCOPED_TRACE(absl::StrCat(std::string(name_of(dtype)), " ", size));
          std::vector<float> values(static_cast<size_t>(size)), expected(values.size());
          for (size_t i = 0; i < values.size(); ++i) {
            values[i] = value_of(group.rank(), i);
            expected[i] = op == ReduceOp::kSum ? sum_at(n, i) : sum_at(n, i) / static_cast<float>(n);
          }
          Tensor tensor = on(device, values, {size}, dtype);
          group.all_reduce(tensor, op, "numbers").wait();
          EXPECT_TRUE(test::same_bits(tensor.to(kCPU), Tensor::from(expected, {size}, kCPU).to(dtype)));
        }
    group.check_sequence("", "end");
  });
}

TEST_P(NcclGroups, ScattersGathersAndBroadcastsEveryDType) {
  NcclRanks ranks(GetParam().ranks, GetParam().seed);
  ranks.with_groups([](ProcessGroup& group, Device device) {
    const int n = group.world_size(), me = group.rank();
    for (const DType dtype : {kF64, kF32, kBF16, kF16, kI64, kI32, kU8, kBool})
      for (const int64_t size : {1, 3, 500}) {
        SCOPED_TRACE(absl::StrCat(std::string(name_of(dtype)), " ", size));
        const auto count = static_cast<size_t>(size);
        const float mark = dtype == kBool ? 1 : static_cast<float>(me + 1);
        const Tensor mine = on(device, std::vector<float>(count, mark), {size}, dtype);
        Tensor all = on(device, std::vector<float>(count * static_cast<size_t>(n), 0), {n, size}, dtype);
        group.all_gather(all, mine, "all").wait();
        const std::vector<float> rows = all.to_vector<float>();
        for (size_t i = 0; i < rows.size(); ++i)
          EXPECT_EQ(rows[i], dtype == kBool ? 1 : static_cast<float>(i / count + 1));
        for (int root = 0; root < n; ++root) {
          Tensor x = on(device, std::vector<float>(count, me == root ? 1 : 0), {size}, dtype);
          const uint32_t version = x.version();
          group.broadcast(x, root, "x").wait();
          EXPECT_EQ(x.version() != version, me != root);
          EXPECT_EQ(x.to_vector<float>(), std::vector<float>(count, 1));
        }
        if (dtype == kU8 || dtype == kBool) continue;
        std::vector<float> values(count * static_cast<size_t>(n)), expected(count);
        for (size_t i = 0; i < values.size(); ++i) values[i] = value_of(me, i);
        for (size_t i = 0; i < count; ++i) expected[i] = sum_at(n, static_cast<size_t>(me) * count + i);
        Tensor part = on(device, std::vector<float>(count, 0), {size}, dtype);
        group.reduce_scatter(part, on(device, values, {n, size}, dtype), ReduceOp::kSum, "part").wait();
        EXPECT_TRUE(test::same_bits(part.to(kCPU), Tensor::from(expected, {size}, kCPU).to(dtype)));
      }
  });
}

// A shard is gathered in place: its row of the result.
TEST_P(NcclGroups, GathersInPlace) {
  NcclRanks ranks(GetParam().ranks, GetParam().seed);
  ranks.with_groups([](ProcessGroup& group, Device device) {
    Tensor all = Tensor::zeros({group.world_size(), 100}, {kF32, kCPU}).to(device);
    Tensor mine = all[group.rank()];
    mine.fill_(group.rank() + 1);
    group.all_gather(all, mine, "in place").wait();
    const std::vector<double> values = all.to_vector<double>();
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<double>(i / 100 + 1));
    if (group.world_size() == 1) return;
    const Tensor other = all[(group.rank() + 1) % group.world_size()];
    EXPECT_NE(error_of([&] { group.all_gather(all, other, "x"); }).find("not as row"), std::string::npos);
  });
}

// Backward goes on while buckets are averaged, and each bucket's update comes after its own collective: the same bits
// in every order that the streams allow.
TEST_P(NcclGroups, OverlapsWithComputation) {
  NcclRanks ranks(GetParam().ranks, GetParam().seed);
  ranks.with_groups([](ProcessGroup& group, Device device) {
    constexpr int kBuckets = 4, kSteps = 3;
    std::vector<Tensor> weights;
    for (int b = 0; b < kBuckets; ++b) weights.push_back(Tensor::full({300}, b, {kF32, kCPU}).to(device));
    const double average = (group.world_size() - 1) / 2.0;
    for (int step = 0; step < kSteps; ++step) {
      std::vector<Tensor> buckets;
      std::vector<Work> works;
      for (int b = 0; b < kBuckets; ++b) {
        buckets.push_back(weights[static_cast<size_t>(b)] * 0.0 + static_cast<double>(group.rank()));
        works.push_back(group.all_reduce(buckets.back(), ReduceOp::kAverage, absl::StrCat("bucket ", b)));
      }
      for (size_t b = 0; b < kBuckets; ++b) {
        works[b].wait();
        weights[b] = weights[b] - buckets[b];
        buckets[b] = Tensor();
      }
      group.check_sequence("", "end of step");
    }
    for (int b = 0; b < kBuckets; ++b)
      EXPECT_EQ(weights[static_cast<size_t>(b)].to_vector<double>(), std::vector<double>(300, b - kSteps * average));
  });
}

TEST_P(NcclGroups, HostTensorsGoBesideThem) {
  NcclRanks ranks(GetParam().ranks, GetParam().seed);
  ranks.with_groups([](ProcessGroup& group, Device device) {
    const int n = group.world_size();
    Tensor x = Tensor::full({50}, group.rank(), {kF32, kCPU}).to(device), y = Tensor::full({50}, group.rank());
    const Work there = group.all_reduce(x, ReduceOp::kSum, "x"), here = group.all_reduce(y, ReduceOp::kSum, "y");
    here.wait();
    EXPECT_EQ(y.to_vector<double>()[49], n * (n - 1) / 2);
    there.wait();
    EXPECT_EQ(x.to_vector<double>()[49], n * (n - 1) / 2);
    group.barrier("together").wait();
  });
}

TEST_P(NcclGroups, ComparesEachOnRequest) {
  NcclRanks ranks(GetParam().ranks, GetParam().seed);
  const auto errors = ranks.run([&](const Environment& e) {
    GroupOptions options = ranks.options(e.rank);
    options.compare_each = true;
    const auto group = ProcessGroup::connect(e, options);
    Tensor x = Tensor::ones({4}, {kF32, kCPU}).to(*options.device);
    for (int i = 0; i < 3; ++i) group->all_reduce(x, ReduceOp::kAverage, absl::StrCat(i)).wait();
    EXPECT_EQ(x.to_vector<double>()[0], 1);
    if (e.rank > 0 && e.world_size > 1) group->broadcast(x, 0, "other");  // throws before anything is enqueued
    else group->all_reduce(x, ReduceOp::kSum, "x");
  });
  if (ranks.size() == 1) {
    EXPECT_EQ(errors[0], "");
    return;
  }
  for (const std::string& error : errors)
    EXPECT_EQ(
        error,
        "the ranks do not call the same collectives on their devices: rank 0 is at all_reduce 4 (x; 4 f32), rank 1 "
        "at broadcast 4 (other; 4 f32 from rank 0)");
}

INSTANTIATE_TEST_SUITE_P(Orders, NcclGroups,
                         testing::Values(Shape{1, 1}, Shape{2, 1}, Shape{2, 2}, Shape{3, 3}, Shape{4, 4}),
                         [](const auto& info) { return absl::StrCat(info.param.ranks, "_seed_", info.param.seed); });

class NcclGroup : public testing::Test {
 protected:
  void SetUp() override { RONDO_SKIP_WITHOUT_NCCL(); }
};

TEST_F(NcclGroup, SubgroupsHaveCommunicatorsOfTheirOwn) {
  NcclRanks ranks(4);
  ranks.with_groups([](ProcessGroup& all, Device device) {
    const int me = all.rank();
    const auto odd = all.subgroup({3, 1}, "odd"), even = all.subgroup({0, 2}, "even"),
               alone = all.subgroup({2}, "alone");
    ProcessGroup& mine = me % 2 == 1 ? *odd : *even;
    EXPECT_EQ(mine.device(), device);
    Tensor x = Tensor::full({100}, me, {kF32, kCPU}).to(device), y = x.clone();
    const Work whole = all.all_reduce(y, ReduceOp::kSum, "y");
    mine.all_reduce(x, ReduceOp::kSum, "x").wait();
    whole.wait();
    EXPECT_EQ(x.to_vector<double>()[99], me % 2 == 1 ? 4 : 2);
    EXPECT_EQ(y.to_vector<double>()[99], 6);
    Tensor first = Tensor::full({3}, me, {kI32, kCPU}).to(device);
    mine.broadcast(first, 0, "first").wait();
    EXPECT_EQ(first.to_vector<int64_t>()[0], me % 2 == 1 ? 3 : 0);
    if (alone) alone->all_reduce(x, ReduceOp::kAverage, "alone").wait();
    mine.check_sequence("", "end");
    all.check_sequence("", "end");
  });
}

TEST_F(NcclGroup, TwoRanksOnOneGpuAreNamed) {
  NcclRanks ranks(3);
  const auto errors = ranks.run(
      [&](const Environment& e) { ProcessGroup::connect(e, ranks.options(e.rank == 2 ? 0 : e.rank)); });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("ranks 0 and 2 of one machine both use cuda:0"), std::string::npos) << error;
}

// Otherwise the others would wait for that rank, which none of them would name.
TEST_F(NcclGroup, OptionsThatSomeRanksHaveAreNamedOnEveryRank) {
  NcclRanks ranks(3);
  const auto errors_of = [&](const std::function<void(GroupOptions&, int rank)>& change) {
    return ranks.run([&](const Environment& e) {
      GroupOptions options = ranks.options(e.rank);
      change(options, e.rank);
      ProcessGroup::connect(e, options);
    });
  };
  for (const std::string& error : errors_of([](GroupOptions&o, int rank) { o.compare_each = rank == 1; }))
    EXPECT_EQ(
        error,
        "the ranks connect with different GroupOptions; compare_each = false on ranks 0, 2; compare_each = true on "
        "rank 1");
  for (const std::string& error : errors_of([](GroupOptions&o, int rank) {
         if (rank == 2) o.device.reset();
       }))
    EXPECT_EQ(error,
              "the ranks connect with different GroupOptions; device = none on rank 2; device = cuda on ranks 0, 1");
}

TEST_F(NcclGroup, ARankWithoutNcclIsNamedOnEveryRank) {
  NcclRanks ranks(2);
  const auto errors = ranks.run([&](const Environment& e) {
    std::string why_not;
    const NcclLibrary* library = find_nccl(&why_not);
    make_nccl_group(connect_tcp(e, {.timeout = test::kPatient}), ranks.options(e.rank), e.rank == 1 ? nullptr : library,
                    "libnccl.so.2 is not found");
  });
  for (const std::string& error : errors)
    EXPECT_EQ(error, "rank 1 cannot exchange tensors of its device: libnccl.so.2 is not found");
}

TEST_F(NcclGroup, ManyCanBeMadeOneAfterTheOther) {
  NcclRanks ranks(2);
  const auto errors = ranks.run([&](const Environment& e) {
    for (int i = 0; i < 5; ++i) {
      const auto group = ProcessGroup::connect(e, ranks.options(e.rank));
      Tensor x = Tensor::full({1}, i, {kF32, kCPU}).to(*group->device());
      group->all_reduce(x, ReduceOp::kSum, "x").wait();
      EXPECT_EQ(x.item(), 2 * i);
    }
  });
  EXPECT_EQ(errors, (std::vector<std::string>(2)));
}

}  // namespace
}  // namespace rondo::dist
