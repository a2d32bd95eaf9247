#include "rondo/dist/launcher/job_store.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rondo/dist/transport/keyed_hash.h"
#include "rondo/dist/transport/socket.h"

namespace rondo::dist {
namespace {

// The timeout of the launcher's connection to its own store.
constexpr Milliseconds kOwnStore{10'000};

// Returns the port for MASTER_PORT. Programs that use PyTorch open their own store at this port. The JobStore listens
// at another port.
int choose_master_port(const LaunchOptions& options) {
  if (options.master_port == 0) return port_of(listen_on("127.0.0.1", 0));
  try {
    listen_on("127.0.0.1", options.master_port);
  } catch (const ConnectionError& e) {
    throw Error(absl::StrCat("--master-port=", options.master_port, ": ", e.what()));
  }
  return options.master_port;
}

Environment named(std::string run_id, int restart) {
  Environment job;
  job.run_id = std::move(run_id);
  job.restart_count = restart;
  return job;
}

}  // namespace

JobStore::JobStore(const LaunchOptions& options, std::string run_id, int restart)
    : options_(options),
      job_(named(std::move(run_id), restart)),
      master_port_(choose_master_port(options)),
      token_(absl::BytesToHexString(random_bytes(16))),
      server_("127.0.0.1", 0, token_),
      records_("127.0.0.1", server_.port(), kOwnStore, token_) {}

std::vector<std::string> JobStore::variables() const {
  const int n = options_.nproc_per_node;
  return {
      absl::StrCat("WORLD_SIZE=", n),
      absl::StrCat("LOCAL_WORLD_SIZE=", n),
      absl::StrCat("ROLE_WORLD_SIZE=", n),
      "GROUP_RANK=0",
      "GROUP_WORLD_SIZE=1",
      "ROLE_NAME=default",
      "MASTER_ADDR=127.0.0.1",
      absl::StrCat("MASTER_PORT=", master_port_),
      absl::StrCat("TORCHELASTIC_RESTART_COUNT=", job_.restart_count),
      absl::StrCat("TORCHELASTIC_MAX_RESTARTS=", options_.max_restarts),
      "TORCHELASTIC_RUN_ID=" + job_.run_id,
      absl::StrCat("RONDO_STORE=127.0.0.1:", server_.port()),
      "RONDO_STORE_TOKEN=" + token_,
  };
}

std::optional<FailureRecord> JobStore::record_of(int rank) {
  try {
    const std::optional<std::string> text = records_.get_if_there(failure_key(job_, rank));
    return text ? FailureRecord::from_text(*text) : std::nullopt;
  } catch (const DistError&) {
    return std::nullopt;
  }
}

}  // namespace rondo::dist
