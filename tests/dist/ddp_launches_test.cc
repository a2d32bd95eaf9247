// What DistributedDataParallel adds to the work that a backward enqueues on a CUDA device: nothing. Counted on the fake
// driver, which runs none of it (Options::executes), at the sizes of GPT-2.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/compile.h"
#include "rondo/compile/jit/executable.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/transformers/gpt2.h"
#include "rondo/optim/adam.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo::dist {
namespace {

using fake_cuda::Enqueued;
using test::FakeCuda;

// Collectives of a device that move nothing, so that only DistributedDataParallel's own work is counted. The hosts of
// the other ranks say what this one says.
class NoTraffic final : public ProcessGroup {
 public:
  NoTraffic(Device device, int ranks) : device_(device), ranks_(ranks) {}
  int rank() const override { return 0; }
  int world_size() const override { return ranks_; }
  std::optional<Device> device() const override { return device_; }
  Work all_reduce(const Tensor& tensor, ReduceOp, std::string_view) override {
    EXPECT_TRUE(tensor.device() == device_ && tensor.is_contiguous());
    ++reduced;
    return {};
  }
  Work broadcast(const Tensor&, int, std::string_view) override { return {}; }
  Work all_gather(const Tensor& out, const Tensor& in, std::string_view) override {
    if (in.device() == device_) ++gathered;
    for (int64_t r = 0; r < ranks_ && !(in.device() == device_); ++r) out.select(0, r).copy_(in);
    return {};
  }
  Work reduce_scatter(const Tensor&, const Tensor&, ReduceOp, std::string_view) override { return {}; }
  Work barrier(std::string_view) override { return {}; }

  int64_t reduced = 0, gathered = 0;

