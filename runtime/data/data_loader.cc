#include "rondo/runtime/data/data_loader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/random/random.h"

namespace rondo::data {
namespace {

// Keys that make the random numbers of shuffles and of items independent of tensors drawn with the same seed.
constexpr uint64_t kShuffleKey = 0x73687566666C6500u;
constexpr uint64_t kItemKey = 0x6974656D00000000u;

// Returns the seed of one item's Generator in one epoch.
uint64_t item_seed(uint64_t seed, int64_t epoch, int64_t index) {
  const std::array<uint32_t, 4> words = philox(seed ^ kItemKey, static_cast<uint64_t>(index),
                                               static_cast<uint64_t>(epoch));
  return static_cast<uint64_t>(words[0]) << 32 | words[1];
}

int64_t batches_in(int64_t items, const DataLoaderOptions& options) {
  if (options.batch_size < 1) throw Error(absl::StrCat("DataLoader: batch_size ", options.batch_size));
  if (options.num_workers < 0 || options.num_workers > 1024)
    throw Error(absl::StrCat("DataLoader: num_workers ", options.num_workers, " is outside [0, 1024]"));
  if (options.prefetch < 1) throw Error(absl::StrCat("DataLoader: prefetch ", options.prefetch));
  if (items < 0) throw Error(absl::StrCat("DataLoader: the dataset says that it has ", items, " items"));
  const int64_t whole = items / options.batch_size;  // rounded up in the next line: (a + b - 1) / b may overflow
  return whole + (!options.drop_last && items % options.batch_size != 0);
}

bool can_be_stacked(const Tensor& a, const Tensor& b) { return a.sizes() == b.sizes() && a.dtype() == b.dtype(); }

// Formats the dtype and sizes for messages: "f32[3, 4]".
std::string dtype_and_sizes(const Tensor& x) {
  return absl::StrCat(std::string(name_of(x.dtype())), to_string(x.sizes()));
}

}  // namespace

Permutation::Permutation(int64_t n, uint64_t seed, uint64_t epoch)
    : n_(static_cast<uint64_t>(n)), seed_(seed ^ kShuffleKey), epoch_(epoch) {
  if (n < 1) throw Error(absl::StrCat("Permutation: n must be positive, got ", n));
  half_bits_ = std::max((static_cast<int>(std::bit_width(n_ - 1)) + 1) / 2, 1);
}

int64_t Permutation::operator()(int64_t i) const {
  constexpr uint64_t kRounds = 8;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t value = static_cast<uint64_t>(i);
  if (value >= n_) throw Error(absl::StrCat("Permutation: ", i, " is outside [0, ", n_, ")"));
  do {
    uint64_t left = value >> half_bits_, right = value & mask;
    for (uint64_t round = 0; round < kRounds; ++round) {
      // half_bits_ is at most 32, so the round's number fits above `right`.
      const uint64_t mixed = philox(seed_, right | round << 32, epoch_)[0];
      left = std::exchange(right, left ^ (mixed & mask));
    }
    value = left << half_bits_ | right;
  } while (value >= n_);
  return static_cast<int64_t>(value);
}

Tensor stack(const std::vector<Tensor>& items) try {
  if (items.empty()) throw Error("stack: no tensors");
  const Tensor& first = items.front();
  Dims sizes = first.sizes();
  sizes.insert(0, static_cast<int64_t>(items.size()));
  Tensor out = Tensor::empty(sizes, {first.dtype(), kCPU});
  auto* to = static_cast<std::byte*>(out.raw_mutable_data());
  for (const Tensor& item : items) {
    if (!can_be_stacked(first, item))
      throw Error(absl::StrCat("stack: the tensors differ: ", dtype_and_sizes(first), " and ", dtype_and_sizes(item)));
    if (item.numel() == 0) continue;
    const Tensor dense = item.detach().contiguous().to(kCPU);
    std::memcpy(to, dense.raw_data(), static_cast<size_t>(dense.nbytes()));
    to += dense.nbytes();
  }
  return out;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("data::stack");
}

Batch DataLoader::load(int64_t number) const {
  const int64_t epoch = number / batches_, begin = number % batches_ * options_.batch_size;
  const int64_t end = std::min(begin + options_.batch_size, items_);
  const Permutation shuffled(items_, options_.seed, static_cast<uint64_t>(epoch));
  std::vector<std::vector<Tensor>> columns;  // one per tensor of an item
  for (int64_t i = begin; i < end; ++i) {
    const int64_t index = options_.shuffle ? shuffled(i) : i;
    Generator random(item_seed(options_.seed, epoch, index));
    std::vector<Tensor> item = dataset_->get(index, random);
    if (i == begin) columns.resize(item.size());
    if (item.size() != columns.size())
      throw Error(absl::StrCat("DataLoader: items have ", columns.size(), " and ", item.size(), " tensors"));
    for (size_t c = 0; c < item.size(); ++c) {
      if (i > begin && !can_be_stacked(columns[c].front(), item[c]))
        throw Error(absl::StrCat("DataLoader: tensor ", c, " of item ", index, " is ", dtype_and_sizes(item[c]),
                                 ", and the first item of its batch has ", dtype_and_sizes(columns[c].front()),
                                 ": a batch stacks tensors of one shape and dtype, so pad them, or use batch_size 1"));
      columns[c].push_back(std::move(item[c]));
    }
  }
  Batch batch;
  for (const std::vector<Tensor>& column : columns) batch.push_back(stack(column));
  return batch;
}

// Batches are numbered through all epochs: number = epoch * batches_ + batch. The consumer takes every step-th of them.
class DataLoader::Workers {
 public:
  // `first`: the number of the batch that the first take() asks for.
  Workers(const DataLoader& loader, int64_t first)
      : loader_(loader),
        slots_(static_cast<size_t>(loader.options_.num_workers) * static_cast<size_t>(loader.options_.prefetch)),
        step_(loader.step_),
        first_(first),
        taken_(first),
        wanted_(first) {}
  // Starts the threads. If starting one throws, the destructor ends those that have started.
  void start() {
    for (int i = 0; i < loader_.options_.num_workers; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Waits for batch `number`. Rethrows the dataset's exception for it.
  Batch take(int64_t number) {
    std::unique_lock lock(mutex_);
    if (number != wanted_) {  // after a seek: the batches in the slots are not wanted any more
      wanted_ = taken_ = first_ = number;
      for (Slot& slot : slots_) slot = {};
      room_.notify_all();
    }
    Slot& slot = slot_of(number);
    ready_.wait(lock, [&] { return slot.ready && slot.number == number; });
    Slot taken = std::exchange(slot, {});
    wanted_ += step_;
    lock.unlock();
    room_.notify_all();
    if (taken.error) std::rethrow_exception(taken.error);
    return std::move(taken.batch);
  }

 private:
  struct Slot {
    int64_t number = -1;
    bool ready = false;
    Batch batch;
    std::exception_ptr error;
  };
  // REQUIRES, for slot_of() and is_awaited(): the lock is held.
  Slot& slot_of(int64_t number) { return slots_[static_cast<size_t>((number - first_) / step_) % slots_.size()]; }
  bool is_awaited(int64_t number) const {
    const int64_t ahead = number - wanted_;
    return ahead >= 0 && ahead % step_ == 0 && ahead / step_ < static_cast<int64_t>(slots_.size());
  }

  void work() {
    const OneThread alone;  // workers run in parallel with each other and with training
    std::unique_lock lock(mutex_);
    for (;;) {
      room_.wait(lock, [&] { return stop_ || is_awaited(taken_); });
      if (stop_) return;
      const int64_t number = std::exchange(taken_, taken_ + step_);
      lock.unlock();
      Slot filled{number, true, {}, nullptr};
      try {
        filled.batch = loader_.load(number);
      } catch (...) {
        filled.error = std::current_exception();
      }
      lock.lock();
      // The consumer may have called seek() during load(), even to a range that contains this number again.
      if (!is_awaited(number)) continue;
      if (Slot& slot = slot_of(number); !slot.ready) {
        slot = std::move(filled);
        ready_.notify_one();
      }
    }
  }

  const DataLoader& loader_;
  std::mutex mutex_;                      // guards the members below, except threads_
  std::condition_variable room_, ready_;  // signals: a worker may take a number; a slot was filled
  std::vector<Slot> slots_;
  const int64_t step_;
  int64_t first_;   // the number with which the consumer began after the last seek
  int64_t taken_;   // the next number for a worker
  int64_t wanted_;  // the next number for the consumer
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

DataLoader::DataLoader(std::shared_ptr<const Dataset> dataset, DataLoaderOptions options) try
    : dataset_(std::move(dataset)),
      options_(options),
      items_(dataset_ ? dataset_->size() : throw Error("DataLoader: no dataset")),
      batches_(batches_in(items_, options)) {
} catch (const std::bad_alloc&) {
  throw_out_of_memory("DataLoader");
}
DataLoader::~DataLoader() = default;

std::optional<Batch> DataLoader::next() {
  if (position_.batch >= batches_) {
    position_ = {position_.epoch + 1, 0};
    return std::nullopt;
  }
  const int64_t number = position_.epoch * batches_ + position_.batch;
  ++position_.batch;
  try {
    if (options_.num_workers == 0) return load(number);
    if (!workers_) {
      auto workers = std::make_unique<Workers>(*this, number);
      workers->start();
      workers_ = std::move(workers);
    }
    return workers_->take(number);
  } catch (const std::bad_alloc&) {
    --position_.batch;  // the next call tries again
    throw_out_of_memory("DataLoader::next");
  } catch (const OutOfMemoryError&) {
    --position_.batch;
    throw;
  }
}

void DataLoader::seek(Position position) {
  // Batches are numbered over all epochs, in 64 bits.
  const int64_t last_epoch = INT64_MAX / std::max<int64_t>(batches_, 1) - 1;
  if (position.epoch < 0 || position.epoch > last_epoch || position.batch < 0 || position.batch > batches_)
    throw Error(absl::StrCat("DataLoader::seek: epoch ", position.epoch, ", batch ", position.batch, " of ", batches_));
  position_ = position;
}

void DataLoader::read_every(int64_t n) {
  if (n < 1) throw Error(absl::StrCat("DataLoader::read_every: ", n));
  workers_.reset();  // the next call of next() starts new ones
  step_ = n;
}

}  // namespace rondo::data
