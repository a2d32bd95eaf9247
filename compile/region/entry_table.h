// EntryTable: the compiled entries of a region. When there are too many it drops one that is little used: Note [Kept
// recordings] in entry_table.cc.
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

  // Finds what was compiled for a recording with this key (which holds no floats) and these floats. Null: nothing was.
  std::shared_ptr<const Binding> find(const RecordingKey& key, std::span<const double> floats);
  // Binds the entry of `latest` to these floats: as find(), for a recording that is known to have its key. Null: the
  // guards of the entry reject the floats.
  std::shared_ptr<const Binding> rebind(const std::shared_ptr<const Binding>& latest, std::span<const double> floats);
  // Adds an entry. If the table is full, drops another one and returns how many were dropped so far; otherwise returns
  // 0. `piece`: the number of the recorded piece in its call.
  int64_t add(const RecordingKey& key, std::shared_ptr<const Binding> binding, int piece);
  // Empties the table. Returns how many entries it had.
  int64_t forget_all();

  // Returns the entries of the recorded piece with this number.
  std::vector<std::shared_ptr<const Entry>> entries_of(int piece) const;
  // Returns all entries in the order of their last use, the most recent at the end.
  std::vector<std::shared_ptr<const Entry>> entries() const;
  // Returns the entry that was added last, even if it was dropped since. Null if none was added.
  std::shared_ptr<const Entry> newest() const;
  // True if the entries have at least 4 different keys.
  bool varies() const { return varies_.load(std::memory_order_relaxed); }
  // Returns how often an entry was found with other floats than before.
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
  mutable std::mutex mutex_;  // guards the members below
  // Several entries with one key hold for different floats.
  HashMap<RecordingKey, std::vector<Slot>> slots_;
  int n_entries_ = 0;
  int64_t n_dropped_ = 0;
  std::shared_ptr<const Entry> newest_;
};

}  // namespace rondo::compile
