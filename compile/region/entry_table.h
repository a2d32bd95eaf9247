// The entries of a region, and which of them go when there are too many: Note [Kept recordings].
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "rondo/compile/capture/recording_key.h"
#include "rondo/compile/region/entry.h"
#include "rondo/runtime/base/hash_map.h"

namespace rondo::compile {

// Thread safe. Logs nothing.
class EntryTable {
 public:
  explicit EntryTable(int most_entries) : most_entries_(most_entries) {}

  // What is compiled for a recording with this key, which has no floats, and these floats. Null: nothing is.
  std::shared_ptr<const Binding> find(const RecordingKey& key, std::span<const double> floats);
  // The same for a recording that is known to be that of `latest`. Null: its entry is not for these floats.
  std::shared_ptr<const Binding> find_again(const std::shared_ptr<const Binding>& latest,
                                            std::span<const double> floats);
  // `piece`: of a call. Returns how many entries were dropped so far if one was for this; otherwise 0.
  int64_t add(const RecordingKey& key, std::shared_ptr<const Binding> binding, int piece);
  // Returns the number of entries that it had.
  int64_t forget_all();

  // Those of one piece.
  std::vector<std::shared_ptr<const Entry>> entries_of(int piece) const;
  // The latest used last.
  std::vector<std::shared_ptr<const Entry>> entries() const;
  // That was added latest, even if it was dropped; null: there was none.
  std::shared_ptr<const Entry> newest() const;
  // There are recordings of several structures.
  bool varies() const { return varies_.load(std::memory_order_relaxed); }
  // How often an entry was found with other floats than before.
  int64_t float_changes() const { return float_changes_; }

 private:
  struct Slot {
    int piece = 0;
    std::shared_ptr<const Binding> latest;  // the entry, with the floats of the latest call
    const Entry& entry() const { return *latest->entry(); }
  };
  void note_use(const Entry& entry);
  void drop_least_used();  // REQUIRES: mutex_ is held

  const int most_entries_;
  std::atomic<bool> varies_ = false;
  std::atomic<int64_t> uses_ = 0, float_changes_ = 0;
  mutable std::mutex mutex_;  // guards what follows
  // Entries of one key differ in the floats that they are for.
  HashMap<RecordingKey, std::vector<Slot>> slots_;
  int n_entries_ = 0;
  int64_t n_dropped_ = 0;
  std::shared_ptr<const Entry> newest_;
};

}  // namespace rondo::compile
