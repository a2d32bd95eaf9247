// Placement: which device and which cores each rank of a machine uses.
//
//   const auto job = dist::Environment::from_process();
//   const Device device = dist::device_of_rank("cuda", job);   // cuda:1 for the second rank of this machine
//   const dist::Pinned pinned = dist::pin_threads(device);     // optional: only when a program asks for it
//   const auto group = dist::ProcessGroup::connect(job);
//   dist::check_devices(*group, device);                       // no two ranks use the same GPU
//
// Thread safety: pin_threads() changes all threads of the process, so call it early and from one thread. The other
// functions: any thread.
#pragma once

#include <string>
#include <string_view>

#include "rondo/dist/groups/process_group.h"
#include "rondo/dist/transport/environment.h"
#include "rondo/runtime/device/device.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

// Returns the device that `text` means on this rank. A text without a number ("cuda") means the device whose number is
// the rank's number on this machine (LOCAL_RANK), among those that the process sees (CUDA_VISIBLE_DEVICES). If the
// process sees only one device, the text means this device: srun can show each rank its own. A text with a number
// ("cuda:1"), "cpu", and a job with one process on this machine: like parse_device(). Throws Error if this process has
// no such device.
Device device_of_rank(std::string_view text, const Environment& environment);

// What a rank tells the others about its device.
struct DeviceClaim {
  std::string device;   // such as "cuda:1"
  std::string machine;  // equal on all ranks of a machine, and on no other
  std::string unit;     // DevicePlace::unit: identifies the device within the machine; empty: ranks may share it
};
DeviceClaim claim_of(Device device);
// A collective. Throws Error on every rank if two ranks of a machine use the same device, or if some ranks use another
// kind of device than the others. The message names both ranks.
void check_devices(ProcessGroup& group, const DeviceClaim& mine);
void check_devices(ProcessGroup& group, Device device);

struct Pinned {
  int cores = 0;     // cores that the threads may use now; 0: nothing was changed
  std::string text;  // "threads run on cores 0-15, near cuda:0 (0000:3b:00.0)", or why nothing was changed
};
// Restricts the threads of this process, and those that they start later, to those cores near the device that the
// process may use. Reads local_cpulist of the device's PCI address below `sysfs`. Nothing is changed if the system does
// not list the near cores, or if the process may use none of them. Never throws.
Pinned pin_threads(Device device, const std::string& sysfs = "/sys");

}  // namespace rondo::dist
#pragma GCC visibility pop
