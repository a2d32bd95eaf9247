#include "rondo/tests/fake_cuda/races.h"

namespace rondo::fake_cuda {

void Races::split(uintptr_t at) {
  auto found = intervals_.upper_bound(at);
  if (found == intervals_.begin()) return;
  --found;
  if (found->first >= at || found->second.end <= at) return;
  Interval rest = found->second;
  found->second.end = at;
  intervals_.emplace(at, std::move(rest));
}

std::string Races::note(uintptr_t begin, size_t bytes, bool writes, const Work& work, const Clock& clock) {
  if (bytes == 0) return "";
  const uintptr_t end = begin + bytes;
  split(begin);
  split(end);
  // Fill the gaps, so that intervals cover the range.
  for (uintptr_t at = begin; at < end;) {
    auto found = intervals_.lower_bound(at);
    if (found != intervals_.end() && found->first == at) {
      at = found->second.end;
      continue;
    }
    const uintptr_t next = found == intervals_.end() ? end : std::min(end, found->first);
    intervals_.emplace(at, Interval{next, {}, {}});
    at = next;
  }
  const auto race = [&](const Work& other, const char* did) {
    return "race: " + work.name + (writes ? " writes" : " reads") + " bytes that " + other.name + did +
           ", and no event and no wait orders the two";
  };
  for (auto at = intervals_.find(begin); at != intervals_.end() && at->first < end; ++at) {
    Interval& interval = at->second;
    if (interval.write.number != 0 && !interval.write.before(clock)) return race(interval.write, " writes");
    if (writes)
      for (const Work& read : interval.reads)
        if (!read.before(clock)) return race(read, " reads");
    if (writes) {
      interval.write = work;
      interval.reads.clear();
    } else {
      std::erase_if(interval.reads, [&](const Work& read) { return read.stream == work.stream; });
      interval.reads.push_back(work);
    }
  }
  return "";
}

std::string Races::unordered(uintptr_t begin, size_t bytes, const Clock& clock) const {
  auto at = intervals_.upper_bound(begin);
  if (at != intervals_.begin()) --at;
  for (; at != intervals_.end() && at->first < begin + bytes; ++at) {
    if (at->second.end <= begin) continue;
    if (at->second.write.number != 0 && !at->second.write.before(clock)) return at->second.write.name;
    for (const Work& read : at->second.reads)
      if (!read.before(clock)) return read.name;
  }
  return "";
}

void Races::forget(uintptr_t begin, size_t bytes) {
  split(begin);
  split(begin + bytes);
  intervals_.erase(intervals_.lower_bound(begin), intervals_.lower_bound(begin + bytes));
  unwatch(begin, begin + bytes);
  pointers_.erase(pointers_.lower_bound(begin), pointers_.lower_bound(begin + bytes));
}

void Races::unwatch(uintptr_t begin, uintptr_t end) {
  auto at = watched_.upper_bound(begin);
  if (at != watched_.begin()) --at;
  while (at != watched_.end() && at->first < end) {
    const auto [first, entry] = *at;
    if (entry.end <= begin) {
      ++at;
      continue;
    }
    at = watched_.erase(at);
    if (first < begin) watched_.emplace(first, Watched{begin, entry.writes, entry.work});
    if (end < entry.end) watched_.emplace(end, entry);
  }
}

void Races::watch(uintptr_t begin, size_t bytes, bool writes, const Work& work) {
  unwatch(begin, begin + bytes);
  watched_.emplace(begin, Watched{begin + bytes, writes, work});
}

void Races::note_pointer(uintptr_t address, bool writes, const Work& work) {
  std::vector<Pointer>& users = pointers_[address];
  std::erase_if(users, [&](const Pointer& user) { return user.work.stream == work.stream && user.writes == writes; });
  users.push_back({writes, work});
}

std::string Races::pointer_into(uintptr_t begin, size_t bytes, bool writes, const Clock& clock) const {
  for (auto at = pointers_.lower_bound(begin); at != pointers_.end() && at->first < begin + bytes; ++at)
    for (const Pointer& user : at->second)
      if ((writes || user.writes) && !user.work.before(clock)) return user.work.name;
  return "";
}

std::string Races::watched(uintptr_t address, bool writes, const Clock& clock) const {
  const auto at = watched_.upper_bound(address);
  if (at == watched_.begin()) return "";
  const Watched& last = std::prev(at)->second;
  return address < last.end && (writes || last.writes) && !last.work.before(clock) ? last.work.name : "";
}

}  // namespace rondo::fake_cuda
