// Tuner: chooses the fastest of several ways to run one launch, measured once per machine (Mode::kMaxAutotune).
//
// Note [What a choice holds for]. A choice is kept for the code's host key (Target::key), for the device with the
//   versions of its driver and libraries (Target::machine), and for the launch. With another device, or a newer driver
//   or library, it is measured again: in another version, a library's algorithms have other numbers.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "rondo/compile/jit/code_store.h"
#include "rondo/runtime/device/device.h"

namespace rondo::compile {

// Thread safe; measuring is done by one thread at a time.
class Tuner {
 public:
  explicit Tuner(DiskCacheOptions disk) : options_(std::move(disk)) {}
  // Returns this process's tuner, with the disk cache that the environment names. It is never destroyed.
  static Tuner& instance();

  // Returns the position of the fastest candidate. Uses an earlier measurement of this process, or of another process
  // on an equal machine. If there is none, measures now, on the compute stream of `device`. `launch` describes all that
  // times depend on besides the machine: Note [What a choice holds for]. The first candidate wins unless another is
  // clearly faster.
  int fastest(const std::string& launch, std::span<const std::function<void()>> candidates, Device device = kCPU);
  // Returns the number of choices that were measured, not remembered.
  int64_t measured() const { return measured_.load(); }

  // ---- Artifacts hold choices next to the kernels of a target, as the target's folder on disk does.
  // Returns the choices that this process has made or taken for devices with this host key (its text).
  std::vector<io::KernelRecord> contents(const std::string& host);
  // True if a record of an artifact is a choice, not a kernel.
  static bool is_choice(const io::KernelRecord& record) { return record.kernel.starts_with(kPrefix); }
  // Remembers a choice from an artifact, for devices with this host key. kInvalidArgument: the record is damaged.
  absl::Status take(const HostKey& host, const io::KernelRecord& record);

 private:
  static constexpr char kPrefix[] = "tuning, ";
  // Returns the position of the fastest candidate. `best` gets each candidate's time in seconds.
  int measure(std::span<const std::function<void()>> candidates, Device device, std::vector<double>& best);

  io::ObjectStore& choices_for(const HostKey& host);

  const DiskCacheOptions options_;
  std::mutex measuring_;
  std::mutex mutex_;                                // guards the map
  std::map<std::string, io::ObjectStore> choices_;  // by the text of the host key that they hold for
  std::atomic<int64_t> measured_{0};
};

}  // namespace rondo::compile
