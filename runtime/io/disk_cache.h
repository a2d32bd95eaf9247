// Compiled kernels on disk, shared by all processes of a user:
//
//   <folder>/<hash of the host key>/<hash of the kernel's text>.rk      (a KernelFile with both texts in full)
//
// Using the cache never throws. If it is damaged, owned by another user, read-only or full, Rondo compiles again and
// gives one warning per process (DiskCacheOptions::warn). Any number of processes may share it: files become visible
// whole, by renaming, and two processes that write the same entry write the same bytes. Rondo runs this code, so it
// refuses files and folders that other users can write to. Thread safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/io/host_key.h"

namespace rondo::io {

struct DiskCacheOptions {
  std::string folder;  // created when the first kernel is stored; "" switches the cache off
  int64_t max_bytes = int64_t{256} << 20;
  void (*warn)(std::string_view text) = nullptr;  // null: no warnings

  // Reads the options from the environment. The folder is RONDO_CACHE_DIR, else $XDG_CACHE_HOME/rondo, else
  // ~/.cache/rondo. RONDO_CACHE=off or RONDO_DISABLE=cache switches the cache off. RONDO_CACHE_MB sets max_bytes.
  static DiskCacheOptions from_environment();
};

class DiskCache {
 public:
  // If a component of `host` is not known, the cache finds and stores nothing.
  DiskCache(DiskCacheOptions options, HostKey host);

  // Returns the object code for a kernel's canonical text; nullopt if the cache does not have it.
  std::optional<std::string> find(const std::string& kernel);
  void store(const std::string& kernel, const std::string& object);
  // Forgets an entry whose object turned out to be useless.
  void reject(const std::string& kernel, const std::string& why);

  // To explain a miss: returns how the most similar host key under which the cache has this kernel differs from ours.
  // Empty if there is none.
  HostDifference nearest_host(const std::string& kernel) const;
  // To explain a miss: returns the texts of some kernels that the cache has for this host.
  std::vector<std::string> some_kernels(size_t at_most) const;

  const std::string& folder() const { return root_; }

 private:
  std::string path_of(const std::string& kernel) const;
  bool usable();
  void make_folder(const std::string& path);
  void warn(const std::string& what);
  void write(const std::string& kernel, const std::string& object);
  bool prune_is_due(int64_t stored);
  void prune();
  std::vector<std::string> host_folders() const;

  const std::string root_;
  const int64_t max_bytes_;
  void (*const warn_)(std::string_view text);
  const HostKey host_;
  const std::string host_text_, folder_;

  enum class State : uint8_t { kUnknown, kAbsent, kUsable, kRefused };
  std::atomic<bool> warned_{false};
  std::mutex mutex_;  // guards the members below
  State state_ = State::kUnknown;
  bool writable_ = true;
  int64_t stored_ = 0;  // bytes that this process has stored
  int64_t bytes_ = -1;  // bytes of all entries, as far as this process knows; -1: not counted yet
};

}  // namespace rondo::io
