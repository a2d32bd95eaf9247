// Messages of the compiler. It is silent unless a topic is enabled. RONDO_LOGS chooses topics, with the
// syntax of TORCH_LOGS:
//
//   RONDO_LOGS=recompiles,+output_code,-cache ./train      # "+": in detail; "-": off; "all": every topic
//
// Items are read from left to right: "all,-fusion" is every topic but fusion. Messages go to a sink. The default sink
// writes to stderr; a program may set its own. Thread safe; enabled() costs one load.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace rondo::compile::log {

enum class Topic : uint8_t {
  kGraphBreaks,  // graph_breaks: where a recording ended early, and why
  kRecompiles,   // recompiles: the first difference from the nearest earlier recording
  kPerfHints,    // perf_hints: what the user could change to run faster
  kFusion,       // fusion: which ops became one kernel, and what that saves
  kCache,        // cache: hits, misses and the reason of each miss
  kOutputCode,   // output_code: the loop IR of every kernel; in detail, LLVM IR and assembly, too
};
inline constexpr int kTopics = 6;
enum class Detail : uint8_t { kOff, kOn, kVerbose };

std::string_view name_of(Topic topic);
// True if the topic is enabled with at least this detail. REQUIRES: configure_from_environment() has run, or nothing is
// enabled.
bool enabled(Topic topic, Detail detail = Detail::kOn);
// Sends to the sink if the topic is enabled. `text` may have several lines.
void write(Topic topic, std::string_view text);
// Sends `text` to the sink even if no topic is enabled, but each text only once per process.
void warn_once(std::string_view text);
// Sends `text` unchanged to the sink, even if no topic is enabled. For RONDO_DUMP.
void write_dump(std::string_view text);

// Replaces all choices. Throws Error, which lists the topics, if `spec` names an unknown one.
void configure(std::string_view spec);
// Calls configure(RONDO_LOGS) the first time. Compiling a model calls this, so a typo in RONDO_LOGS is found at once.
void configure_from_environment();

// Receives complete messages, each ending in a newline, one at a time. An empty function restores stderr.
using Sink = std::function<void(std::string_view message)>;
// Returns the sink that was in use. The sink must not log.
Sink set_log_sink(Sink sink);

}  // namespace rondo::compile::log
#pragma GCC visibility pop
