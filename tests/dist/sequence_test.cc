// The record of device collectives, and its comparison over the hosts' group.
#include "rondo/dist/groups/sequence.h"

#include <gtest/gtest.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "rondo/tests/dist/ranks.h"
#include "rondo/tests/errors.h"

namespace rondo::dist {
namespace {

using test::error_of;
using test::run_ranks;

Call sum_of(int64_t n) { return {.numel = n, .kind = CollectiveKind::kAllReduce, .dtype = kF32}; }

TEST(SequenceRecord, HashesAllThatRanksMustAgreeOn) {
  const auto hash = [](const std::vector<std::pair<Call, std::string_view>>& calls) {
    SequenceRecord record;
    for (const auto& [call, name] : calls) record.add(call, name);
    EXPECT_EQ(record.count(), calls.size());
    return record.hash();
  };
  const Call call = sum_of(4);
  const uint64_t usual = hash({{call, "a"}, {call, "b"}});
  EXPECT_EQ(hash({{call, "a"}, {call, "b"}}), usual);
  Call longer = call, other_op = call, other_dtype = call, other_kind = call, other_root = call;
  longer.numel = 5;
  other_op.op = ReduceOp::kAverage;
  other_dtype.dtype = kI32;
  other_kind.kind = CollectiveKind::kBroadcast;
  other_root.root = 1;
  for (const Call& c : {longer, other_op, other_dtype, other_kind, other_root})
    EXPECT_NE(hash({{c, "a"}, {call, "b"}}), usual);
  EXPECT_NE(hash({{call, "b"}, {call, "a"}}), usual);
  EXPECT_NE(hash({{call, "a"}}), usual);
  EXPECT_NE(hash({{call, "a"}, {call, "b"}, {call, "c"}}), usual);
  // The first 80 bytes of a name count.
  const std::string name(80, 'n');
  EXPECT_EQ(hash({{call, name + "x"}}), hash({{call, name + "y"}}));
  EXPECT_NE(hash({{call, name.substr(1) + "x"}}), hash({{call, name.substr(1) + "y"}}));
}

TEST(SequenceRecord, KeepsTheLastOnesAndForgetsWhatIsAgreed) {
  SequenceRecord record;
  EXPECT_EQ(record.first(), 1u);
  for (int i = 1; i <= 10; ++i) record.add(sum_of(i), absl::StrCat("call ", i));
  EXPECT_EQ(record.describe_at(3), "all_reduce 3 (call 3; 3 f32)");
  EXPECT_EQ(record.describe_at(11), "the end of its calls, after 10");
  const uint64_t hash_of_7 = record.hash_at(7);
  record.set_agreed(6);
  EXPECT_EQ(record.first(), 7u);
  EXPECT_EQ(record.hash_at(7), hash_of_7);
  EXPECT_EQ(record.describe_at(3), "call 3, which it has forgotten");
  const auto most = static_cast<int>(SequenceRecord::kMost);
  for (int i = 0; i < most; ++i) record.add(sum_of(1), "more");
  EXPECT_EQ(record.first(), 11u);
  EXPECT_EQ(record.count(), 10u + SequenceRecord::kMost);
  EXPECT_EQ(record.hash_at(record.count()), record.hash());
}

// A group whose device collectives are recorded and do nothing.
class Recording final : public ProcessGroup {
 public:
  explicit Recording(std::shared_ptr<ProcessGroup> hosts) : hosts_(std::move(hosts)) {}
  int rank() const override { return hosts_->rank(); }
  int world_size() const override { return hosts_->world_size(); }
  Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) override {
    record.add({.numel = tensor.numel(), .kind = CollectiveKind::kAllReduce, .op = op, .dtype = tensor.dtype()}, name);
    return Work();
  }
  Work broadcast(const Tensor& tensor, int root, std::string_view name) override {
    return hosts_->broadcast(tensor, root, name);
  }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) override {
    ++exchanges;
    return hosts_->all_gather(out, in, name);
  }
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) override {
    return hosts_->reduce_scatter(out, in, op, name);
  }
  Work barrier(std::string_view name) override { return hosts_->barrier(name); }

  SequenceRecord record;
  int exchanges = 0;
  std::string failed_with;

 private:
  SequenceRecord* sequence() override { return &record; }
  void fail_mismatched(const std::string& sentence) override { failed_with = sentence; }
  std::shared_ptr<ProcessGroup> hosts_;
};

std::vector<std::string> with_recordings(int n, const std::function<void(Recording&)>& fn) {
  return run_ranks(n, [&](const Environment& e) {
    Recording group(ProcessGroup::connect(e, {.timeout = test::kPatient}));
    fn(group);
  });
}

