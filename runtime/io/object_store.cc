#include "rondo/runtime/io/object_store.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace rondo::io {

// Keeps an object in memory. If kMostHeld are held, first drops the least recently used quarter. REQUIRES: mutex_ is
// held.
void ObjectStore::hold(const std::string& text, std::string object, bool from_artifact) {
  if (held_.size() >= kMostHeld) {
    std::vector<uint64_t> ages;
    for (const auto& [other, held] : held_) ages.push_back(held.last_use);
    std::nth_element(ages.begin(), ages.begin() + kMostHeld / 4, ages.end());
    const uint64_t oldest_kept = ages[kMostHeld / 4];
    std::erase_if(held_, [&](const auto& entry) { return entry.second.last_use < oldest_kept; });
  }
  held_[text] = {std::move(object), from_artifact, ++uses_};
}

ObjectStore::From ObjectStore::find(const std::string& text, Read read) {
  // Reports a damaged object. REQUIRES: no lock is held, because the sink of the log may ask this store for a report.
  const auto reject = [&](const absl::Status& damage) { disk_.reject(text, std::string(damage.message())); };
  absl::Status damage;
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = held_.find(text); found != held_.end()) {
      const bool from_artifact = std::exchange(found->second.from_artifact, false);
      found->second.last_use = ++uses_;
      damage = read(found->second.object);
      if (damage.ok()) return from_artifact ? From::kArtifact : From::kMemory;
      held_.erase(found);
    }
  }
  if (!damage.ok()) reject(damage);
  std::optional<std::string> object = disk_.find(text);
  if (!object) return From::kNowhere;
  damage = read(*object);
  if (!damage.ok()) {
    reject(damage);
    return From::kNowhere;
  }
  const std::lock_guard lock(mutex_);
  hold(text, *std::move(object));
  return From::kDisk;
}

ObjectStore::From ObjectStore::find_or_make(const std::string& text, Read read,
                                            absl::FunctionRef<std::optional<std::string>()> make) {
  {
    std::unique_lock lock(mutex_);
    made_.wait(lock, [&] { return !being_made_.contains(text); });
    being_made_.insert(text);
  }
  // Runs whether the object was made or making it failed. Each thread that waited then looks for the object again, and
  // makes it if it is still missing.
  const absl::Cleanup done = [&] {
    const std::lock_guard lock(mutex_);
    being_made_.erase(text);
    made_.notify_all();
  };
  const From from = find(text, read);
  if (from != From::kNowhere) return from;
  if (std::optional<std::string> object = make()) add(text, *std::move(object));
  return From::kMade;
}

void ObjectStore::add(const std::string& text, std::string object) {
  disk_.store(text, object);
  const std::lock_guard lock(mutex_);
  hold(text, std::move(object));
}

KernelFile ObjectStore::contents() const {
  KernelFile file{host_.text(), {}};
  const std::lock_guard lock(mutex_);
  for (const auto& [text, held] : held_) file.kernels.push_back({text, held.object});
  return file;
}

absl::Status ObjectStore::take(KernelFile file, Read check) {
  for (const KernelRecord& record : file.kernels)
    if (absl::Status status = check(record.object); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  for (KernelRecord& record : file.kernels) {
    if (held_.contains(record.kernel)) continue;
    hold(record.kernel, std::move(record.object), /*from_artifact=*/true);
    has_artifacts_ = true;
  }
  return absl::OkStatus();
}

bool ObjectStore::has_artifacts() const {
  const std::lock_guard lock(mutex_);
  return has_artifacts_;
}

size_t ObjectStore::forget() {
  const std::lock_guard lock(mutex_);
  has_artifacts_ = false;
  return std::exchange(held_, {}).size();
}

std::vector<std::string> ObjectStore::some_texts(size_t at_most_each) const {
  std::vector<std::string> texts = disk_.some_kernels(at_most_each);
  const std::lock_guard lock(mutex_);
  for (const auto& [text, held] : held_)
    if (texts.size() < 2 * at_most_each) texts.push_back(text);
  return texts;
}

}  // namespace rondo::io
