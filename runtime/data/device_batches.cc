#include "rondo/runtime/data/device_batches.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/backend.h"
#include "rondo/runtime/data/staged_copies.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/memory.h"

namespace rondo::data {
namespace {

// Keeps what a source draws apart from what a step draws with the same seed.
constexpr uint64_t kReadKey = 0x7265616400000000u;

// In this scope the default generator has the state of another one, which goes on behind the numbers that are drawn.
class DrawFrom {
 public:
  explicit DrawFrom(Generator& other)
      : other_(other), seed_(default_generator().seed()), offset_(default_generator().offset()) {
    default_generator().set_state(other.seed(), other.offset());
  }
  ~DrawFrom() {
    other_.set_state(default_generator().seed(), default_generator().offset());
    default_generator().set_state(seed_, offset_);
  }
  DrawFrom(const DrawFrom&) = delete;
  DrawFrom& operator=(const DrawFrom&) = delete;

 private:
  Generator& other_;
  const uint64_t seed_, offset_;
};

}  // namespace

DeviceBatches::DeviceBatches(BatchSource& source, Device device, DeviceBatchesOptions options)
    : source_(source), device_(device), options_(options) {
  require_device(device);
  if (has_host_memory(device)) return;
  copies_ = std::make_unique<StagedCopies>(device);
  draws_.set_state(default_generator().seed() ^ kReadKey, 0);
}

DeviceBatches::~DeviceBatches() {
  try {
    if (!queue_.empty()) source_.seek(queue_.front().before);
  } catch (...) {  // it was there: only a source that breaks its contract throws
  }
  drop();
}

BatchSource::Position DeviceBatches::position() const {
  return queue_.empty() ? source_.position() : queue_.front().before;
}

void DeviceBatches::seek(Position position) {
  source_.seek(position);  // throws for a bad position, and nothing has changed then
  drop();
}

// A copy that has started writes into memory that is freed here, so it is joined first.
void DeviceBatches::drop() noexcept {
  try {
    for (Entry& entry : queue_)
      if (entry.slot != nullptr) copies_->join(*std::exchange(entry.slot, nullptr));
  } catch (...) {  // the device is lost: nothing runs there any more
  }
  queue_.clear();
}

void DeviceBatches::read() {
  Entry entry{.before = source_.position()};
  std::optional<DrawFrom> scope;
  if (copies_ != nullptr) scope.emplace(draws_);
  try {
    entry.host = source_.next();
  } catch (...) {
    entry.error = std::current_exception();
  }
  queue_.push_back(std::move(entry));
}

// Reads one more entry, if that may be done ahead. Two ends in a row: the source holds no batch.
bool DeviceBatches::extend() {
  if (!queue_.empty()) {
    const Entry& last = queue_.back();
    const bool is_empty = last.is_end() && queue_.size() > 1 && queue_[queue_.size() - 2].is_end();
    if (last.error != nullptr || is_empty || (last.is_end() && !options_.across_epochs)) return false;
  }
  read();
  return true;
}

void DeviceBatches::stage(Entry& entry, bool may_wait) {
  if (entry.slot == nullptr) entry.slot = copies_->stage(*entry.host, may_wait);
}

void DeviceBatches::start(Entry& entry) {
  if (entry.is_started) return;
  stage(entry, /*may_wait=*/true);
  entry.there = copies_->start(*entry.slot, *entry.host);
  entry.is_started = true;
}

// Starts the copy of the batch behind the first one.
void DeviceBatches::start_following() {
  for (size_t i = 1; i < queue_.size() || extend(); ++i) {
    if (queue_[i].error != nullptr) return;
    if (!queue_[i].host) continue;
    try {
      start(queue_[i]);
    } catch (const OutOfMemoryError&) {  // its own next() tries again
    }
    return;
  }
}

std::optional<Batch> DeviceBatches::next() {
  if (queue_.empty()) read();
  // Until the entry is taken, whatever throws leaves it: the next call tries again.
  if (copies_ != nullptr) {
    if (queue_.front().host) start(queue_.front());
    if (queue_.front().error == nullptr) start_following();
  }
  std::optional<Batch> out;
  Entry& front = queue_.front();
  if (front.host) {
    out.emplace();
    for (size_t i = 0; i < front.host->size(); ++i) {
      const bool is_there = front.is_started && front.there[i].defined();
      out->push_back(is_there ? front.there[i] : (*front.host)[i].to(device_));
    }
  }
  if (front.slot != nullptr) copies_->join(*std::exchange(front.slot, nullptr));
  const Entry taken = std::move(front);
  queue_.pop_front();
  if (taken.error != nullptr) std::rethrow_exception(taken.error);
  return out;
}

const std::optional<Batch>& DeviceBatches::peek(int64_t i) {
  if (i < 0) throw Error(absl::StrCat("DeviceBatches::peek: ", i, " is behind the coming batch"));
  const auto at = static_cast<size_t>(i);
  while (queue_.size() <= at) read();
  if (queue_[at].error != nullptr) std::rethrow_exception(queue_[at].error);
  return queue_[at].host;
}

void DeviceBatches::read_ahead(int64_t batches) {
  if (copies_ == nullptr) return;
  int64_t found = 0;
  for (size_t i = 0; found < batches && (i < queue_.size() || extend()); ++i) {
    Entry& entry = queue_[i];
    if (entry.error != nullptr) return;
    if (!entry.host || ++found > 2) continue;
    // The coming next() starts the copies of two batches at most.
    try {
      if (!entry.is_started) stage(entry, /*may_wait=*/false);
    } catch (const OutOfMemoryError&) {  // its own next() tries again
    }
  }
}

}  // namespace rondo::data
