// The ways that an op runs on a device: its kernel, the fallback without a kernel, and errors that kernels find.
#include <gtest/gtest.h>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/fake_device/fake_device.h"
#include "rondo/tests/fake_device/test_device.h"

namespace rondo {
namespace {

void same_as_first(InferContext& c) { c.output(0, c.dtype(0), c.sizes(0)); }

// x * 2 + 1, in parts.
constexpr OpDef kInParts = {
    .name = "in_parts",
    .kind = OpKind::kOpaque,
    .infer = &same_as_first,
    .decompose = [](std::span<const Tensor> in, const Attrs&, std::span<Tensor> out) { out[0] = in[0] * 2.0 + 1.0; },
    .grad = [](const GradContext& g) { g.set(0, g.grad_out() * 2.0); },
    .overwrites = 0,
};
constexpr OpDef kNothing = {.name = "nothing", .kind = OpKind::kOpaque, .infer = &same_as_first, .overwrites = 0};

TEST(KernelEntry, WithoutAKernelTheDecompositionRuns) {
  Tensor x = Tensor::from<double>({1, 2}, {2});
  x.requires_grad_();
  const Tensor y = call(kInParts, {x});
  EXPECT_EQ(y.to_vector<double>(), (std::vector<double>{3, 5}));
  ops::sum(y).backward();
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{2, 2}));
  Tensor z = Tensor::from<double>({1, 2}, {2});
  const Tensor view = z.slice(0, {1, 2});
  call_in_place(kInParts, {view});
  EXPECT_EQ(z.to_vector<double>(), (std::vector<double>{1, 5}));
}

TEST(KernelEntry, WithNeitherTheErrorNamesOpAndDevice) {
  const Tensor x = Tensor::ones({2});
  const std::string device = to_string(x.device());
  for (const std::string& message :
       {test::error_of([&] { call(kNothing, {x}); }), test::error_of([&] { call_in_place(kNothing, {x}); })}) {
    EXPECT_NE(message.find("nothing: has neither a kernel for " + device + " nor a decomposition"), message.npos)
        << message;
    EXPECT_NE(message.find("kernel_entry_test.cc:"), message.npos) << message;
  }
}

class BadIndices : public testing::Test {
 protected:
  void SetUp() override {
    if (test::test_device() != kCPU) GTEST_SKIP() << "makes a fake device of its own";
  }
  // The message of `call`, which a module makes and which may only be found by a later wait.
  template <class Call> static std::string message(Device device, Call call) {
    const DeviceScope scope(device);
    return test::error_of([&] {
      {
        const std::string path = "h.3.wte";
        const ModuleFrame frame(&path, std::source_location::current());
        call();
      }
      const std::string path = "elsewhere";
      const ModuleFrame frame(&path, std::source_location::current());
      synchronize(device);
    });
  }
};

// The words that errors of a device end with if it runs behind the program.
constexpr const char* kFoundLate =
    ". Found late: fake:0 runs behind the program, and this call is the first that waited for it since";

// After a call that failed, a program synchronizes: no later call has to do with the error then.
TEST_F(BadIndices, SynchronizeClearsThem) {
  test::FakeDevice fake({.seed = 3, .early = 0});
  const DeviceScope scope(fake.device());
  const Tensor x = Tensor::ones({3});
  ops::index_select(x, 0, Tensor::from<int64_t>({3}, {1}));
  EXPECT_THROW(x + Tensor::ones({2}), Error);  // at once
  EXPECT_NE(test::error_of([&] { synchronize(fake.device()); }).find("index 3"), std::string::npos);
  EXPECT_FALSE(backend_of(fake.device()).failed(0));
  EXPECT_EQ((x + x).to_vector<float>()[2], 2.0f);
  EXPECT_NO_THROW(synchronize(fake.device()));
}

TEST_F(BadIndices, SayTheSameNowAndLater) {
  test::FakeDevice fake({.early = 0});
  const std::function<void()> calls[] = {
      [] {
        ops::embedding(Tensor::ones({3, 2}), Tensor::from<int64_t>({1, 7}, {2}));
      },
      [] {
        ops::gather(Tensor::ones({3}), 0, Tensor::from<int64_t>({2, -1}, {2}));
      },
      [] {
        ops::scatter(Tensor::ones({3}), 0, Tensor::from<int64_t>({2, 3}, {2}), 4.0);
      },
      [] {
        ops::scatter_add(Tensor::ones({3}), 0, Tensor::from<int64_t>({5, 9}, {2}), Tensor::ones({2}));
      },
      [] { ops::index_select(Tensor::ones({3}), 0, Tensor::from<int64_t>({3}, {1})); },
      [] {
        ops::cross_entropy(Tensor::ones({2, 5}), Tensor::from<int64_t>({0, 5}, {2}));
      },
      [] {
        ops::linear_cross_entropy(Tensor::ones({1, 2}), Tensor::ones({5, 2}), Tensor(),
                                  Tensor::from<int64_t>({6}, {1}));
      },
  };
  for (const auto& call : calls) {
    const std::string now = message(kCPU, call);
    EXPECT_NE(now.find("out of range for size"), now.npos) << now;
    EXPECT_NE(now.find("kernel_entry_test.cc:"), now.npos) << now;
    EXPECT_NE(now.find(", in h.3.wte)"), now.npos) << now;
    EXPECT_EQ(message(fake.device(), call), now + kFoundLate);
  }
}

TEST_F(BadIndices, TheFirstIsNamedForAnyNumberOfThreads) {
  const int64_t n = int64_t{1} << 18;
  std::vector<int64_t> at(static_cast<size_t>(n), 0);
  at[1000] = 11;
  at[static_cast<size_t>(n) - 1] = 12;
  const Tensor x = Tensor::ones({n, 1}), index = Tensor::from(at, {n, 1});
  const int before = num_threads();
  for (int threads : {1, 4}) {
    set_num_threads(threads);
    const std::string found = message(kCPU, [&] { ops::gather(x, 1, index); });
    EXPECT_NE(found.find("gather: index 11 is out of range for size 1 ("), found.npos) << found;
    EXPECT_NE(found.find(", in h.3.wte)"), found.npos) << found;
  }
  set_num_threads(before);
}

// The backward is queued before anybody knows of the forward's error, and must not touch what is not there.
TEST_F(BadIndices, ABackwardAfterABadForwardTouchesNothing) {
  test::FakeDevice fake({.early = 0});
  const DeviceScope scope(fake.device());
  Tensor logits = Tensor::ones({2, 5}), table = Tensor::ones({3, 2});
  for (Tensor* leaf : {&logits, &table}) leaf->requires_grad_();
  ops::cross_entropy(logits, Tensor::from<int64_t>({0, int64_t{1} << 40}, {2})).backward();
  EXPECT_NE(test::error_of([&] { synchronize(fake.device()); }).find("cross_entropy: index"), std::string::npos);
  ops::sum(ops::embedding(table, Tensor::from<int64_t>({int64_t{1} << 40}, {1}))).backward();
  EXPECT_NE(test::error_of([&] { synchronize(fake.device()); }).find("embedding: index"), std::string::npos);
}

}  // namespace
}  // namespace rondo
