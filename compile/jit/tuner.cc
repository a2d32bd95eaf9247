#include "rondo/compile/jit/tuner.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/compile/log.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::compile {
namespace {

// Candidates take turns, so that a disturbance meets all alike; the best time of each counts.
constexpr int kRounds = 5;
// A candidate replaces the first one if it takes less than this share of its time. A smaller gain may be noise.
constexpr double kClearlyFaster = 0.97;
constexpr double kLongEnough = 200e-6;  // seconds, for one measurement

// A choice as it is kept, on disk and in artifacts: the position in decimal digits. Null: damaged.
std::optional<int> choice_of(std::string_view text, int count) {
  int best = 0;
  const char* const end = text.data() + text.size();
  const auto [last, error] = std::from_chars(text.data(), end, best);
  if (error != std::errc() || last != end || best < 0 || best >= count) return std::nullopt;
  return best;
}

double seconds_of(const std::function<void()>& run, int repeats, Device device) {
  const Stopwatch watch(device);
  for (int i = 0; i < repeats; ++i) run();
  return watch.seconds() / repeats;
}

}  // namespace

Tuner& Tuner::instance() {
  static auto* tuner = new Tuner(disk_cache_options());
  return *tuner;
}

DiskCache& Tuner::disk_of(Device device) {
  const io::HostKey& key = target_of(device).key();
  std::unique_ptr<DiskCache>& disk = disks_[key.text()];
  if (disk == nullptr) disk = std::make_unique<DiskCache>(options_, key);
  return *disk;
}

int Tuner::fastest(const std::string& launch, std::span<const std::function<void()>> candidates, Device device) {
  const auto count = static_cast<int>(candidates.size());
  if (count < 2) return 0;
  const Target& target = target_of(device);
  const std::string what = target.machine == nullptr
                               ? launch
                               : absl::StrCat(launch, "\nmachine: ", target.machine(device), "\n");
  // Two measurements at once would disturb each other.
  std::unique_lock lock(mutex_);
  DiskCache& disk = disk_of(device);
  const std::string key = absl::StrCat(kPrefix, count, " ways\n", what);  // a choice is a position
  if (const auto found = known_.find(key); found != known_.end()) return found->second.best;
  const std::string host = target.key().text();
  if (const std::optional<std::string> stored = disk.find(key)) {
    const std::optional<int> best = choice_of(*stored, count);
    if (best) return (known_[key] = {host, *best}).best;
    disk.reject(key, "no tuning result");
  }
  std::vector<double> times;
  const int best = measure(candidates, device, times);
  known_[key] = {host, best};
  lock.unlock();
  disk.store(key, std::to_string(best));
  if (log::enabled(log::Topic::kPerfHints)) {
    std::string text = absl::StrCat("tuned ", what.substr(0, what.find('\n')), ": choice ", best, " of");
    for (double time : times) absl::StrAppend(&text, " ", time * 1e6);
    log::write(log::Topic::kPerfHints, text + " us");
  }
  return best;
}

std::vector<io::KernelRecord> Tuner::contents(const std::string& host) {
  std::lock_guard lock(mutex_);
  std::vector<io::KernelRecord> choices;
  for (const auto& [key, choice] : known_)
    if (choice.host == host) choices.push_back({key, std::to_string(choice.best)});
  std::sort(choices.begin(), choices.end(), [](const auto& a, const auto& b) { return a.kernel < b.kernel; });
  return choices;
}

absl::Status Tuner::take(const std::string& host, const io::KernelRecord& record) {
  int count = 0;
  const char* const end = record.kernel.data() + record.kernel.size();
  const auto [last, error] = std::from_chars(record.kernel.data() + sizeof(kPrefix) - 1, end, count);
  const std::string_view rest(last, static_cast<size_t>(end - last));
  const std::optional<int> best = choice_of(record.object, count);
  if (error != std::errc() || !rest.starts_with(" ways\n") || !best)
    return absl::InvalidArgumentError("a tuning result is damaged");
  std::lock_guard lock(mutex_);
  known_.try_emplace(record.kernel, Choice{host, *best});
  return absl::OkStatus();
}

int Tuner::measure(std::span<const std::function<void()>> candidates, Device device, std::vector<double>& best) {
  ++measured_;
  best.assign(candidates.size(), 1e30);
  std::vector<int> repeats(candidates.size(), 1);
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i]();  // warm
    repeats[i] = std::max(1, static_cast<int>(kLongEnough / std::max(seconds_of(candidates[i], 1, device), 1e-9)));
  }
  for (int round = 0; round < kRounds; ++round)
    for (size_t i = 0; i < candidates.size(); ++i)
      best[i] = std::min(best[i], seconds_of(candidates[i], repeats[i], device));
  size_t chosen = 0;
  for (size_t i = 1; i < best.size(); ++i)
    if (best[i] < best[chosen] * (chosen == 0 ? kClearlyFaster : 1.0)) chosen = i;
  return static_cast<int>(chosen);
}

}  // namespace rondo::compile
