#include "rondo/dist/environment.h"

#include <cstdlib>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/error.h"

namespace rondo::dist {
namespace {

std::string text_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// The number in [least, most] that the variable holds; `otherwise` if it is not set.
int number_of(const char* name, int otherwise, int least, int most) {
  const std::string text = text_of(name);
  if (text.empty()) return otherwise;
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < least || value > most)
    throw Error(absl::StrCat("the variable ", name, "=", text, " must be a number from ", least, " to ", most));
  return value;
}

}  // namespace

HostPort Environment::store_address() const {
  if (store.empty()) return {master_addr, master_port};
  HostPort at;
  const size_t colon = store.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(store.substr(colon + 1), &at.port))
    throw Error(absl::StrCat("the variable RONDO_STORE=", store, " must be host:port"));
  at.host = store.substr(0, colon);
  return at;
}

Environment Environment::from_process() {
  Environment e;
  constexpr int kMost = 1 << 14;
  e.world_size = number_of("WORLD_SIZE", 1, 1, kMost);
  if (e.world_size > 1 && text_of("RANK").empty())
    throw Error(
        absl::StrCat("the variable WORLD_SIZE=", e.world_size, " without RANK: start the program with rondorun"));
  e.rank = number_of("RANK", 0, 0, e.world_size - 1);
  e.local_world_size = number_of("LOCAL_WORLD_SIZE", e.world_size, 1, e.world_size);
  e.local_rank = number_of("LOCAL_RANK", e.rank % e.local_world_size, 0, e.local_world_size - 1);
  if (const std::string address = text_of("MASTER_ADDR"); !address.empty()) e.master_addr = address;
  e.master_port = number_of("MASTER_PORT", 0, 1, 65535);
  e.store = text_of("RONDO_STORE");
  e.store_token = text_of("RONDO_STORE_TOKEN");
  if (const std::string id = text_of("TORCHELASTIC_RUN_ID"); !id.empty()) e.run_id = id;
  e.restart_count = number_of("TORCHELASTIC_RESTART_COUNT", 0, 0, 1 << 30);
  if (e.world_size > 1 && e.master_port == 0 && e.store.empty())
    throw Error("the variable MASTER_PORT is not set: start the program with rondorun");
  return e;
}

}  // namespace rondo::dist
