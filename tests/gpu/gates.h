// The kernels of a training step and of all ops as machine code for a GPU that is not here, and what must hold for
// them: nothing is spilled, accesses are 16 bytes wide where the schedule promises it. Needs NVRTC, and no device.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "rondo/tests/cuda/step_launches.h"
#include "rondo/tests/gpu/machine_code.h"

namespace rondo::test {

struct GatedKernel {
  MachineCode code;
  std::string cubin;
  int architecture = 0;
  bool by_hand = false;
  int threads = 0;                                       // of a block, in its largest launch
  unsigned dynamic_shared = 0;                           // bytes that its launches ask for
  int64_t launches = 0;                                  // in a step; of an op: in all samples
  bool promises_loads = false, promises_stores = false;  // of 16 bytes
};

// The kernels of a third training step, by name. Throws Error without NVRTC.
std::vector<GatedKernel> kernels_of_step(const StepOptions& options, int architecture);
// Those by hand, of every op, for the dtypes that it takes (f32 and bf16 of the floating ones).
std::vector<GatedKernel> kernels_by_hand(int architecture);

// Sectors of global memory that a kernel moves in a step, counted by the source executor.
struct Sectors {
  double per_ideal = 1;  // for each sector that its bytes fill
  double share = 0;      // of the step's sectors
  // Kernels that move next to nothing are listed, and not gated: a list of a few f64 begins and ends within a sector.
  bool holds() const { return per_ideal <= 1.1 || share < 0.01; }
};
// By kernel. Accesses that go through the kernels' functions for memory count (device_math.h), so some kernels by hand
// have none.
std::map<std::string, Sectors> sectors_of_step(const StepOptions& options);

// The gates that do not hold, a line each; empty: all do.
std::vector<std::string> broken_gates(const GatedKernel& kernel);

}  // namespace rondo::test
