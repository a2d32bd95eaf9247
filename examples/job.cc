#include "rondo/examples/job.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "rondo/dist/ddp/ddp.h"
#include "rondo/dist/groups/placement.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::examples {
namespace {

// Returns the path of a file beside the checkpoints. The file has the id of the job that wrote them.
std::string run_id_path(const std::string& folder) { return folder + "/run_id"; }

void print(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// If several ranks run on GPUs: pins this rank's threads to the cores near its GPU, and prints what it did.
void pin(const JobOptions& options, const dist::Environment& environment) {
  if (!options.pin_threads || options.device == kCPU || environment.world_size == 1) return;
  const dist::Pinned pinned = dist::pin_threads(options.device);
  if (pinned.cores > 0) set_num_threads(std::min(num_threads(), pinned.cores));
  if (pinned.cores > 0 || environment.rank == 0) print(absl::StrCat("rank ", environment.rank, ": ", pinned.text));
}

}  // namespace

int run_program(const char* name, const std::function<int()>& body) {
  std::signal(SIGXFSZ, SIG_IGN);
  int code = 1;
  try {
    code = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
  }
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  std::fprintf(stderr, "%s: stdout has not taken all that was printed; is its disk full?\n", name);
  return code == 0 ? 1 : code;
}

Job::Job(JobOptions options)
    : environment(dist::Environment::from_process()),
      group((pin(options, environment),
             dist::ProcessGroup::connect(
                 environment, {.timeout = std::chrono::milliseconds(std::llround(1e3 * options.timeout_seconds)),
                               .device = options.device}))) {
  if (several()) dist::check_devices(*group, options.device);
}

void Job::say(const std::string& line) const {
  if (lead() && !line.empty()) print(line);
}

bool Job::goes_on(const std::string& folder) const {
  if (environment.restart_count == 0 || environment.run_id == "none") return false;
  std::string owner;
  std::ifstream(run_id_path(folder)) >> owner;
  return owner == environment.run_id;
}

void Job::own(const std::string& folder) const {
  io::make_folders(folder);
  io::AtomicFile owner(run_id_path(folder));
  owner.write(environment.run_id + "\n");
  owner.commit();
}

}  // namespace rondo::examples