 private:
  const Device device_;
  const int ranks_;
};

struct Counted {
  std::map<std::string, int64_t> launches;  // kernels and products, by name; fills by size
  int64_t copies = 0;                       // within the device, conversions among them
  int64_t waits = 0, collectives = 0;
};

Counted count(const std::vector<Enqueued>& journal) {
  Counted counted;
  for (const Enqueued& work : journal) {
    if (work.name == "rondo_cast_dense") ++counted.copies;  // Tensor::copy_
    else if (work.kind != Enqueued::Kind::kCopy) ++counted.launches[absl::StrCat(work.name, "/", work.bytes)];
    else if (work.name.find("host") == std::string::npos) ++counted.copies;
  }
  return counted;
}

struct Training {
  int64_t layers = 3;
  std::optional<DType> lower = {};
  DType parameters = kF32;
  bool lora = false, accumulates = false;
  int ranks = 1;
  BucketOptions buckets = {};
};

// The backward of the third step, and finish() if there is one.
struct Step {
  Counted backward, finish;
  int64_t gathered_in_backward = 0;  // all_gathers of device tensors
};
Step third_step(const Training& training, bool averaged) {
  FakeCuda cuda({.bytes = size_t{60} << 30, .executes = false});
  const Device device = cuda.device();
  const DeviceScope scope(device);
  nn::GPT2 model({.vocab_size = 50257, .block_size = 1024, .n_layer = training.layers, .n_head = 12, .n_embd = 768}, 1);
  model.to(training.parameters);
  if (training.lora) nn::add_lora(model, {.rank = 8, .targets = {"c_attn"}});
  const auto group = std::make_shared<NoTraffic>(device, training.ranks);
  std::optional<DistributedDataParallel> ddp;
  if (averaged) ddp.emplace(model, group, training.buckets);
  optim::AdamW optimizer(model.parameters());
  const compile::Regions regions = compile::compile_regions(model);
  optim::compile(optimizer);
  Step step;
  for (int i = 0; i < 3; ++i) {
    const Tensor tokens = Tensor::from(std::vector<int64_t>(2048, 1), {2, 1024}, device);
    const auto loss = [&] {
      const amp::Autocast lower(training.lower);
      return model.loss(tokens, tokens);
    };
    if (training.accumulates) {
      std::optional<DistributedDataParallel::NoSync> local;
      if (ddp) local.emplace(*ddp);
      loss().backward();
    }
    const Tensor last = loss();
    cuda->take_journal();
    group->reduced = group->gathered = 0;
    int64_t waits = cuda->counts().host_waits;
    last.backward();
    step.backward = count(cuda->take_journal());
    step.backward.waits = cuda->counts().host_waits - waits;
    step.backward.collectives = group->reduced;
    step.gathered_in_backward = group->gathered;
    waits = cuda->counts().host_waits;
    if (ddp) ddp->finish();
    step.finish = count(cuda->take_journal());
    step.finish.waits = cuda->counts().host_waits - waits;
    step.finish.collectives = group->reduced - step.backward.collectives;
    optimizer.step();
    optimizer.zero_grad();
  }
  return step;
}

class DdpLaunches : public testing::Test {
 protected:
  void SetUp() override {
    if (test::on_real_cuda()) GTEST_SKIP() << "counts what the fake driver's journal holds";
  }
  // The copies that averaging adds to a backward.
  static int64_t added_copies(const Training& training) {
    const Step alone = third_step(training, false), averaged = third_step(training, true);
    EXPECT_EQ(averaged.backward.launches, alone.backward.launches);
    EXPECT_EQ(alone.backward.waits, 0);
    EXPECT_EQ(averaged.backward.waits, 0);
    EXPECT_EQ(averaged.finish.waits, 0);
    EXPECT_GT(averaged.backward.collectives, 0);
    EXPECT_EQ(averaged.finish.collectives, 0);  // all have left during backward
    EXPECT_TRUE(averaged.finish.launches.empty());
    EXPECT_EQ(averaged.finish.copies, 0);
    return averaged.backward.copies - alone.backward.copies;
  }
};

// ln_f's weight and bias share a bucket with the last block, and are made in it, too. The embeddings are large, and are
// reduced where they are.
TEST_F(DdpLaunches, GradientsOfRegionsAreBornInTheBucket) {
  for (const std::optional<DType> lower : {std::optional<DType>(), std::optional(kBF16)})
    for (const int64_t layers : {2, 4}) EXPECT_EQ(added_copies({.layers = layers, .lower = lower}), 0) << layers;
}

TEST_F(DdpLaunches, AccumulationAddsInTheBucket) { EXPECT_EQ(added_copies({.accumulates = true}), 0); }

TEST_F(DdpLaunches, OfAnAdapterNothingIsCopied) { EXPECT_EQ(added_copies({.lora = true}), 0); }

// A rank of two: the rows of the embedding (Note [Two parts] in row_gather.h) are added in finish() instead of at the
// end of backward, by the same kernel, and divided by the number of ranks before.
TEST_F(DdpLaunches, RowsOfAnEmbeddingAreAddedAfterwards) {
  const Step alone = third_step({}, false), two = third_step({.ranks = 2}, true);
  std::map<std::string, int64_t> backward = two.backward.launches;
  ++backward["rondo_add_few_rows/0"];
  EXPECT_EQ(backward, alone.backward.launches);
  EXPECT_EQ(two.backward.copies, alone.backward.copies);
  EXPECT_EQ(two.finish.launches,
            (std::map<std::string, int64_t>{{"rondo_add_few_rows/0", 1}, {"rondo_mul_scalar/0", 1}}));
  EXPECT_EQ(two.finish.copies, 0);
  EXPECT_EQ(two.backward.waits + two.finish.waits, 0);
  EXPECT_EQ(two.gathered_in_backward, 2);  // indices and rows
  EXPECT_EQ(two.finish.collectives, 0);
}

// A bucket that is cut out of a parameter is reduced where that is.
TEST_F(DdpLaunches, PiecesAreNotCopied) {
  EXPECT_EQ(added_copies({.layers = 2, .buckets = {.min_bytes = 1, .max_bytes = 4 << 20}}), 0);
}

// bf16 parameters: by default gradients travel in f32, so each is converted, and its average back.
TEST_F(DdpLaunches, HalfBucketsSaveTheConversions) {
  EXPECT_EQ(added_copies({.layers = 2, .parameters = kBF16, .buckets = {.dtype = kBF16}}), 0);
  const Step converted = third_step({.layers = 2, .parameters = kBF16}, true);
  EXPECT_EQ(converted.finish.launches, (std::map<std::string, int64_t>{{"rondo_cast/0", 27}}));
  EXPECT_EQ(converted.finish.copies, 3);  // the pieces of the embedding
}

}  // namespace
}  // namespace rondo::dist
