// CodeStore: the machine code of this process, keyed by the canonical texts of its kernels. It places the objects of
// io/object_store.h in memory, counts where code comes from, and explains misses. Thread safe.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "rondo/compile/cache.h"
#include "rondo/compile/target/machine_code.h"
#include "rondo/compile/target/target.h"
#include "rondo/runtime/io/object_store.h"

namespace rondo::compile {

using io::DiskCacheOptions;
using io::HostDifference;
using io::HostKey;
using io::KernelFile;
using io::KernelRecord;

// Returns the options of this process's disk cache, from the environment and RONDO_DISABLE. Warnings about the disk
// cache go to the log.
DiskCacheOptions disk_cache_options();

class CodeStore {
 public:
  CodeStore(DiskCacheOptions disk, HostKey host, const Target& target)
      : target_(target), objects_(std::move(disk), std::move(host)) {}
  // Returns this process's store for a target, with the disk cache that the environment names. It is never destroyed.
  static CodeStore& of(const Target& target);

  // Returns the code for a kernel. Null: a miss, so the caller compiles the kernel and calls add(). `in_memory`: false
  // if the code comes from disk, or is taken from an artifact for the first time.
  struct Found {
    std::shared_ptr<const MachineCode> code = nullptr;
    bool in_memory = false;
  };
  Found find(const std::string& kernel);
  // Places code that was just compiled and keeps it, on disk too.
  std::shared_ptr<const MachineCode> add(const std::string& kernel, std::string object);

  // Returns all code in memory, with the key of this store, for an artifact.
  KernelFile contents() const { return objects_.contents(); }
  // Takes the code of an artifact. kInvalidArgument: damaged. kFailedPrecondition: for another host; takes nothing.
  absl::Status take(KernelFile file);
  // Counts kernels that the kernel table had, so that this store was not asked for them.
  void count_from_memory(int64_t kernels);
  CacheReport report() const;
  int64_t forget();                      // returns the number of kernels that it forgot
  static int64_t forget_all();           // as forget(), for all stores of this process
  static std::vector<CodeStore*> all();  // all stores of this process
  const Target& target() const { return target_; }
  bool has_artifacts() const { return objects_.has_artifacts(); }

 private:
  struct Miss {
    std::string kernel;
    HostDifference host;  // if there was code for another host: how that host differs
  };
  CacheReport::Miss explained(const Miss& miss, const std::vector<std::string>& known) const;
  absl::StatusOr<std::shared_ptr<const MachineCode>> place(const std::string& object) const;
  std::weak_ptr<const MachineCode>& placed(const std::string& kernel);

  const Target& target_;
  io::ObjectStore objects_;
  mutable std::mutex mutex_;  // guards the members below. find() takes it under the lock of objects_
  std::unordered_map<std::string, std::weak_ptr<const MachineCode>> placed_;
  CacheReport counts_;
  std::vector<Miss> misses_;
};

}  // namespace rondo::compile