TEST(SequenceCheck, OneExchangeWhereAllAgree) {
  const auto errors = with_recordings(3, [](Recording& group) {
    const Tensor x = Tensor::zeros({4});
    for (int step = 0; step < 3; ++step) {
      for (int bucket = 0; bucket < 5; ++bucket)
        group.all_reduce(x, ReduceOp::kAverage, absl::StrCat("bucket ", bucket, " of step ", step));
      EXPECT_EQ(group.check_sequence("", "end of step"), (std::vector<std::string>(3)));
      EXPECT_EQ(group.exchanges, step + 1);
      EXPECT_EQ(group.record.first(), group.record.count() + 1);  // nothing is kept of what is agreed
    }
    // Up to 8 bytes of text travel with it; more if they are reserved.
    const std::string mine = absl::StrCat("I am ", group.rank());
    EXPECT_EQ(group.check_sequence(mine, "short"), (std::vector<std::string>{"I am 0", "I am 1", "I am 2"}));
    const std::string flags(100, static_cast<char>('0' + group.rank()));
    EXPECT_EQ(group.check_sequence(flags, "reserved", 100)[1], std::string(100, '1'));
    EXPECT_EQ(group.exchanges, 5);
    // One rank's longer text costs two more.
    const std::string trouble = group.rank() == 2 ? std::string(300, 't') : "";
    EXPECT_EQ(group.check_sequence(trouble, "long"), (std::vector<std::string>{"", "", std::string(300, 't')}));
    EXPECT_EQ(group.exchanges, 8);
    EXPECT_NE(error_of([&] { group.check_sequence("", "x", 5000); }).find("5000 bytes cannot be reserved"),
              std::string::npos);
  });
  EXPECT_EQ(errors, (std::vector<std::string>(3)));
}

// The exchange is under way while more collectives are called, and compares what was called before it.
TEST(SequenceCheck, InTwoParts) {
  const auto errors = with_recordings(2, [](Recording& group) {
    const Tensor x = Tensor::zeros({4});
    group.all_reduce(x, ReduceOp::kSum, "a");
    SequenceCheck first = group.begin_check("one", "first");
    group.all_reduce(x, ReduceOp::kSum, "b");
    SequenceCheck second = group.begin_check("two", "second");
    if (group.rank() == 1) group.all_reduce(x, ReduceOp::kSum, "only here");
    EXPECT_EQ(first.wait(), (std::vector<std::string>{"one", "one"}));
    EXPECT_EQ(group.record.first(), 2u);
    EXPECT_EQ(second.wait(), (std::vector<std::string>{"two", "two"}));
    EXPECT_NE(error_of([&] { second.wait(); }).find("waited for before"), std::string::npos);
    group.check_sequence("", "third");
  });
  for (const std::string& error : errors)
    EXPECT_EQ(
        error,
        "the ranks do not call the same collectives on their devices: rank 0 is at the end of its calls, after 2, "
        "rank 1 at all_reduce 3 (only here; 4 f32)");
}

TEST(SequenceCheck, TheFirstThatDiffersIsNamedOnEveryRank) {
  const auto errors = with_recordings(3, [](Recording& group) {
    const Tensor x = Tensor::zeros({4}), y = Tensor::zeros({5});
    group.all_reduce(x, ReduceOp::kSum, "same");
    group.check_sequence("", "first step");
    group.all_reduce(x, ReduceOp::kSum, "a");
    // Rank 2 differs first, rank 1 behind it.
    group.all_reduce(group.rank() == 2 ? y : x, ReduceOp::kAverage, "b");
    group.all_reduce(group.rank() == 1 ? y : x, ReduceOp::kSum, "c");
    for (int i = 0; i < 50 * group.rank(); ++i) group.all_reduce(x, ReduceOp::kSum, "d");
    const std::string sentence =
        "the ranks do not call the same collectives on their devices: rank 0 is at all_reduce 3 (b; 4 f32, average), "
        "rank 2 at all_reduce 3 (b; 5 f32, average); rank 1 says: a gradient is missing";
    EXPECT_EQ(error_of<MismatchError>(
                  [&] { group.check_sequence(group.rank() == 1 ? "a gradient is missing" : "", "second step"); }),
              sentence);
    EXPECT_EQ(group.failed_with, sentence);
  });
  EXPECT_EQ(errors, (std::vector<std::string>(3)));
}

// The calls that are kept do not reach back to the first one that differs.
TEST(SequenceCheck, ADifferenceThatIsForgottenIsNotMisnamed) {
  const auto errors = with_recordings(2, [](Recording& group) {
    const Tensor x = Tensor::zeros({4});
    group.all_reduce(x, ReduceOp::kSum, group.rank() == 0 ? "a" : "b");
    for (size_t i = 0; i < SequenceRecord::kMost + 10; ++i) group.all_reduce(x, ReduceOp::kSum, "same");
    group.check_sequence("", "too late");
  });
  for (const std::string& error : errors)
    EXPECT_NE(error.find("older than the last 4096, which are kept; call check_sequence() more often"),
              std::string::npos)
        << error;
}

// Groups without a device have no sequence: the exchange of texts stays.
TEST(SequenceCheck, OfGroupsOfHosts) {
  const auto solo = ProcessGroup::connect({});
  EXPECT_EQ(solo->check_sequence("alone, and longer than eight bytes", "x"),
            (std::vector<std::string>{"alone, and longer than eight bytes"}));
  test::with_groups(2, [](ProcessGroup& group) {
    group.all_reduce(Tensor::zeros({4}), ReduceOp::kSum, "x").wait();
    EXPECT_EQ(group.check_sequence(group.rank() == 0 ? "zero" : "", "x"), (std::vector<std::string>{"zero", ""}));
  });
}

}  // namespace
}  // namespace rondo::dist
