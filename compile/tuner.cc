#include "rondo/compile/tuner.h"

#include <atomic>
#include <charconv>
#include <chrono>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/disk_cache.h"
#include "rondo/compile/log.h"

namespace rondo::compile {
namespace {

using Clock = std::chrono::steady_clock;

// Candidates take turns, so that a disturbance meets all alike; the best time of each counts.
constexpr int kRounds = 5;
// Of the first's time: less is noise.
constexpr double kClearlyFaster = 0.97;
constexpr auto kLongEnough = std::chrono::microseconds(200);  // for one measurement

double seconds_of(const std::function<void()>& run, int repeats) {
  const auto start = Clock::now();
  for (int i = 0; i < repeats; ++i) run();
  return std::chrono::duration<double>(Clock::now() - start).count() / repeats;
}

class Tuner {
 public:
  static Tuner& instance() {
    static auto* tuner = new Tuner;
    return *tuner;
  }

  int fastest(const std::string& what, std::span<const std::function<void()>> candidates) {
    // One measurement at a time: two would disturb each other.
    std::unique_lock lock(mutex_);
    const auto count = static_cast<int>(candidates.size());
    if (const auto found = known_.find(what); found != known_.end() && found->second < count) return found->second;
    const std::string key = absl::StrCat("tuning\n", what);
    int best = 0;
    if (const std::optional<std::string> stored = disk_.find(key)) {
      const auto [end, error] = std::from_chars(stored->data(), stored->data() + stored->size(), best);
      if (error == std::errc() && end == stored->data() + stored->size() && best >= 0 && best < count) return known_[what] = best;
      disk_.reject(key, "no tuning result");
    }
    std::vector<double> times;
    best = measure(candidates, times);
    known_[what] = best;
    lock.unlock();
    disk_.store(key, std::to_string(best));
    if (log::enabled(log::Topic::kPerfHints)) {
      std::string text = absl::StrCat("tuned ", what.substr(0, what.find('\n')), ": choice ", best, " of");
      for (double time : times) absl::StrAppend(&text, " ", time * 1e6);
      log::write(log::Topic::kPerfHints, text + " us");
    }
    return best;
  }
  void forget() {
    std::lock_guard lock(mutex_);
    known_.clear();
  }
  std::atomic<int64_t> measured{0};

 private:
  int measure(std::span<const std::function<void()>> candidates, std::vector<double>& best) {
    ++measured;
    best.assign(candidates.size(), 1e30);
    std::vector<int> repeats(candidates.size(), 1);
    for (size_t i = 0; i < candidates.size(); ++i) {
      candidates[i]();  // warm
      const double once = seconds_of(candidates[i], 1);
      repeats[i] = std::max(1, static_cast<int>(std::chrono::duration<double>(kLongEnough).count() / std::max(once, 1e-9)));
    }
    for (int round = 0; round < kRounds; ++round)
      for (size_t i = 0; i < candidates.size(); ++i) best[i] = std::min(best[i], seconds_of(candidates[i], repeats[i]));
    size_t chosen = 0;
    for (size_t i = 1; i < best.size(); ++i)
      if (best[i] < best[chosen] * (chosen == 0 ? kClearlyFaster : 1.0)) chosen = i;
    return static_cast<int>(chosen);
  }

  std::mutex mutex_;
  std::unordered_map<std::string, int> known_;
  DiskCache disk_{DiskCacheOptions::from_environment()};
};

}  // namespace

int fastest(const std::string& what, std::span<const std::function<void()>> candidates) {
  return candidates.size() < 2 ? 0 : Tuner::instance().fastest(what, candidates);
}
int64_t tunings_measured() { return Tuner::instance().measured.load(); }
void forget_tunings() { Tuner::instance().forget(); }

}  // namespace rondo::compile
