#include "rondo/tests/cuda_on_host/traffic.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace rondo::cuda_on_host {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

void add_global(const std::vector<const Access*>& request, Traffic& traffic) {
  static std::vector<std::pair<uintptr_t, uint32_t>> sectors;  // and a bit for each of their bytes
  sectors.clear();
  for (const Access* a : request)
    for (uintptr_t at = a->address, end = at + static_cast<uintptr_t>(a->bytes); at < end;) {
      const uintptr_t sector = at / Traffic::kSector, begin = at % Traffic::kSector,
                      n = std::min(end - at, Traffic::kSector - begin);
      sectors.emplace_back(sector, static_cast<uint32_t>((uint64_t{1} << n) - 1) << begin);
      at += n;
    }
  std::sort(sectors.begin(), sectors.end());
  auto& touched = request.front()->place == Place::kStored ? traffic.stored : traffic.loaded;
  int64_t bytes = 0;
  for (size_t i = 0; i < sectors.size();) {
    const uintptr_t sector = sectors[i].first;
    uint32_t mask = 0;
    for (; i < sectors.size() && sectors[i].first == sector; ++i) mask |= sectors[i].second;
    Traffic::Sector& of_sector = touched[sector];
    ++of_sector.requests;
    of_sector.bytes |= mask;
    bytes += std::popcount(mask);
    ++traffic.sectors;
  }
  ++traffic.requests;
  traffic.ideal_sectors += divide_up(bytes, Traffic::kSector);
  traffic.wide += std::count_if(request.begin(), request.end(), [](const Access* a) { return a->bytes == 16; });
}

// As many threads as fill all banks are served together.
void add_shared(const std::vector<const Access*>& request, Traffic& traffic) {
  ++traffic.shared_requests;
  const int together = std::min(kWarp, Traffic::kBanks * Traffic::kWord / request.front()->bytes);
  std::map<int, std::map<uintptr_t, std::set<uintptr_t>>> words;  // by group of threads and by bank
  for (const Access* a : request)
    for (int i = 0; i < a->bytes; i += Traffic::kWord) {
      const uintptr_t word = (a->address + static_cast<uintptr_t>(i)) / Traffic::kWord;
      words[a->thread % kWarp / together][word % Traffic::kBanks].insert(word);
    }
  for (const auto& [group, banks] : words) {
    int64_t waves = 0, all = 0;
    for (const auto& [bank, in_bank] : banks) {
      waves = std::max<int64_t>(waves, std::ssize(in_bank));
      all += std::ssize(in_bank);
    }
    traffic.waves += waves;
    traffic.ideal_waves += divide_up(all, Traffic::kBanks);
  }
}

}  // namespace

void add_traffic(const std::vector<Access>& accesses, Traffic& traffic) {
  struct Nth {
    const Access* access;
    int nth;  // of the thread's in this line
  };
  std::vector<Nth> order;
  order.reserve(accesses.size());
  for (const Access& a : accesses) order.push_back({&a, 0});
  const auto place_of = [](const Nth& n) { return std::tuple(n.access->thread, n.access->line, n.access->piece); };
  std::stable_sort(order.begin(), order.end(), [&](const Nth& a, const Nth& b) { return place_of(a) < place_of(b); });
  for (size_t i = 1; i < order.size(); ++i)
    if (place_of(order[i]) == place_of(order[i - 1])) order[i].nth = order[i - 1].nth + 1;
  const auto request_of = [](const Nth& n) {
    const Access& a = *n.access;
    return std::tuple(a.thread / kWarp, a.line, a.piece, n.nth, a.bytes, a.place);
  };
  std::sort(order.begin(), order.end(), [&](const Nth& a, const Nth& b) { return request_of(a) < request_of(b); });
  std::vector<const Access*> request;
  for (size_t i = 0; i < order.size();) {
    request.clear();
    for (const auto key = request_of(order[i]); i < order.size() && request_of(order[i]) == key; ++i)
      request.push_back(order[i].access);
    if (request.front()->place == Place::kShared) add_shared(request, traffic);
    else add_global(request, traffic);
  }
}

}  // namespace rondo::cuda_on_host
