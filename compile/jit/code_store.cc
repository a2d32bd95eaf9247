#include "rondo/compile/jit/code_store.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/compile/log.h"
#include "rondo/compile/stages/planted.h"
#include "rondo/compile/stages/stages.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile {
namespace {

// Bounds of what is kept in memory: 8,192 kernels have about 80 MB.
constexpr size_t kMaxHeld = 8192;
constexpr size_t kMaxMisses = 256;

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// How far two kernels are alike, and the first line in which they are not.
struct Likeness {
  size_t equal_lines = 0;
  std::string first_difference;
};
Likeness compare_lines(const std::string& there, const std::string& here) {
  const std::vector<std::string> a = absl::StrSplit(there, '\n'), b = absl::StrSplit(here, '\n');
  Likeness result;
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string x = i < a.size() ? a[i] : "", y = i < b.size() ? b[i] : "";
    if (x == y) ++result.equal_lines;
    else if (result.first_difference.empty())
      result.first_difference = absl::StrCat("line ", i + 1, ": there \"", x, "\", here \"", y, "\"");
  }
  return result;
}

}  // namespace

namespace {
struct Stores {
  std::mutex mutex;
  // Also by the target's key: another NVRTC makes other code.
  std::map<std::pair<const Target*, std::string>, std::unique_ptr<CodeStore>> by_target;
};
Stores& stores() {
  static auto* const stores = new Stores;
  return *stores;
}
}  // namespace

DiskCacheOptions disk_cache_options() {
  if (!enabled(CompilerStage::kCache)) return {};
  DiskCacheOptions options = DiskCacheOptions::from_environment();
  options.warn = &log::warn_once;
  return options;
}

CodeStore& CodeStore::of(const Target& target) {
  std::lock_guard lock(stores().mutex);
  const HostKey& key = target.key();
  std::unique_ptr<CodeStore>& store = stores().by_target[{&target, key.text()}];
  if (store == nullptr) store = std::make_unique<CodeStore>(disk_cache_options(), key, target);
  return *store;
}

std::vector<CodeStore*> CodeStore::all() {
  std::lock_guard lock(stores().mutex);
  std::vector<CodeStore*> all;
  for (const auto& [key, store] : stores().by_target) all.push_back(store.get());
  return all;
}

int64_t CodeStore::forget_all() {
  std::lock_guard lock(stores().mutex);
  int64_t forgotten = 0;
  for (const auto& [target, store] : stores().by_target) forgotten += store->forget();
  return forgotten;
}

// Code from an object; null and `damage` set if it is no object of ours.
std::shared_ptr<const MachineCode> CodeStore::place(const std::string& object, std::string& damage) const {
  enter_stage(CompilerStage::kPlace);
  absl::StatusOr<std::shared_ptr<const MachineCode>> code = target_.place(object);
  if (code.ok()) return *std::move(code);
  if (absl::IsResourceExhausted(code.status()))
    throw Error(absl::StrCat("compile: ", std::string(code.status().message())));
  damage = std::string(code.status().message());
  return nullptr;
}

// REQUIRES: mutex_ is held. Null, with `damage`, if the object is damaged.
std::shared_ptr<const MachineCode> CodeStore::placed(const std::string& kernel, Held& held, std::string& damage) {
  held.last_use = ++uses_;
  std::shared_ptr<const MachineCode> code = held.code.lock();
  if (code != nullptr) return code;
  code = place(held.object, damage);
  held.code = code;
  if (code == nullptr) held_.erase(kernel);
  return code;
}

// REQUIRES: mutex_ is held.
CodeStore::Held& CodeStore::hold(const std::string& kernel, std::string object) {
  if (held_.size() >= kMaxHeld) {
    std::vector<uint64_t> ages;
    for (const auto& [text, held] : held_) ages.push_back(held.last_use);
    std::nth_element(ages.begin(), ages.begin() + kMaxHeld / 4, ages.end());
    const uint64_t oldest_kept = ages[kMaxHeld / 4];
    std::erase_if(held_, [&](const auto& entry) { return entry.second.last_use < oldest_kept; });
  }
  Held& held = held_[kernel];
  held.object = std::move(object);
  return held;
}

