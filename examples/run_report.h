// RunReport: measures the speed, memory and compilations of a run. --report FILE writes the results, and study.h reads
// them. In generation, a step is one token.
//
//   RunReport report("run.json");                                      // before the model is made
//   report.start({.untimed_steps = 20, .steps_of_epoch = 120});        // then whatever compiles
//   trainer.add_callback(report);                                      // then train()
//   report.write(compiler.regions());
//
// The first `untimed_steps` steps are timed together: their time includes compiling. The steps behind them, up to the
// end of the epoch, give the speed. Then the batches of the first steps come again, and are timed once more: the
// difference of the two times is the cost of compiling for batches of these sizes.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/optim/trainer/callback.h"
#include "rondo/runtime/device/device.h"

namespace rondo::examples {

// The results of a run. NaN means that the number was not measured.
struct RunFacts {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  double steps_per_s = kUnknown;
  double first_s = kUnknown;                              // seconds from start() to the end of the untimed steps
  double again_s = kUnknown;                              // seconds for the same batches when they come again
  double loss = kUnknown;                                 // mean of the last untimed_steps steps
  double base_mib = kUnknown, peak_mib = kUnknown;        // resident memory: before the model is made, and the most
  double device_peak_mib = kUnknown;                      // the most memory of a device that is not the CPU
  std::vector<std::pair<std::string, int64_t>> compiled;  // blocks, and how often their code was generated
  std::vector<std::string> recompilations;                // why code was generated again
  std::vector<std::string> breaks;                        // graph breaks, and why

  double compile_s() const { return first_s - again_s; }
  double memory_mib() const { return std::isnan(device_peak_mib) ? peak_mib - base_mib : device_peak_mib; }
  // Returns how often code was generated for the block with the most compilations; 0 if nothing was compiled.
  int64_t most_compilations() const;
};

// Returns one JSON object.
std::string to_json(const RunFacts& facts);
// Reads the facts from the JSON of to_json(). Throws FileError, which names `path`.
RunFacts facts_from_json(const std::string& text, const std::string& path);

class RunReport : public optim::Callback {
 public:
  struct Options {
    int64_t untimed_steps = 20;
    int64_t steps_of_epoch = 0;  // after this many steps, the first batch comes again
    Device device = kCPU;
  };
  // Make the report before the model: memory that is resident now does not count as the model's. From now on, the
  // report collects the compiler's reasons.
  explicit RunReport(std::string path);
  ~RunReport() override;
  RunReport(const RunReport&) = delete;
  RunReport& operator=(const RunReport&) = delete;

  void start(Options options);
  void on_step(const optim::Progress& now) override;
  // Writes the report. Throws FileError.
  void write(const compile::Regions& regions);

 private:
  using Clock = std::chrono::steady_clock;
  double seconds() const { return std::chrono::duration<double>(Clock::now() - began_).count(); }

  const std::string path_;
  Options options_;
  Clock::time_point began_;
  RunFacts facts_;
  double epoch_end_s_ = RunFacts::kUnknown;
  std::vector<double> losses_;
};

}  // namespace rondo::examples
