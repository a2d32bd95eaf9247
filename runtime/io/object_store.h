// Keeps objects that the process makes from texts: code of kernels, plans of a library. An object is looked up by its
// text in memory, which also holds the objects of artifacts, then in the disk cache. If it is in neither, it is made.
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
  // The most objects that are kept in memory: 8,192 kernels have about 80 MB.
  static constexpr size_t kMostHeld = 8192;

  ObjectStore(DiskCacheOptions disk, HostKey host) : host_(host), disk_(std::move(disk), std::move(host)) {}

  // Where an object was found. The first find of an artifact's object gives kArtifact, later ones kMemory.
  enum class From : uint8_t { kMemory, kArtifact, kDisk, kMade, kNowhere };
  // Receives an object. An error means that the object is damaged: the store then drops it, on disk too. The function
  // must not call the store.
  using Read = absl::FunctionRef<absl::Status(const std::string& object)>;
  // Gives the object of this text to `read`, unless the result is kNowhere.
  From find(const std::string& text, Read read);
  // Like find(). If there is no object, calls `make`, and not `read`, and keeps what it returns; nullopt: keeps
  // nothing. Other threads that ask for the same text wait meanwhile.
  From find_or_make(const std::string& text, Read read, absl::FunctionRef<std::optional<std::string>()> make);
  // Keeps an object in memory and on disk. Replaces an earlier object of the same text.
  void add(const std::string& text, std::string object);

  // Returns all objects in memory, ordered by text, with the key of this store: for an artifact.
  KernelFile contents() const;
  // Adds the objects of an artifact to memory if `check` accepts all of them, otherwise none. Objects that the store
  // already has are not replaced. The caller has checked the file's key (io::accepts).
  absl::Status take(KernelFile file, Read check);
  // True if take() added an object since the last forget().
  bool has_artifacts() const;
  size_t forget();  // drops the objects in memory; returns their number

  // Returns the texts of some objects on disk and in memory, to explain a miss.
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
  mutable std::mutex mutex_;  // guards the members below
  std::map<std::string, Held> held_;
  uint64_t uses_ = 0;
  bool has_artifacts_ = false;
  std::set<std::string> being_made_;
  std::condition_variable made_;
};

}  // namespace rondo::io
