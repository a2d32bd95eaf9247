// The misuses that the fake cuBLASLt catches, by name; and that its descriptors answer as the real library's do, which
// needs no GPU for them.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <source_location>
#include <string>
#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/cuda/module.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/fake_cuda/fake_cuda.h"

namespace rondo {
namespace {

using cuda::LtStatus;
using test::FakeCuda;

// ---- Planted mistakes. Each ends the process, with its name.

// A right product by hand: D (4 x 3) = A (4 x 5) B (5 x 3), all by columns, with a workspace. A test breaks one thing.
struct Broken {
  FakeCuda cuda;
  cuda::DeviceState& state;
  cuda::ContextScope scope;
  const cuda::CublasLt& lt;
  cuda::LtHandle handle;
  cuda::LtDesc desc = nullptr;
  cuda::LtPreference preference = nullptr;
  cuda::LtType type = cuda::LtType::kF32;
  cuda::LtLayout layouts[4] = {};  // of A, B, C, D
  float *a, *b, *d, *bias, *workspace;
  size_t workspace_bytes = 1 << 20;
  float one = 1, zero = 0;
  cuda::LtHeuristic found{};
  int count = 0;

  explicit Broken(fake_cuda::Options options = {})
      : cuda(options),
        state(cuda::device_state(0)),
        scope(state),
        lt(cuda::require_cublas_lt()),
        handle(state.lt_handle()) {
    check(lt.desc_create(&desc, cuda::LtCompute::kF32, cuda::LtType::kF32));
    check(lt.preference_create(&preference));
    prefer(cuda::LtPreferenceAttribute::kMaxWorkspace, uint64_t{1} << 20);
    set_layout(0, 4, 5, 4);
    set_layout(1, 5, 3, 5);
    set_layout(2, 4, 3, 4);
    set_layout(3, 4, 3, 4);
    a = block(20), b = block(15), d = block(12), bias = block(4), workspace = block(1 << 18);
  }
  void check(LtStatus status) const {
    if (status != LtStatus::kSuccess) throw DeviceError(lt.status_string(status));
  }
  float* block(size_t floats) {
    cuda::DevicePtr address = 0;
    state.check(state.driver().memory_allocate(&address, floats * 4), "cuMemAlloc");
    state.check(state.driver().fill_bytes(address, 0, floats * 4, state.compute()), "cuMemsetD8Async");
    return reinterpret_cast<float*>(address);
  }
  void set_layout(int which, uint64_t rows, uint64_t columns, int64_t ld) {
    check(lt.layout_create(&layouts[which], type, rows, columns, ld));
  }
  template <class T> void describe(cuda::LtDescAttribute attribute, T value) {
    check(lt.desc_set(desc, attribute, &value, sizeof value));
  }
  template <class T> void lay(int which, cuda::LtLayoutAttribute attribute, T value) {
    check(lt.layout_set(layouts[which], attribute, &value, sizeof value));
  }
  template <class T> void prefer(cuda::LtPreferenceAttribute attribute, T value) {
    check(lt.preference_set(preference, attribute, &value, sizeof value));
  }
  void choose() {
    check(lt.heuristic(handle, desc, layouts[0], layouts[1], layouts[2], layouts[3], preference, 1, &found, &count));
  }
  void multiply(void* c = nullptr) {
    check(lt.matmul(handle, desc, &one, a, layouts[0], b, layouts[1], &zero, c == nullptr ? d : c, layouts[2], d,
                    layouts[3], &found.algo, workspace, workspace_bytes, state.compute()));
  }
  void run() { choose(), multiply(), state.wait_all(); }
  void with_bias() {
    describe(cuda::LtDescAttribute::kEpilogue, static_cast<uint32_t>(cuda::LtEpilogue::kBias));
    describe(cuda::LtDescAttribute::kBiasPointer, static_cast<const void*>(bias));
  }
};

class CublasLtDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};
template <class F> void expect_caught(const char* message, F mistake, fake_cuda::Options options = {}) {
  EXPECT_DEATH(
      {
        Broken broken(options);
        mistake(broken);
      },
      message);
}
// The same, but the library only says that it cannot do it.
template <class F> void expect_refused(F change) {
  Broken broken;
  change(broken);
  EXPECT_THROW(broken.choose(), DeviceError);
  broken.cuda.expect_lost();
}

TEST_F(CublasLtDeathTest, NothingIsWrong) {
  Broken broken;
  broken.with_bias();
  broken.run();
  EXPECT_EQ(broken.cuda->counts().products, 1);
  broken.cuda.expect_lost();  // its blocks and descriptors are left
}
TEST_F(CublasLtDeathTest, ALeadingDimensionThatIsTooSmall) {
  expect_caught("the leading dimension 3 of A is less than its 4 rows", [](Broken& b) {
    b.set_layout(0, 4, 5, 3);
    b.run();
  });
}
TEST_F(CublasLtDeathTest, ALeadingDimensionThatIsTooLarge) {
  expect_caught("cublasLtMatmul: an operand of .* bytes goes beyond its block of 80", [](Broken& b) {
    b.set_layout(0, 4, 5, 5);
    b.run();
  });
}
TEST_F(CublasLtDeathTest, AResultBehindItsBlock) {
  expect_caught("cublasLtMatmul: D of .* bytes goes beyond its block of 48", [](Broken& b) {
    b.set_layout(2, 4, 3, 5);
    b.set_layout(3, 4, 3, 5);
    b.run();
  });
}
TEST_F(CublasLtDeathTest, AWrongTransposition) {
  expect_caught("op\\(A\\) is 5 x 4, op\\(B\\) 5 x 3 and D 4 x 3", [](Broken& b) {
    b.describe(cuda::LtDescAttribute::kTransposeA, int32_t{1});
    b.run();
  });
}
TEST_F(CublasLtDeathTest, AnEmptyMatrix) {
  expect_caught("A is empty: 4 x 0", [](Broken& b) {
    b.set_layout(0, 4, 0, 4);
    b.run();
  });
}
TEST_F(CublasLtDeathTest, BatchesOfDifferentCounts) {
  expect_caught("A is a batch of 2, and D of 1", [](Broken& b) {
    b.lay(0, cuda::LtLayoutAttribute::kBatchCount, int32_t{2});
    b.run();
  });
}
TEST_F(CublasLtDeathTest, ABatchOfNothing) {
  expect_caught("A is a batch of 0", [](Broken& b) {
    for (int i = 0; i < 4; ++i) b.lay(i, cuda::LtLayoutAttribute::kBatchCount, int32_t{0});
    b.run();
  });
}
TEST_F(CublasLtDeathTest, AnAlignmentThatIsNone) {
  expect_caught("an alignment of 0 bytes", [](Broken& b) {
    b.prefer(cuda::LtPreferenceAttribute::kMinAlignmentB, uint32_t{0});
    b.run();
  });
}
TEST_F(CublasLtDeathTest, ResultsOfABatchThatOverlap) {
  expect_caught("the matrices of D overlap: their stride is 8", [](Broken& b) {
    for (int i = 0; i < 4; ++i) b.lay(i, cuda::LtLayoutAttribute::kBatchCount, int32_t{2});
    b.lay(3, cuda::LtLayoutAttribute::kBatchStride, int64_t{8});
    b.run();
  });
}
TEST_F(CublasLtDeathTest, AWorkspaceThatWasFreed) {
  expect_caught("the workspace is used after it was freed", [](Broken& b) {
    b.a = b.block(4 * 600), b.b = b.block(600 * 3);
    b.set_layout(0, 4, 600, 4), b.set_layout(1, 600, 3, 600);
    b.choose();
    b.state.wait_all();
    b.state.check(b.state.driver().memory_free(reinterpret_cast<cuda::DevicePtr>(b.workspace)), "cuMemFree");
    b.multiply();
  });
}
TEST_F(CublasLtDeathTest, AWorkspaceThatIsTooSmall) {
  expect_caught("the algorithm needs a workspace of 96 bytes, not 64", [](Broken& b) {
    b.a = b.block(4 * 600), b.b = b.block(600 * 3);
    b.set_layout(0, 4, 600, 4), b.set_layout(1, 600, 3, 600);
    b.workspace_bytes = 64;
    b.run();
  });
}
TEST_F(CublasLtDeathTest, AnAlignmentThatWasPromisedAndNotKept) {
  expect_caught("the algorithm wants A aligned to 256 bytes, and it is aligned to 16", [](Broken& b) {
    b.a = b.block(24) + 4;
    b.run();  // the default is 256
  });
}
TEST_F(CublasLtDeathTest, AHandleOfAnotherDevice) {
  expect_caught("the handle is of device 1, and the current context of device 0",
                [](Broken& b) {
                  b.handle = cuda::device_state(1).lt_handle();
                  b.run();
                },
                {.devices = 2});
}
TEST_F(CublasLtDeathTest, AStreamOfAnotherDevice) {
  expect_caught("the stream is of device 1, and the handle of device 0",
                [](Broken& b) {
                  b.choose();
                  b.check(b.lt.matmul(b.handle, b.desc, &b.one, b.a, b.layouts[0], b.b, b.layouts[1], &b.zero, b.d,
                                      b.layouts[2], b.d, b.layouts[3], &b.found.algo, b.workspace, b.workspace_bytes,
                                      cuda::device_state(1).compute()));
                },
                {.devices = 2});
}
TEST_F(CublasLtDeathTest, AnOperandOfAnotherDevice) {
  expect_caught("an operand is memory of device 1, and the work runs on device 0",
                [](Broken& b) {
                  const Tensor there = Tensor::ones({4, 5}).to(b.cuda.device(1));
                  b.a = reinterpret_cast<float*>(there.storage().data());
                  b.run();
                },
                {.devices = 2, .peers = false});
}
TEST_F(CublasLtDeathTest, ADescriptorThatWasDestroyed) {
  expect_caught("cublasLtMatmul: the product descriptor was destroyed", [](Broken& b) {
    b.choose();
    b.check(b.lt.desc_destroy(b.desc));
    b.multiply();
  });
}
TEST_F(CublasLtDeathTest, ALayoutThatWasDestroyed) {
  expect_caught("cublasLtMatmul: the layout of B was destroyed", [](Broken& b) {
    b.choose();
    b.check(b.lt.layout_destroy(b.layouts[1]));
    b.multiply();
  });
}
TEST_F(CublasLtDeathTest, ALayoutThatIsDestroyedTwice) {
  expect_caught("cublasLtMatrixLayoutDestroy: the layout was destroyed", [](Broken& b) {
    b.check(b.lt.layout_destroy(b.layouts[1]));
    b.check(b.lt.layout_destroy(b.layouts[1]));
  });
}
TEST_F(CublasLtDeathTest, AnAlgorithmOfAnotherProduct) {
  expect_caught("the algorithm was chosen for another product", [](Broken& b) {
    b.choose();
    b.describe(cuda::LtDescAttribute::kEpilogue, static_cast<uint32_t>(cuda::LtEpilogue::kGelu));
    b.multiply();
  });
}
TEST_F(CublasLtDeathTest, AResultThatIsAnOperand) {
  expect_caught("D overlaps A or B", [](Broken& b) {
    b.d = b.a;
    b.run();
  });
}
TEST_F(CublasLtDeathTest, AnAddedMatrixThatOverlapsTheResult) {
  expect_caught("C and D share memory without being the same matrix", [](Broken& b) {
    float* c = b.block(80);
    b.d = c;
    b.zero = 1;
    b.prefer(cuda::LtPreferenceAttribute::kMinAlignmentC, uint32_t{4});
    b.choose();
    b.multiply(c + 2);
  });
}
TEST_F(CublasLtDeathTest, ABiasWithoutAddress) {
  expect_caught("the address of the bias, which tells its alignment, is not set", [](Broken& b) {
    b.describe(cuda::LtDescAttribute::kEpilogue, static_cast<uint32_t>(cuda::LtEpilogue::kBias));
    b.run();
  });
}
TEST_F(CublasLtDeathTest, ABiasThatIsTooShort) {
  expect_caught("an operand of 16 bytes goes beyond its block of 8", [](Broken& b) {
    b.bias = b.block(2);
    b.with_bias();
    b.run();
  });
}
TEST_F(CublasLtDeathTest, AnUnknownEpilogue) {
  expect_caught("an unknown epilogue: 3", [](Broken& b) {
    b.describe(cuda::LtDescAttribute::kEpilogue, uint32_t{3});
    b.run();
  });
}
TEST_F(CublasLtDeathTest, AnUnknownAttribute) {
  expect_caught("cublasLtMatmulDescSetAttribute: unknown attribute 99",
                [](Broken& b) { b.describe(static_cast<cuda::LtDescAttribute>(99), int32_t{0}); });
}
TEST_F(CublasLtDeathTest, AnAttributeOfAnotherSize) {
  expect_caught("an attribute of 8 bytes is set with 4",
                [](Broken& b) { b.lay(0, cuda::LtLayoutAttribute::kBatchStride, int32_t{0}); });
}
TEST_F(CublasLtDeathTest, AResultThatNothingOrdersBeforeItsReader) {
  expect_caught("race: cuMemcpyDtoDAsync .* reads bytes that cublasLtMatmul .* writes, and no event", [](Broken& b) {
    b.choose();
    b.multiply();
    b.state.check(
        b.state.driver().copy_on_device(reinterpret_cast<cuda::DevicePtr>(b.bias),
                                        reinterpret_cast<cuda::DevicePtr>(b.d), 16, b.state.stream(Stream::kCopy)),
        "cuMemcpyDtoDAsync");
  });
}

TEST(CublasLtFake, RefusesTypesThatTheManualDoesNotList) {
  // Sums in f64 of f32; f32 operands with a bf16 result; f64 with GELU; a scale of another type.
  expect_refused([](Broken& b) { b.check(b.lt.desc_create(&b.desc, cuda::LtCompute::kF64, cuda::LtType::kF64)); });
  expect_refused([](Broken& b) {
    b.type = cuda::LtType::kBF16;
    b.set_layout(2, 4, 3, 4), b.set_layout(3, 4, 3, 4);
  });
  expect_refused([](Broken& b) {
    b.type = cuda::LtType::kF64;
    b.set_layout(0, 4, 5, 4), b.set_layout(1, 5, 3, 5), b.set_layout(2, 4, 3, 4), b.set_layout(3, 4, 3, 4);
    b.check(b.lt.desc_create(&b.desc, cuda::LtCompute::kF64, cuda::LtType::kF64));
    b.describe(cuda::LtDescAttribute::kEpilogue, static_cast<uint32_t>(cuda::LtEpilogue::kGelu));
  });
  expect_refused([](Broken& b) { b.check(b.lt.desc_create(&b.desc, cuda::LtCompute::kF32, cuda::LtType::kF64)); });
  expect_refused([](Broken& b) {
    b.with_bias();
    b.describe(cuda::LtDescAttribute::kBiasType, static_cast<int32_t>(cuda::LtType::kBF16));
  });
  expect_refused([](Broken& b) { b.lay(0, cuda::LtLayoutAttribute::kOrder, int32_t{1}); });
}

// ---- The real library's descriptors

// The answers to creating, setting and destroying descriptors, right and wrong.
std::vector<std::string> answers(const cuda::CublasLt& lt) {
  std::vector<std::string> answers;
  const auto note = [&](LtStatus status, std::source_location where = std::source_location::current()) {
    answers.push_back("line " + std::to_string(where.line()) + ": " + lt.status_string(status));
  };
  const auto set = [&](auto function, auto handle, auto attribute, auto value,
                       std::source_location where = std::source_location::current()) {
    note(function(handle, attribute, &value, sizeof value), where);
  };
  using enum cuda::LtType;
  for (const auto& [compute, scale] : {std::pair(cuda::LtCompute::kF32, kF32), std::pair(cuda::LtCompute::kF64, kF32),
                                       std::pair(static_cast<cuda::LtCompute>(12345), kF32)}) {
    cuda::LtDesc desc = nullptr;
    note(lt.desc_create(&desc, compute, scale));
    using enum cuda::LtDescAttribute;
    for (const auto attribute : {kTransposeA, kTransposeB, kBiasType}) {
      set(lt.desc_set, desc, attribute, int32_t{1});
      set(lt.desc_set, desc, attribute, int64_t{1});
    }
    set(lt.desc_set, desc, kEpilogue, uint32_t{36});
    set(lt.desc_set, desc, kEpilogue, uint32_t{99});
    set(lt.desc_set, desc, kEpilogue, uint16_t{4});
    set(lt.desc_set, desc, kBiasPointer, static_cast<const void*>(nullptr));
    set(lt.desc_set, desc, kBiasPointer, uint32_t{0});
    note(lt.desc_set(desc, kTransposeA, nullptr, 4));
    set(lt.desc_set, desc, static_cast<cuda::LtDescAttribute>(200), int32_t{1});
    note(lt.desc_destroy(desc));
  }
  for (const int64_t ld : {4, 2, 0, -1}) {
    cuda::LtLayout layout = nullptr;
    note(lt.layout_create(&layout, kF32, ld == 0 ? 0 : 4, 3, ld));
    using enum cuda::LtLayoutAttribute;
    set(lt.layout_set, layout, kBatchCount, int32_t{2});
    set(lt.layout_set, layout, kBatchCount, int32_t{0});
    set(lt.layout_set, layout, kBatchCount, int64_t{2});
    set(lt.layout_set, layout, kBatchStride, int64_t{0});
    set(lt.layout_set, layout, kBatchStride, int32_t{0});
    set(lt.layout_set, layout, kOrder, int32_t{1});
    set(lt.layout_set, layout, static_cast<cuda::LtLayoutAttribute>(77), int32_t{1});
    note(lt.layout_set(layout, kOrder, nullptr, 4));
    note(lt.layout_destroy(layout));
  }
  cuda::LtPreference preference = nullptr;
  note(lt.preference_create(&preference));
  using enum cuda::LtPreferenceAttribute;
  set(lt.preference_set, preference, kMaxWorkspace, uint64_t{1} << 20);
  set(lt.preference_set, preference, kMaxWorkspace, uint32_t{1} << 20);
  set(lt.preference_set, preference, kReductionSchemes, cuda::kReduceInComputeType);
  set(lt.preference_set, preference, kMinAlignmentA, uint32_t{16});
  set(lt.preference_set, preference, kMinAlignmentD, uint32_t{0});
  set(lt.preference_set, preference, kMinAlignmentB, uint64_t{16});
  set(lt.preference_set, preference, static_cast<cuda::LtPreferenceAttribute>(99), uint32_t{16});
  note(lt.preference_destroy(preference));
  for (const auto status :
       {LtStatus::kSuccess, LtStatus::kInvalidValue, LtStatus::kNotSupported, LtStatus::kAllocFailed})
    note(status);
  return answers;
}

TEST(CublasLtFake, DescriptorsAnswerAsTheRealOnesDo) {
  std::vector<std::string> real;
  {
    const test::Setting on("RONDO_CUDA", nullptr);
    cuda::forget_libraries();
    std::string why_not;
    const cuda::CublasLt* lt = cuda::find_cublas_lt(&why_not);
    if (lt == nullptr) GTEST_SKIP() << why_not;
    real = answers(*lt);
    cuda::forget_libraries();
  }
  FakeCuda cuda({.aborts = false});
  const std::vector<std::string> fake = answers(cuda::require_cublas_lt());
  ASSERT_EQ(fake.size(), real.size());
  for (size_t i = 0; i < real.size(); ++i) EXPECT_EQ(fake[i], real[i]) << "answer " << i;
  EXPECT_GT(cuda->misuses().size(), 20u);
}

}  // namespace
}  // namespace rondo
