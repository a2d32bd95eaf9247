#include "rondo/examples/run_report.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/compile/explain.h"
#include "rondo/compile/log.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/json.h"

namespace rondo::examples {
namespace {

constexpr double kMiB = 1 << 20;

// The members of RunFacts that are numbers, by their names in the JSON file. Below: those that are lists of texts.
constexpr std::pair<const char*, double RunFacts::*> kNumbers[] = {{"steps_per_s", &RunFacts::steps_per_s},
                                                                   {"first_s", &RunFacts::first_s},
                                                                   {"again_s", &RunFacts::again_s},
                                                                   {"loss", &RunFacts::loss},
                                                                   {"base_mib", &RunFacts::base_mib},
                                                                   {"peak_mib", &RunFacts::peak_mib},
                                                                   {"device_peak_mib", &RunFacts::device_peak_mib}};
constexpr std::pair<const char*, std::vector<std::string> RunFacts::*> kLists[] = {
    {"recompilations", &RunFacts::recompilations}, {"breaks", &RunFacts::breaks}};

double resident_mib() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) / kMiB;
}
double peak_resident_mib() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

}  // namespace

int64_t RunFacts::most_compilations() const {
  int64_t most = 0;
  for (const auto& [block, count] : compiled) most = std::max(most, count);
  return most;
}

std::string to_json(const RunFacts& facts) {
  std::string out = "{";
  for (const auto& [name, member] : kNumbers)
    absl::StrAppend(&out, "\"", name,
                    "\": ", std::isfinite(facts.*member) ? formatted("%.9g", facts.*member) : std::string("null"),
                    ", ");
  for (const auto& [name, member] : kLists) {
    absl::StrAppend(&out, "\"", name, "\": [");
    for (const std::string& text : facts.*member) {
      if (&text != &(facts.*member).front()) out += ", ";
      io::append_json_string(out, text);
    }
    out += "], ";
  }
  out += "\"compiled\": {";
  for (const auto& block : facts.compiled) {
    if (&block != &facts.compiled.front()) out += ", ";
    io::append_json_string(out, block.first);
    absl::StrAppend(&out, ": ", block.second);
  }
  return out + "}}\n";
}

RunFacts facts_from_json(const std::string& text, const std::string& path) {
  RunFacts facts;
  io::JsonReader json(path, text);
  json.object([&](const std::string& key) {
    for (const auto& [name, member] : kNumbers) {
      if (key != name) continue;
      if (json.peek() == 'n') return json.skip();
      const std::string_view number = json.number();
      if (!absl::SimpleAtod(absl::string_view(number.data(), number.size()), &(facts.*member))) json.fail("no number");
      return;
    }
    for (const auto& [name, member] : kLists)
      if (key == name) return json.array([&] { (facts.*member).push_back(json.string()); });
    if (key != "compiled") return json.skip();
    json.object([&](std::string& block) {
      std::string name = std::move(block);
      facts.compiled.emplace_back(std::move(name), static_cast<int64_t>(json.unsigned_integer()));
    });
  });
  json.finish();
  return facts;
}

RunReport::RunReport(std::string path) : path_(std::move(path)) {
  facts_.base_mib = resident_mib();
  compile::log::configure_from_environment();
  const char* const wanted = std::getenv("RONDO_LOGS");
  compile::log::configure(absl::StrCat(wanted == nullptr ? "" : wanted, ",recompiles"));
  compile::log::set_log_sink([this](std::string_view message) {
    constexpr std::string_view kTopic = "[rondo recompiles] ";
    if (!message.starts_with(kTopic)) {
      std::fwrite(message.data(), 1, message.size(), stderr);
      return;
    }
    const std::string why(message.substr(kTopic.size()));
    // A message about a recording whose code exists already reports no compilation.
    if (absl::StrContains(why, "kernels compiled") && !absl::StrContains(why, "no kernel compiled"))
      facts_.recompilations.emplace_back(absl::StripAsciiWhitespace(why));
  });
}
RunReport::~RunReport() { compile::log::set_log_sink({}); }

void RunReport::start(Options options) {
  options_ = options;
  began_ = Clock::now();
}

void RunReport::on_step(const optim::Progress& now) {
  losses_.push_back(now.loss);
  const int64_t untimed = std::min(options_.untimed_steps, now.max_steps),
                end = std::min(options_.steps_of_epoch, now.max_steps);
  if (now.step != untimed && now.step != end && now.step != end + untimed) return;
  synchronize(options_.device);
  if (now.step == untimed) facts_.first_s = seconds();
  if (now.step == end) {
    epoch_end_s_ = seconds();
    if (end > untimed) facts_.steps_per_s = static_cast<double>(end - untimed) / (epoch_end_s_ - facts_.first_s);
  }
  if (now.step == end + untimed) {
    facts_.again_s = seconds() - epoch_end_s_;
    if (end == untimed) facts_.steps_per_s = static_cast<double>(untimed) / facts_.again_s;
  }
}

void RunReport::write(const compile::Regions& regions) {
  const auto counted = std::min<std::ptrdiff_t>(std::ssize(losses_), options_.untimed_steps);
  if (counted > 0)
    facts_.loss = std::accumulate(losses_.end() - counted, losses_.end(), 0.0) / static_cast<double>(counted);
  facts_.peak_mib = peak_resident_mib();
  if (options_.device != kCPU)
    facts_.device_peak_mib = static_cast<double>(memory::stats(options_.device).peak_bytes) / kMiB;
  for (const compile::RegionExplanation& region : compile::explain(regions).regions) {
    facts_.compiled.emplace_back(region.report.name, region.report.compilations);
    for (const std::string& why : region.breaks) facts_.breaks.push_back(region.report.name + ": " + why);
  }
  io::write_file_atomic(path_, to_json(facts_));
}

}  // namespace rondo::examples
