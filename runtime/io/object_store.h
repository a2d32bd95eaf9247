// What this process has made, by the text that it is made from: code of kernels, plans of a library. An object is
// looked for in memory, where artifacts put theirs, too; then in the disk cache. Only then it is made.
//
//   Image image;
//   const auto read = [&](const std::string& object) { return unpack_image(object, image); };
//   store.find_or_make(text, read, [&] { return pack_image(image = compile(text)); });
//
// Thread safe.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "rondo/runtime/io/disk_cache.h"
#include "rondo/runtime/io/host_key.h"
#include "rondo/runtime/io/kernel_file.h"

namespace rondo::io {

class ObjectStore {
 public:
  // Bound of what is kept in memory: 8,192 kernels have about 80 MB.
  static constexpr size_t kMostHeld = 8192;

  ObjectStore(DiskCacheOptions disk, HostKey host) : host_(host), disk_(std::move(disk), std::move(host)) {}

  // Where an object comes from. One of an artifact counts as such once, then as one of ours.
  enum class From : uint8_t { kMemory, kArtifact, kDisk, kMade, kNowhere };
  // Takes an object. What it refuses is damaged, so the object is forgotten, on disk too. It must not call the store.
  using Read = absl::FunctionRef<absl::Status(const std::string& object)>;
  // Gives the object of this text to `read`, unless the result is kNowhere.
  From find(const std::string& text, Read read);
  // The same. If there is no object, `make` makes one (nullopt: one that is not kept), and `read` is not called. Other
  // threads that want it wait.
  From find_or_make(const std::string& text, Read read, absl::FunctionRef<std::optional<std::string>()> make);
  // Keeps an object in memory and on disk, in place of what was there.
  void add(const std::string& text, std::string object);

  // All objects in memory, ordered by text, with the key of this store: for an artifact.
  KernelFile contents() const;
  // Takes such objects if `check` accepts all of them, otherwise none. Those that are here already stay. The caller has
  // checked the file's key (io::accepts).
  absl::Status take(KernelFile file, Read check);
  // True if it took an object since the last forget().
  bool has_artifacts() const;
  size_t forget();  // what is in memory; returns the number of objects

  // Some texts that are there, on disk and in memory, for explaining a miss.
  std::vector<std::string> some_texts(size_t at_most_each) const;
  const HostKey& host() const { return host_; }
  const DiskCache& disk() const { return disk_; }

 private:
  struct Held {
    std::string object;
    bool from_artifact = false;
    uint64_t last_use = 0;
  };
  void hold(const std::string& text, std::string object, bool from_artifact = false);

  const HostKey host_;
  DiskCache disk_;
  mutable std::mutex mutex_;  // guards what follows
  std::map<std::string, Held> held_;
  uint64_t uses_ = 0;
  bool has_artifacts_ = false;
  std::set<std::string> being_made_;
  std::condition_variable made_;
};

}  // namespace rondo::io
