#include "rondo/dist/transport/failure_record.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "rondo/dist/transport/store.h"
#include "rondo/dist/transport/store_protocol.h"

namespace rondo::dist {
namespace {

constexpr uint8_t kVersion = 1;
constexpr size_t kLongestMessage = 4096;
constexpr uint32_t kMostCauses = 1 << 14;

void write_failure_of_this_process(const std::string& message) noexcept {
  try {
    const Environment environment = Environment::from_process();
    if (environment.store.empty()) return;
    const HostPort at = environment.store_address();
    Store store(at.host, at.port, Milliseconds(2'000), environment.store_token);
    FailureRecord record = FailureRecord::now({}, message);
    if (const std::optional<std::string> text = store.get_if_there(failure_key(environment, environment.rank))) {
      const std::optional<FailureRecord> before = FailureRecord::from_text(*text);
      if (before && !before->causes.empty()) return;  // the older record names the ranks that caused this failure
      if (before) record.time = before->time;
    }
    write_failure(store, environment, record);
  } catch (const std::exception&) {  // the launcher still reports the exit code
  }
}

}  // namespace

FailureRecord FailureRecord::now(std::vector<int> causes, std::string message) {
  using std::chrono::duration_cast, std::chrono::microseconds, std::chrono::system_clock;
  return {duration_cast<microseconds>(system_clock::now().time_since_epoch()).count(), std::move(causes),
          std::move(message)};
}

std::string FailureRecord::to_text() const {
  MessageWriter writer(kVersion);
  writer.put(time).put(static_cast<uint32_t>(causes.size()));
  for (const int rank : causes) writer.put(static_cast<int32_t>(rank));
  return writer.text(std::string_view(message).substr(0, kLongestMessage)).finish();
}

std::optional<FailureRecord> FailureRecord::from_text(std::string_view text) {
  MessageReader reader(text);
  FailureRecord record;
  if (reader.get<uint32_t>() != text.size() - 4 || reader.get<uint8_t>() != kVersion) return std::nullopt;
  record.time = reader.get<int64_t>();
  const auto count = reader.get<uint32_t>();
  if (count > kMostCauses) return std::nullopt;
  for (uint32_t i = 0; i < count && reader.ok(); ++i) record.causes.push_back(reader.get<int32_t>());
  record.message = reader.text();
  if (!reader.done()) return std::nullopt;
  return record;
}

std::string job_prefix(const Environment& environment) {
  return absl::StrCat("job/", environment.run_id, "/", environment.restart_count, "/");
}

std::string failure_key(const Environment& environment, int rank) {
  return absl::StrCat(job_prefix(environment), "failure/", rank);
}

void write_failure(Store& store, const Environment& environment, const FailureRecord& record) noexcept {
  try {
    store.set(failure_key(environment, environment.rank), record.to_text());
  } catch (const std::exception&) {  // the launcher still reports the exit code
  }
}

int record_errors(const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& e) {
    write_failure_of_this_process(e.what());
    throw;
  }
}

}  // namespace rondo::dist
