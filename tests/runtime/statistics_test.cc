// Variances and standard deviations of the CPU's kernels (runtime/cpu/statistics.cc) have the bits of their
// decompositions, for any number of threads.
#include <gtest/gtest.h>

#include <array>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/random/random.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

TEST(Statistics, HaveTheBitsOfTheirDecompositions) {
  if (default_device() != kCPU) GTEST_SKIP() << "tests the CPU's kernels";
  const NoGrad off;
  manual_seed(11);
  const int threads = num_threads();
  struct Case {
    Dims sizes;
    int64_t mask;
  };
  // Channels of (N, C, H, W) and (N, C, L); rows; columns of one matrix and of several; what is left to the
  // decompositions: everything, interleaved dimensions, few results.
  for (const auto& [sizes, mask] :
       {Case{{5, 12, 17, 19}, 0b1101}, Case{{40, 9, 5000}, 0b101}, Case{{40, 70}, 0b10}, Case{{9, 3, 21}, 0b110},
        Case{{70, 1100}, 0b01}, Case{{3, 50, 700}, 0b010}, Case{{30, 17}, 0b11}, Case{{4, 5, 6, 7}, 0b1010},
        Case{{3, 900}, 0b10}, Case{{1, 33}, 0b01}, Case{{6, 1, 30, 1}, 0b0101}})
    for (const DType dtype : {kF32, kF64, kBF16}) {
      const Tensor x = (Tensor::randn(sizes) * 3.0 + 7.0).to(dtype);
      for (const OpDef* op : {find_op("var_mean"), find_op("std")})
        for (const int64_t keepdim : {0, 1})
          for (const int count : {1, 2, 5}) {
            SCOPED_TRACE(testing::Message() << op->name << to_string(sizes) << " over " << mask << ", keepdim "
                                            << keepdim << ", " << name_of(dtype) << ", " << count << " threads");
            set_num_threads(count);
            const Attrs attrs{.ints = {mask, keepdim}, .floats = {1.0}};
            std::vector<Tensor> expected(static_cast<size_t>(op->n_outputs)), results = expected;
            op->decompose(std::array{x}, attrs, expected);
            call(*op, {x}, attrs, results);
            for (size_t i = 0; i < results.size(); ++i) EXPECT_TRUE(test::same_bits(results[i], expected[i])) << i;
          }
    }
  set_num_threads(threads);
}

}  // namespace
}  // namespace rondo
