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

constexpr size_t kMaxMisses = 256;  // the number of misses that are kept

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// How many lines of two kernels are equal, and the first line that differs.
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

struct Stores {
  std::mutex mutex;
  // By target and its key, because another NVRTC makes other code.
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

// Places an object in memory and returns its code. Returns an error if the object is not one of ours.
absl::StatusOr<std::shared_ptr<const MachineCode>> CodeStore::place(const std::string& object) const {
  enter_stage(CompilerStage::kPlace);
  absl::StatusOr<std::shared_ptr<const MachineCode>> code = target_.place(object);
  if (absl::IsResourceExhausted(code.status()))
    throw Error(absl::StrCat("compile: ", std::string(code.status().message())));
  return code;
}

// Returns the entry of a kernel in placed_, which may be empty. REQUIRES: mutex_ is held.
std::weak_ptr<const MachineCode>& CodeStore::placed(const std::string& kernel) {
  if (placed_.size() >= io::ObjectStore::kMostHeld)
    std::erase_if(placed_, [](const auto& entry) { return entry.second.expired(); });
  return placed_[kernel];
}

CodeStore::Found CodeStore::find(const std::string& kernel) {
  using From = io::ObjectStore::From;
  std::shared_ptr<const MachineCode> code;
  const From from = objects_.find(kernel, [&](const std::string& object) {
    const std::lock_guard lock(mutex_);
    code = placed(kernel).lock();
    if (code != nullptr) return absl::OkStatus();
    absl::StatusOr<std::shared_ptr<const MachineCode>> made = place(object);
    if (!made.ok()) return made.status();
    placed(kernel) = code = *std::move(made);
    return absl::OkStatus();
  });
  // Writes to the log. Call it without a lock, because the log's sink may ask for a report.
  const auto tell = [&](const std::string& what) {
    if (log::enabled(log::Topic::kCache)) log::write(log::Topic::kCache, absl::StrCat(first_line(kernel), ": ", what));
  };
  const auto count = [&](int64_t& counter, const char* what) {
    {
      const std::lock_guard lock(mutex_);
      ++counter;
    }
    tell(what);
  };
  if (from == From::kMemory) count(counts_.from_memory, "found in memory");
  if (from == From::kArtifact) count(counts_.from_artifacts, "found in artifacts");
  if (from == From::kDisk) count(counts_.from_disk, "found on disk");
  if (from != From::kNowhere) return {std::move(code), from == From::kMemory};
  Miss miss{kernel, objects_.disk().nearest_host(kernel)};
  if (log::enabled(log::Topic::kCache))
    tell(absl::StrCat("miss: ", explained(miss, objects_.some_texts(kMaxMisses)).why));
  std::lock_guard lock(mutex_);
  ++counts_.misses;
  if (misses_.size() == kMaxMisses) misses_.erase(misses_.begin());
  misses_.push_back(std::move(miss));
  return {};
}

std::shared_ptr<const MachineCode> CodeStore::add(const std::string& kernel, std::string object) {
  const absl::StatusOr<std::shared_ptr<const MachineCode>> code = place(object);
  if (!code.ok()) throw_internal(absl::StrCat("code generation: ", std::string(code.status().message())));
  {
    const std::lock_guard lock(mutex_);
    placed(kernel) = *code;
  }
  objects_.add(kernel, std::move(object));
  return *code;
}

absl::Status CodeStore::take(KernelFile file) {
  if (absl::Status status = io::accepts(objects_.host(), file.host); !status.ok()) return status;
  return objects_.take(std::move(file), [&](const std::string& object) {
    absl::Status status = target_.check(object);
    return absl::IsInvalidArgument(status) ? status : absl::OkStatus();
  });
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
  report.folder = objects_.disk().folder();
  if (misses.empty()) return report;
  const std::vector<std::string> known = objects_.some_texts(kMaxMisses);
  for (const Miss& miss : misses) report.missed.push_back(explained(miss, known));
  return report;
}

void CodeStore::count_from_memory(int64_t kernels) {
  const std::lock_guard lock(mutex_);
  counts_.from_memory += kernels;
}

int64_t CodeStore::forget() {
  {
    const std::lock_guard lock(mutex_);
    placed_.clear();
  }
  return static_cast<int64_t>(objects_.forget());
}

}  // namespace rondo::compile
