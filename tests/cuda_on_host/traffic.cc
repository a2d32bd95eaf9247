#include "rondo/tests/cuda_on_host/traffic.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace rondo::cuda_on_host {
namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

void add_global(const std::vector<const Access*>& request, Traffic& traffic) {
  std::set<uintptr_t> sectors, bytes;
  for (const Access* a : request)
    for (int i = 0; i < a->bytes; ++i) {
      bytes.insert(a->address + static_cast<uintptr_t>(i));
      sectors.insert((a->address + static_cast<uintptr_t>(i)) / Traffic::kSector);
    }
  for (const uintptr_t sector : sectors) ++traffic.touched[sector].requests;
  for (const uintptr_t byte : bytes) traffic.touched[byte / Traffic::kSector].bytes |= 1u << byte % Traffic::kSector;
  ++traffic.requests;
  traffic.sectors += std::ssize(sectors);
  traffic.ideal_sectors += divide_up(std::ssize(bytes), Traffic::kSector);
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
  std::map<std::tuple<int, int, int>, int> times;  // by thread, line and piece
  std::map<std::tuple<int, int, int, int, int, bool>, std::vector<const Access*>> requests;
  for (const Access& a : accesses) {
    const int nth = times[{a.thread, a.line, a.piece}]++;
    requests[{a.thread / kWarp, a.line, a.piece, nth, a.bytes, a.shared}].push_back(&a);
  }
  for (const auto& [key, request] : requests) {
    if (request.front()->shared) add_shared(request, traffic);
    else add_global(request, traffic);
  }
}

}  // namespace rondo::cuda_on_host
