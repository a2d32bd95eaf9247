// Stores the texts of plans, by graph and by capability of the device: in memory, in the disk cache of generated
// kernels (io/object_store.h), and in artifacts. A refusal is stored only if there is a device, and is never shipped:
// without a driver, cuDNN refuses graphs that it would serve with one (cudnn_plans.md). Thread safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rondo/runtime/cuda/cudnn.h"
#include "rondo/runtime/io/kernel_file.h"
#include "rondo/runtime/io/object_store.h"

namespace rondo::cuda {

// The value of "build" in the key of plans. It keeps plans apart from compiled code.
inline constexpr const char* kDnnMaker = "cuDNN plans";

// The library's answer for a graph: a plan or a refusal.
struct MadePlan {
  std::string text;     // as cuDNN writes it; empty: there is no plan
  std::string why_not;  // if there is no plan: the library's reason
  int64_t engine = -1, workspace = 0;
  std::string notes;  // "tensor cores, native CUDA graphs"

  std::string pack() const;
  // False: the bytes are damaged.
  bool unpack(const std::string& bytes);
};

struct StoredPlan {
  io::ObjectStore::From from = io::ObjectStore::From::kMemory;
  MadePlan plan;
};
// Returns the stored plan of a graph. If there is none, calls `make` and stores its result; other threads that want the
// same plan wait. `keeps_refusals`: stores refusals, too; true if there is a device.
StoredPlan stored_plan(const Cudnn& library, int capability, const std::string& graph, bool keeps_refusals,
                       const std::function<MadePlan()>& make);
// Replaces a stored plan whose text a device has refused.
void replace_plan(const Cudnn& library, int capability, const std::string& graph, const MadePlan& plan);

// ---- For artifacts: one file for each capability that runs code of the architecture
std::vector<io::KernelFile> stored_plans(int architecture);
// Takes the plans of a file. kInvalidArgument: damaged. kFailedPrecondition: made by another cuDNN or for another
// device. After an error, nothing was taken.
absl::Status add_plans(int architecture, const io::KernelFile& file);
// Forgets the plans in memory, and the location of the disk cache: for tests.
void forget_plans();

}  // namespace rondo::cuda
