#include "rondo/compile/log.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/runtime/base/error.h"

namespace rondo::compile::log {
namespace {

constexpr std::string_view kNames[kTopics] = {"graph_breaks", "recompiles", "perf_hints",
                                              "fusion",       "cache",      "output_code"};

// Each topic has two bits of `choices`.
constexpr uint32_t shifted(Detail detail, int topic) { return static_cast<uint32_t>(detail) << (2 * topic); }
std::atomic<uint32_t> choices{0};

struct Output {
  std::mutex mutex;
  Sink sink;
  std::set<std::string, std::less<>> warned;
};
Output& output() {
  static auto* const instance = new Output;  // outlives every static that may log in its destructor
  return *instance;
}

void send(Output& out, const std::string& message) {  // REQUIRES: out.mutex is held
  if (out.sink) out.sink(message);
  else std::fwrite(message.data(), 1, message.size(), stderr);
}

std::string with_newline(std::string text) { return !text.empty() && text.back() == '\n' ? text : text + "\n"; }

}  // namespace

std::string_view name_of(Topic topic) { return kNames[static_cast<int>(topic)]; }

bool enabled(Topic topic, Detail detail) {
  const uint32_t chosen = choices.load(std::memory_order_relaxed) >> (2 * static_cast<int>(topic)) & 3u;
  return chosen >= static_cast<uint32_t>(detail) && detail != Detail::kOff;
}

void write(Topic topic, std::string_view text) {
  if (!enabled(topic)) return;
  Output& out = output();
  std::lock_guard lock(out.mutex);
  send(out, with_newline(absl::StrCat("[rondo ", std::string(name_of(topic)), "] ", std::string(text))));
}

void warn_once(std::string_view text) {
  Output& out = output();
  std::lock_guard lock(out.mutex);
  if (!out.warned.emplace(text).second) return;
  send(out, with_newline(absl::StrCat("[rondo warning] ", std::string(text))));
}

void write_dump(std::string_view text) {
  Output& out = output();
  std::lock_guard lock(out.mutex);
  send(out, with_newline(std::string(text)));
}

void configure(std::string_view spec) {
  uint32_t chosen = 0;
  for (const absl::string_view piece : absl::StrSplit(absl::string_view(spec.data(), spec.size()), ',')) {
    std::string item(absl::StripAsciiWhitespace(piece));
    if (item.empty()) continue;
    const Detail detail = item[0] == '+' ? Detail::kVerbose : item[0] == '-' ? Detail::kOff : Detail::kOn;
    const std::string name = item.substr(detail == Detail::kOn ? 0 : 1);
    bool known = false;
    for (int topic = 0; topic < kTopics; ++topic) {
      if (name != "all" && name != kNames[topic]) continue;
      known = true;
      chosen = (chosen & ~shifted(Detail{3}, topic)) | shifted(detail, topic);
    }
    if (known) continue;
    std::string names;
    for (std::string_view topic : kNames) absl::StrAppend(&names, std::string(topic), ", ");
    throw Error(absl::StrCat("RONDO_LOGS: no topic \"", name, "\". Topics: ", names,
                             "all; \"+topic\" for details, \"-topic\" to switch one off"));
  }
  choices.store(chosen, std::memory_order_relaxed);
}

void configure_from_environment() {
  // An invalid value throws on every call, until a valid one has been read.
  static const bool configured = [] {
    if (const char* spec = std::getenv("RONDO_LOGS"); spec != nullptr) configure(spec);
    return true;
  }();
  (void)configured;
}

Sink set_log_sink(Sink sink) {
  Output& out = output();
  std::lock_guard lock(out.mutex);
  std::swap(out.sink, sink);
  return sink;
}

}  // namespace rondo::compile::log
