#include "rondo/runtime/data/device_batches.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/data/staged_copies.h"
#include "rondo/runtime/device/backend.h"

namespace rondo::data {
namespace {

// Makes the numbers that a source draws independent of those that a step draws with the same seed.
constexpr uint64_t kReadKey = 0x7265616400000000u;

// In this scope the default generator has the state of `other`. At the end, `other` gets the advanced state.
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
  } catch (...) {  // the source was at this position before, so a correct source does not throw
  }
  drop();
}

BatchSource::Position DeviceBatches::position() const {
  return queue_.empty() ? source_.position() : queue_.front().before;
}

void DeviceBatches::seek(Position position) {
  source_.seek(position);  // throws for a bad position, before anything has changed
  drop();
}

// Removes the first entry. Joins its copy first, because a copy that has started writes into memory that is freed here.
void DeviceBatches::drop_front() noexcept {
  try {
    if (StagingSlot* const slot = std::exchange(queue_.front().slot, nullptr)) copies_->join(*slot);
  } catch (...) {  // the device is lost, so no copy runs any more
  }
  queue_.pop_front();
}

void DeviceBatches::drop() noexcept {
  while (!queue_.empty()) drop_front();
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

// Reads one more entry if it may be read ahead, else returns false. Two epoch ends in a row mean that the source has no
// batch at all.
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

// Starts the copy of the batch after the first one.
void DeviceBatches::start_following() {
  for (size_t i = 1; i < queue_.size() || extend(); ++i) {
    if (queue_[i].error != nullptr) return;
    if (!queue_[i].host) continue;
    try {
      start(queue_[i]);
    } catch (...) {  // the next() that returns this batch tries again
    }
    return;
  }
}

Batch DeviceBatches::moved(const Entry& entry) const {
  Batch batch;
  for (size_t i = 0; i < entry.host->size(); ++i) {
    if (entry.is_started && entry.there[i].defined()) {
      batch.push_back(entry.there[i]);
      continue;
    }
    const auto what = [&] {
      return absl::StrCat("DeviceBatches: tensor ", i, " of batch ", entry.before.batch, " of epoch ",
                          entry.before.epoch, " cannot be moved to ", to_string(device_), ": ");
    };
    const Tensor& tensor = (*entry.host)[i];
    if (!tensor.defined()) throw Error(absl::StrCat(what(), "it is undefined"));
    try {
      batch.push_back(tensor.to(device_));
    } catch (const OutOfMemoryError&) {
      throw;
    } catch (const DeviceError& error) {
      throw DeviceError(absl::StrCat(what(), error.what()), error.lost());
    } catch (const Error& error) {
      throw Error(absl::StrCat(what(), error.what()));
    }
  }
  return batch;
}

std::optional<Batch> DeviceBatches::next() {
  if (queue_.empty()) read();
  std::optional<Batch> out;
  try {
    if (copies_ != nullptr) {
      if (queue_.front().host) start(queue_.front());
      if (queue_.front().error == nullptr) start_following();
    }
    if (queue_.front().host) out = moved(queue_.front());
    if (queue_.front().slot != nullptr) copies_->join(*std::exchange(queue_.front().slot, nullptr));
  } catch (const OutOfMemoryError&) {  // the entry stays, so the next call tries again
    throw;
  } catch (...) {  // the batch is skipped, as after an error of the source
    drop_front();
    throw;
  }
  const std::exception_ptr error = queue_.front().error;
  queue_.pop_front();
  if (error != nullptr) std::rethrow_exception(error);
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
    // Stages only two batches: next() starts the copies of at most two.
    try {
      if (!entry.is_started) stage(entry, /*may_wait=*/false);
    } catch (...) {  // the next() that returns this batch tries again
    }
  }
}

}  // namespace rondo::data
