// Emitted CUDA kernels against the interpreter: run on the host in three orders of threads, and compared bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rondo/compile/codegen/cuda/schedule.h"
#include "rondo/tests/compile/kernel_fixture.h"
#include "rondo/tests/cuda_on_host/kernel_files.h"

namespace rondo::compile::cuda {

// Kernels that are compiled together, and then run.
class Batch {
 public:
  // kDynamic: the code reads every size at run time, and was made for other sizes. kWide: it has 64-bit indices.
  enum class Sizes { kConstant, kDynamic, kWide };
  // `given`: contents of operands; those of others are random.
  using Contents = std::vector<std::pair<int32_t, Buffer>>;
  // REQUIRES: the kernel is split for CUDA.
  void add(LoopKernel kernel, RunOptions options = {}, Sizes sizes = Sizes::kConstant, Contents given = {},
           std::vector<ScalarFrom> scalars = {});
  void add_both(const LoopKernel& kernel, const RunOptions& options = {}) {
    add(kernel, options);
    add(kernel, options, Sizes::kDynamic);
  }
  size_t size() const { return cases_.size(); }
  const std::vector<cuda_on_host::KernelFiles::Source>& sources() const { return sources_; }

  // Compiles and runs all, in three orders of threads and blocks, from operands at the end and at the beginning of
  // their memory. Everything that they write equals what the interpreter writes in the schedule's order; where there
  // are column sums, so does what the second launch makes of the partial sums.
  void check() const;

 private:
  struct Case {
    LoopKernel kernel;  // split
    Schedule schedule;
    RunOptions options;
    Contents given;
    std::string text;
    int32_t code, combine = -1;  // of sources_
  };
  int32_t add_source(const std::string& name, const std::string& text);
  void check(const Case& c, const cuda_on_host::KernelFiles& files, cuda_on_host::Order order,
             const std::vector<Buffer>& before, const std::vector<Buffer>& expected) const;

  std::vector<Case> cases_;
  std::vector<cuda_on_host::KernelFiles::Source> sources_;
};

// The interpreter's results for the operands.
void interpret_in_order(const LoopKernel& kernel, const Schedule& schedule, void* const* operands,
                        const double* scalars);
// Note [Column order on CUDA].
// `op`: of the chunks' results, kColumnSum, kColumnMax or kColumnMin.
void combine_in_order(const void* partial, LoopOp op, DType compute, int64_t chunks, int64_t cols, DType stored,
                      void* out);
// RondoSum::op
inline long long combine_code(LoopOp op) { return static_cast<int>(op) - static_cast<int>(LoopOp::kColumnSum); }
void interpret_in_order(const LoopKernel& kernel, const Schedule& schedule, const RunOptions& options,
                        std::vector<Buffer>& buffers);

}  // namespace rondo::compile::cuda
