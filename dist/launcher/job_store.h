// JobStore: the store in which the ranks of a job meet and write why they fail; also the environment variables that
// describe the job to its ranks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "rondo/dist/launcher/launch_options.h"
#include "rondo/dist/transport/environment.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/dist/transport/store.h"

namespace rondo::dist {

class JobStore {
 public:
  // `run_id`: unique to the job, and the same in every attempt. `restart`: how often the job has started before. Throws
  // Error if the master port is in use.
  JobStore(const LaunchOptions& options, std::string run_id, int restart);

  int restart() const { return job_.restart_count; }
  // Returns the environment variables ("NAME=value") that are the same for all ranks.
  std::vector<std::string> variables() const;
  // Returns the failure record that the rank wrote, or nullopt if it wrote none.
  std::optional<FailureRecord> record_of(int rank);

 private:
  const LaunchOptions& options_;
  const Environment job_;  // run_id and restart_count only
  const int master_port_;
  const std::string token_;
  StoreServer server_;
  Store records_;
};

}  // namespace rondo::dist