CodeStore::Found CodeStore::find(const std::string& kernel) {
  const auto tell = [&](const std::string& what) {
    if (log::enabled(log::Topic::kCache)) log::write(log::Topic::kCache, absl::StrCat(first_line(kernel), ": ", what));
  };
  // Told to the log, whose sink may ask for a report, when no lock is held.
  std::string damage;
  const auto reject = [&] {
    if (!damage.empty()) disk_.reject(kernel, std::exchange(damage, ""));
  };
  {
    std::unique_lock lock(mutex_);
    if (const auto found = held_.find(kernel); found != held_.end()) {
      // An artifact's kernel counts as such once, then as one of ours.
      const bool from_artifact = std::exchange(found->second.from_artifact, false);
      if (std::shared_ptr<const MachineCode> code = placed(kernel, found->second, damage)) {
        ++(from_artifact ? counts_.from_artifacts : counts_.from_memory);
        lock.unlock();
        tell(from_artifact ? "found in artifacts" : "found in memory");
        return {std::move(code), !from_artifact};
      }
    }
  }
  reject();
  if (std::optional<std::string> object = disk_.find(kernel)) {
    std::unique_lock lock(mutex_);
    if (std::shared_ptr<const MachineCode> code = placed(kernel, hold(kernel, *std::move(object)), damage)) {
      ++counts_.from_disk;
      lock.unlock();
      tell("found on disk");
      return {std::move(code)};
    }
  }
  reject();
  Miss miss{kernel, disk_.nearest_host(kernel)};
  if (log::enabled(log::Topic::kCache)) tell(absl::StrCat("miss: ", explained(miss, known_kernels()).why));
  std::lock_guard lock(mutex_);
  ++counts_.misses;
  if (misses_.size() == kMaxMisses) misses_.erase(misses_.begin());
  misses_.push_back(std::move(miss));
  return {};
}

std::shared_ptr<const MachineCode> CodeStore::add(const std::string& kernel, std::string object) {
  std::string damage;
  std::shared_ptr<const MachineCode> code = place(object, damage);
  if (code == nullptr) throw_internal(absl::StrCat("code generation: ", damage));
  disk_.store(kernel, object);
  std::lock_guard lock(mutex_);
  Held& held = hold(kernel, std::move(object));
  held.code = code;
  held.last_use = ++uses_;
  return code;
}

KernelFile CodeStore::contents() const {
  KernelFile file{host_.text(), {}};
  {
    std::lock_guard lock(mutex_);
    for (const auto& [kernel, held] : held_) file.kernels.push_back({kernel, held.object});
  }
  // One set of kernels, one file.
  std::sort(file.kernels.begin(), file.kernels.end(),
            [](const KernelRecord& a, const KernelRecord& b) { return a.kernel < b.kernel; });
  return file;
}

absl::Status CodeStore::take(KernelFile file) {
  if (absl::Status status = io::accepts(host_, file.host); !status.ok()) return status;
  for (const KernelRecord& record : file.kernels)
    if (absl::Status status = target_.check(record.object); absl::IsInvalidArgument(status)) return status;
  std::lock_guard lock(mutex_);
  for (KernelRecord& record : file.kernels) {
    if (held_.contains(record.kernel)) continue;
    Held& held = hold(record.kernel, std::move(record.object));
    held.from_artifact = true;
    held.last_use = ++uses_;
    has_artifacts_ = true;
  }
  return absl::OkStatus();
}

bool CodeStore::has_artifacts() const {
  std::lock_guard lock(mutex_);
  return has_artifacts_;
}

std::vector<std::string> CodeStore::known_kernels() const {
  std::vector<std::string> known = disk_.some_kernels(kMaxMisses);
  std::lock_guard lock(mutex_);
  for (const auto& [kernel, held] : held_)
    if (known.size() < 2 * kMaxMisses) known.push_back(kernel);
  return known;
}

CacheReport::Miss CodeStore::explained(const Miss& miss, const std::vector<std::string>& known) const {
  if (!miss.host.components.empty()) return {miss.kernel, miss.host.components, miss.host.text};
  Likeness best;
  for (const std::string& other : known) {
    if (other == miss.kernel) continue;
    Likeness likeness = compare_lines(other, miss.kernel);
    if (best.first_difference.empty() || likeness.equal_lines > best.equal_lines) best = std::move(likeness);
  }
  if (best.first_difference.empty()) best.first_difference = "there is no other kernel to compare with";
  return {miss.kernel, "kernel", std::move(best.first_difference)};
}

CacheReport CodeStore::report() const {
  CacheReport report;
  std::vector<Miss> misses;
  {
    std::lock_guard lock(mutex_);
    report = counts_;
    misses = misses_;
  }
  report.folder = disk_.folder();
  if (misses.empty()) return report;
  const std::vector<std::string> known = known_kernels();
  for (const Miss& miss : misses) report.missed.push_back(explained(miss, known));
  return report;
}

int64_t CodeStore::forget() {
  std::lock_guard lock(mutex_);
  const auto forgotten = static_cast<int64_t>(held_.size());
  held_.clear();
  has_artifacts_ = false;
  return forgotten;
}

}  // namespace rondo::compile
