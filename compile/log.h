// What the compiler says while it works: nothing, unless asked. RONDO_LOGS chooses topics, in the grammar of
// TORCH_LOGS:
//
//   RONDO_LOGS=recompiles,+output_code,-cache ./train      # "+": in detail; "-": off; "all": every topic
//
// Items are read from left to right, so "all,-fusion" is all but one. Messages go to a sink, which writes to stderr
// until a program brings its own. Thread safe; asking costs one load.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace rondo::compile::log {

enum class Topic : uint8_t {
  kGraphBreaks,  // graph_breaks: where a recording ended early, and why
  kRecompiles,   // recompiles: the first difference to what was compiled before
  kPerfHints,    // perf_hints: what the user could change to run faster
  kFusion,       // fusion: which ops became one kernel, and what that saves
  kCache,        // cache: hits, misses and why
  kOutputCode,   // output_code: the loop IR of every kernel; in detail, LLVM IR and assembly, too
};
inline constexpr int kTopics = 6;
enum class Detail : uint8_t { kOff, kOn, kVerbose };

std::string_view name_of(Topic topic);
// REQUIRES: configure_from_environment() has run, or nothing is enabled.
bool enabled(Topic topic, Detail detail = Detail::kOn);
// To the sink, if the topic is enabled. `text` may have several lines.
void write(Topic topic, std::string_view text);
// To the sink, whatever is enabled: the first time this process says exactly this.
void warn_once(std::string_view text);
// To the sink as it is, whatever is enabled: for RONDO_DUMP.
void write_dump(std::string_view text);

// Replaces all choices. Throws Error, which lists the topics, where `spec` names another.
void configure(std::string_view spec);
// configure(RONDO_LOGS), the first time it is called. Compiling a model calls it, so a typing error is met at once.
void configure_from_environment();

// Receives whole messages, which end in a newline; one at a time. An empty function restores stderr.
using Sink = std::function<void(std::string_view message)>;
// Returns the sink that was in use. The sink may not log itself.
Sink set_log_sink(Sink sink);

}  // namespace rondo::compile::log
#pragma GCC visibility pop
