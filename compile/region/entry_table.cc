#include "rondo/compile/region/entry_table.h"

#include <algorithm>
#include <utility>

namespace rondo::compile {

std::shared_ptr<const Binding> EntryTable::find(const RecordingKey& key, std::span<const double> floats) {
  std::lock_guard lock(mutex_);
  const auto found = slots_.find(key);
  if (found == slots_.end()) return nullptr;
  const auto used = [&](Slot& slot) {
    note_use(slot.entry());
    return slot.latest;
  };
  for (Slot& slot : found->second)
    if (same_bits(slot.latest->floats(), floats)) return used(slot);
  for (Slot& slot : found->second) {
    if (!slot.entry().guards().hold(floats)) continue;
    slot.latest = std::make_shared<const Binding>(slot.latest->entry(), floats);
    ++float_changes_;
    return used(slot);
  }
  return nullptr;
}

std::shared_ptr<const Binding> EntryTable::rebind(const std::shared_ptr<const Binding>& latest,
                                                  std::span<const double> floats) {
  const std::shared_ptr<const Entry>& entry = latest->entry();
  std::shared_ptr<const Binding> binding = latest;
  if (!same_bits(latest->floats(), floats)) {
    if (!entry->guards().hold(floats)) return nullptr;
    binding = std::make_shared<const Binding>(entry, floats);
    ++float_changes_;
    std::lock_guard lock(mutex_);
    for (auto& [key, slots] : slots_)
      for (Slot& slot : slots)
        if (slot.latest->entry() == entry) slot.latest = binding;
  }
  note_use(*entry);
  return binding;
}

int64_t EntryTable::add(const RecordingKey& key, std::shared_ptr<const Binding> binding, int piece) {
  std::lock_guard lock(mutex_);
  newest_ = binding->entry();
  const bool is_full = n_entries_ >= most_entries_;
  if (is_full) drop_least_used();
  note_use(*newest_);
  slots_[key].push_back({piece, std::move(binding)});
  ++n_entries_;
  constexpr size_t kSeveral = 4;
  varies_.store(slots_.size() >= kSeveral, std::memory_order_relaxed);
  return is_full ? n_dropped_ : 0;
}

int64_t EntryTable::forget_all() {
  HashMap<RecordingKey, std::vector<Slot>> slots;  // these two are freed after the lock is released
  std::shared_ptr<const Entry> newest;
  std::lock_guard lock(mutex_);
  for (const auto& [key, list] : slots_)
    for (const Slot& slot : list) slot.entry().use().forgotten = true;
  std::swap(slots, slots_);
  newest.swap(newest_);
  varies_ = false;
  float_changes_ = n_dropped_ = 0;
  return std::exchange(n_entries_, 0);
}

std::vector<std::shared_ptr<const Entry>> EntryTable::entries_of(int piece) const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Entry>> entries;
  for (const auto& [key, slots] : slots_)
    for (const Slot& slot : slots)
      if (slot.piece == piece) entries.push_back(slot.latest->entry());
  return entries;
}

std::vector<std::shared_ptr<const Entry>> EntryTable::entries() const {
  std::lock_guard lock(mutex_);
  std::vector<std::shared_ptr<const Entry>> entries;
  for (const auto& [key, slots] : slots_)
    for (const Slot& slot : slots) entries.push_back(slot.latest->entry());
  std::sort(entries.begin(), entries.end(),
            [](const auto& a, const auto& b) { return a->use().latest < b->use().latest; });
  return entries;
}

std::shared_ptr<const Entry> EntryTable::newest() const {
  std::lock_guard lock(mutex_);
  return newest_;
}

// Note [Kept recordings]. A region with more than max_entries recordings drops those with the lowest use counts. Among
// equal counts it drops the most recently used one, not the least recently used one. Sizes often come in turns, each
// once in an epoch. Then the least recently used recording is the very next that is needed: a region that drops it
// would compile every recording again in each epoch. To forget old use, a count is at most kMostUses, and all counts
// are halved after every max_entries drops.
namespace {
constexpr int kMostUses = 8;
}

void EntryTable::note_use(const Entry& entry) {
  entry.use().latest = ++uses_;
  entry.use().count = std::min(entry.use().count + 1, kMostUses);
}

void EntryTable::drop_least_used() {
  const bool halves = ++n_dropped_ % most_entries_ == 0;
  std::vector<Slot>* of = nullptr;
  const Entry* least = nullptr;
  for (auto& [key, slots] : slots_)
    for (const Slot& slot : slots) {
      Entry::Use& use = slot.entry().use();
      if (halves) use.count = use.count / 2;
      if (least == nullptr || use.count < least->use().count ||
          (use.count == least->use().count && use.latest > least->use().latest))
        of = &slots, least = &slot.entry();
    }
  least->use().forgotten = true;
  std::erase_if(*of, [&](const Slot& slot) { return &slot.entry() == least; });
  slots_.erase_if([](const auto& slots) { return slots.second.empty(); });
  --n_entries_;
}

}  // namespace rondo::compile
