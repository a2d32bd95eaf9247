// Code: what a plan runs on one device: its loaded kernels and its prepared library calls. Thread safe.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "rondo/compile/jit/kernel_table.h"
#include "rondo/compile/plan/plan.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/op/op.h"

namespace rondo::compile {

class Code {
 public:
  // `kernels`: the compiled kernels of the plan, in order. Throws Error if the plan was made for another target.
  Code(const Plan& plan, std::vector<CompiledKernel> kernels, Device device);
  Code(const Plan& plan, std::vector<CompiledKernel> kernels, Device device, const Target& target);

  Device device() const { return device_; }
  const Target& target() const { return *target_; }
  KernelHandle handle(int32_t kernel) const { return kernels_[static_cast<size_t>(kernel)].handle; }
  // Returns the prepared library call of a launch: all work that depends only on shapes is done. Null: the op's kernel
  // does this work in every run.
  const std::shared_ptr<const PreparedKernel>& prepared(size_t launch) const { return prepared_[launch]; }

  // Leases an arena for one run. With Plan::keeps_arena, reuses the arena of an earlier run if one is free.
  Storage lease_arena(const Plan& plan) const;
  void return_arena(Storage arena) const;

  // Prepares a library call with the algorithm number `variant`. Returns null if there is no such algorithm. Call
  // prepare() and set_prepared() before the code is shared with other threads (exec/tune.h).
  std::shared_ptr<const PreparedKernel> prepare(const Plan& plan, const Launch& launch, int variant) const;
  void set_prepared(size_t launch, std::shared_ptr<const PreparedKernel> call) { prepared_[launch] = std::move(call); }

 private:
  Device device_;
  const Target* target_;
  std::vector<CompiledKernel> kernels_;
  std::vector<std::shared_ptr<const PreparedKernel>> prepared_;  // by launch
  struct Arenas {
    std::mutex mutex;
    std::vector<Storage> spare;
  };
  std::unique_ptr<Arenas> arenas_ = std::make_unique<Arenas>();
};

}  // namespace rondo::compile
