// Job: the processes of one run. A program makes it first if a launcher (rondorun, torchrun, mpirun, srun) may have
// started it as one of several processes. Without a launcher the job has one process.
//
//   const Job job({.device = options.device});
//   if (job.several()) ddp.emplace(model, job.group);
//   job.say("...");                                     // rank 0 prints
//
// Restarts (rondorun --max-restarts): goes_on() says whether the checkpoints in a folder are this job's own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "rondo/dist/groups/process_group.h"
#include "rondo/dist/transport/environment.h"
#include "rondo/runtime/device/device.h"

namespace rondo::examples {

// Runs a program: main() returns the result of this function, which is the exit code of `body`. If `body` throws, the
// result is 1, and a line on stderr has the error. If stdout has not taken all that was printed (a full disk), the
// result is not 0, and a line on stderr says so. A write past the file size limit (ulimit -f) throws instead of ending
// the process.
int run_program(const char* name, const std::function<int()>& body);

struct JobOptions {
  Device device = kCPU;          // as Flags has read it: "cuda" is the device of the LOCAL_RANK
  bool pin_threads = true;       // with several processes: threads run on the cores near the device
  double timeout_seconds = 300;  // how long a rank waits for a late one
};

class Job {
 public:
  // Connects to the other processes. Throws Error if two of them would use one GPU, and as ProcessGroup::connect().
  explicit Job(JobOptions options);

  const dist::Environment environment;
  const std::shared_ptr<dist::ProcessGroup> group;
  bool several() const { return group->world_size() > 1; }
  bool lead() const { return group->rank() == 0; }
  // Prints a line on stdout, on rank 0 only. An empty line prints nothing.
  void say(const std::string& line) const;

  // True if a launcher has restarted this job, and the job has called own() for this folder before. False if the
  // launcher gives its jobs no id (torchrun without --rdzv-id): then use --init_from=resume, or
  // --resume_from_checkpoint=true, which resumes at every start.
  bool goes_on(const std::string& folder) const;
  // Writes into the folder that the checkpoints in it belong to this job from now on. REQUIRES: the folder has no older
  // checkpoints.
  void own(const std::string& folder) const;
};

}  // namespace rondo::examples
