// What a run measures of itself, as --report FILE writes it and study.h reads it.
//
//   RunReport report("run.json", {.untimed_steps = 20, .batches_of_epoch = 120});
//   report.start();                                 // the clock: then whatever compiles, then Trainer::train()
//   trainer.add_callback(report);
//   report.write(explanation);
//
// The first `untimed_steps` steps are timed as one: they pay for compiling. Then each step counts until the data begins
// again. If the run goes on, so many further steps have the batches of the first ones: the difference of both is what
// compiling costs, whatever the lengths of the captions.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "rondo/compile/compile.h"
#include "rondo/optim/trainer/callback.h"
#include "rondo/runtime/device.h"

namespace rondo::examples {

// NaN: not measured.
struct RunFacts {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  double steps_per_s = kUnknown;
  double first_s = kUnknown;                        // the untimed steps, and what is done between start() and train()
  double again_s = kUnknown;                        // the same batches once more
  double loss = kUnknown;                           // mean of the last untimed_steps steps
  double base_mib = kUnknown, peak_mib = kUnknown;  // resident memory: before the model, and the most
  double device_peak_mib = kUnknown;                // of a device that is not the CPU
  std::vector<std::pair<std::string, int64_t>> compiled;  // blocks, and how often their code was generated
  std::vector<std::string> recompilations;                // why code was generated again
  std::vector<std::string> breaks;                        // of graphs, and why

  double compile_s() const { return first_s - again_s; }
  double memory_mib() const { return std::isnan(device_peak_mib) ? peak_mib - base_mib : device_peak_mib; }
  // Of the block that was compiled most often; 0: none was.
  int64_t most_compilations() const;
};

// One JSON object.
std::string to_json(const RunFacts& facts);
// Throws FileError, which names `path`.
RunFacts facts_from_json(const std::string& text, const std::string& path);

class RunReport : public optim::Callback {
 public:
  struct Options {
    int64_t untimed_steps = 20;
    int64_t steps_of_epoch = 0;  // then the first batch comes again
    Device device = kCPU;
  };
  // Made before the model: what is resident now is no part of its memory. Collects the compiler's reasons from now on.
  explicit RunReport(std::string path);
  ~RunReport() override;
  RunReport(const RunReport&) = delete;
  RunReport& operator=(const RunReport&) = delete;

  void start(Options options);
  void on_step(const optim::Progress& now) override;
  // Throws FileError.
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
