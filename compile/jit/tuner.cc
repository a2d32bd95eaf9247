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

// Candidates take turns, so that a disturbance affects all of them; the best time of each counts.
constexpr int kRounds = 5;
// A candidate replaces the first one if it takes less than this share of its time. A smaller gain may be noise.
constexpr double kClearlyFaster = 0.97;
constexpr double kLongEnough = 200e-6;  // seconds, for one measurement

// Reads a choice as it is kept on disk and in artifacts: the position of the chosen candidate in decimal digits.
// Returns nullopt if the text is damaged.
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

io::ObjectStore& Tuner::choices_for(const HostKey& host) {
  const std::lock_guard lock(mutex_);
  return choices_.try_emplace(host.text(), options_, host).first->second;
}

int Tuner::fastest(const std::string& launch, std::span<const std::function<void()>> candidates, Device device) {
  const auto count = static_cast<int>(candidates.size());
  if (count < 2) return 0;
  const Target& target = target_of(device);
  const std::string what = target.machine == nullptr
                               ? launch
                               : absl::StrCat(launch, "\nmachine: ", target.machine(device), "\n");
  const std::string key = absl::StrCat(kPrefix, count, " ways\n", what);  // a position means nothing without `count`
  int best = 0;
  std::vector<double> times;
  const auto read = [&](const std::string& stored) {
    const std::optional<int> choice = choice_of(stored, count);
    if (!choice) return absl::InvalidArgumentError("no tuning result");
    best = *choice;
    return absl::OkStatus();
  };
  const auto make = [&] {
    // Two measurements at once would disturb each other.
    const std::lock_guard lock(measuring_);
    best = measure(candidates, device, times);
    return std::to_string(best);
  };
  const io::ObjectStore::From from = choices_for(target.key()).find_or_make(key, read, make);
  if (from == io::ObjectStore::From::kMade && log::enabled(log::Topic::kPerfHints)) {
    std::string text = absl::StrCat("tuned ", what.substr(0, what.find('\n')), ": choice ", best, " of");
    for (double time : times) absl::StrAppend(&text, " ", time * 1e6);
    log::write(log::Topic::kPerfHints, text + " us");
  }
  return best;
}

std::vector<io::KernelRecord> Tuner::contents(const std::string& host) {
  const std::lock_guard lock(mutex_);
  const auto found = choices_.find(host);
  return found == choices_.end() ? std::vector<io::KernelRecord>() : found->second.contents().kernels;
}

absl::Status Tuner::take(const HostKey& host, const io::KernelRecord& record) {
  int count = 0;
  const char* const end = record.kernel.data() + record.kernel.size();
  const auto [last, error] = std::from_chars(record.kernel.data() + sizeof(kPrefix) - 1, end, count);
  const std::string_view rest(last, static_cast<size_t>(end - last));
  if (error != std::errc() || !rest.starts_with(" ways\n") || !choice_of(record.object, count))
    return absl::InvalidArgumentError("a tuning result is damaged");
  return choices_for(host).take({host.text(), {record}}, [](const std::string&) { return absl::OkStatus(); });
}

int Tuner::measure(std::span<const std::function<void()>> candidates, Device device, std::vector<double>& best) {
  ++measured_;
  best.assign(candidates.size(), 1e30);
  std::vector<int> repeats(candidates.size(), 1);
  for (size_t i = 0; i < candidates.size(); ++i) {
    candidates[i]();  // a first call, to warm up
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
