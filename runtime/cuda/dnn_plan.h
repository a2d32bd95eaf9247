// Plans of cuDNN: START HERE. make_plan() asks the library for one, without a device; DnnPlan runs one on a device.
//
// Note [Plans without a device]. cuDNN makes a plan from a graph and a description of a device (its properties as
//   JSON), and writes the plan as text. A process that has the device reads this text. Neither step needs a driver. If
//   a device has no text for a graph yet, the process makes and reads one in the same two steps, so a shipped plan is
//   the plan that the process would have made. cuDNN's documentation ("Deviceless Ahead-of-time Compilation") asks for
//   the same properties in both steps. If a device refuses a text, a plan is made for this device.
// Note [Engines]. The heuristic lists engines, the best one first. Rondo takes the first engine that is repeatable from
//   run to run, sums in f32, keeps f32 operands as they are (unless TF32 is allowed), needs no more workspace than the
//   graph allows, and builds. For 16-bit types neither Winograd nor FFT is taken: they round between their steps.
// Note [Without a plan]. Graphs that no engine serves run as our own kernels and decompositions. Each such graph is
//   counted (dnn_report). The compiler's log (perf_hints) and compile::explain() name it, with the op and its line of
//   the program.
//
// Thread safe.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "rondo/runtime/cuda/dnn_graph.h"
#include "rondo/runtime/cuda/dnn_store.h"

namespace rondo::cuda {

class DeviceState;

// Makes a plan for the graph. If no engine serves the graph, the result has only a reason (why_not); this is not an
// error.
MadePlan make_plan(const Cudnn& library, const DnnGraph& graph, const std::string& device_properties);

// Reads a plan from its text. Returns the bytes of the plan's workspace, or -1 if the library refuses the text.
int64_t read_plan(const Cudnn& library, const std::string& text, const std::string& device_properties);

// Returns the properties (JSON) with which plans for a capability are made if this machine has no such device: those of
// an A100, an H100 or a B200. For other capabilities: the properties of the next older of these devices, but with the
// capability itself.
std::string properties_of(int capability);

// Counts of plans and of their runs in this process.
struct DnnReport {
  int64_t made = 0, from_disk = 0, from_artifacts = 0;  // plans, by where their text came from
  int64_t refused = 0;                                  // graphs without a plan
  int64_t runs = 0, runs_otherwise = 0;                 // runs of plans; runs of graphs without a plan
  std::vector<std::string> last;                        // the latest 64 graphs without a plan, in words
};
DnnReport dnn_report();

class DnnPlan {
 public:
  // Makes or loads the plan of a graph. `what`: the graph in words. The result is never null, but it may be a plan that
  // is not usable(). Throws DeviceError if the device does not work. Making a plan takes up to seconds, so callers keep
  // the result.
  static std::shared_ptr<const DnnPlan> get(int device, const DnnGraph& graph, const std::string& what);
  ~DnnPlan();
  DnnPlan(const DnnPlan&) = delete;
  DnnPlan& operator=(const DnnPlan&) = delete;

  // False: no engine serves the graph, or there is no cuDNN.
  bool usable() const { return plan_ != nullptr; }
  // Enqueues the plan on the device's compute stream. REQUIRES: usable(); addresses as in Note [Addresses of a graph],
  // all of them multiples of 16. Throws DeviceError, OutOfMemoryError.
  void enqueue(std::span<const void* const> operands) const;
  int64_t workspace() const { return workspace_; }

 private:
  DnnPlan(int device, const DnnGraph& graph, std::string what);
  bool load(DeviceState& state, const MadePlan& made, std::string* why_not);

  const int device_;
  const std::string what_;
  Cudnn library_;  // a copy: the plan may outlive the table of functions
  DnnDescriptor plan_ = nullptr;
  int64_t workspace_ = 0;  // bytes: the engine's workspace, then the scratch tensors
  struct Scratch {
    int64_t id, offset;
  };
  std::vector<int64_t> operands_;  // ids of the operands, in order
  std::vector<Scratch> scratch_;
  struct Number {
    int64_t id;
    alignas(8) std::byte value[8];
  };
  std::vector<Number> numbers_;
};

// Counts a call that runs without a plan, for dnn_report().
void count_run_without_plan();

}  // namespace rondo::cuda
