#include "rondo/dist/transport/environment.h"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

std::string text_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

// Returns the variable's value, or `otherwise` if it is not set. Throws Error unless it is a number in [least, most].
int number_of(const char* name, int otherwise, int least, int most) {
  const std::string text = text_of(name);
  if (text.empty()) return otherwise;
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < least || value > most)
    throw Error(absl::StrCat("the variable ", name, "=", text, " must be a number from ", least, " to ", most));
  return value;
}

// The variables by which another launcher tells a process its rank.
struct Launcher {
  const char* name;
  const char* rank;  // the variables below are read only if this one and world_size are set
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;  // or the number of machines, if counts_machines
  bool counts_machines;
  std::vector<const char*> job;  // these variables together identify the job on this machine
  bool may_have_rank_alone = false;
};
// A shell that sbatch starts also has SLURM_PROCID, but no SLURM_STEP_NUM_TASKS: it is a job of one process.
const std::vector<Launcher>& launchers() {
  static const auto* const all = new std::vector<Launcher>{
      {"mpirun (Open MPI)",
       "OMPI_COMM_WORLD_RANK",
       "OMPI_COMM_WORLD_SIZE",
       "OMPI_COMM_WORLD_LOCAL_RANK",
       "OMPI_COMM_WORLD_LOCAL_SIZE",
       false,
       {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
      {"srun",
       "SLURM_PROCID",
       "SLURM_STEP_NUM_TASKS",
       "SLURM_LOCALID",
       "SLURM_STEP_NUM_NODES",
       true,
       {"SLURM_JOB_ID", "SLURM_STEP_ID"},
       true},
      {"mpirun (MPICH)", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", false, {"PMI_PORT"}},
  };
  return *all;
}

// Returns a port that all processes of a job derive from its name. It is below the ephemeral ports (from 32768 on
// Linux).
int port_of(std::string_view job) {
  io::Checksum sum;
  sum.update(job);
  return static_cast<int>(20'000 + sum.digest() % 12'000);
}

void read_launcher(const Launcher& launcher, Environment& e, int most) {
  e.world_size = number_of(launcher.world_size, 1, 1, most);
  e.rank = number_of(launcher.rank, 0, 0, e.world_size - 1);
  e.local_rank = number_of(launcher.local_rank, e.rank, 0, e.world_size - 1);
  e.local_world_size = e.world_size;
  const int here = number_of(launcher.local_world_size, launcher.counts_machines ? 1 : e.world_size, 1, most);
  if (here != (launcher.counts_machines ? 1 : e.world_size))
    throw Error(absl::StrCat("this job of ", launcher.name, " has ", e.world_size,
                             " processes, not all of them on this "
                             "machine (",
                             launcher.local_world_size, "=", here,
                             "): set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT"));
  std::string job;
  for (const char* name : launcher.job)
    if (const std::string text = text_of(name); !text.empty()) absl::StrAppend(&job, job.empty() ? "" : ".", text);
  if (job.empty()) return;
  e.run_id = job;
  e.master_port = port_of(job);
}

// Throws Error if the launcher's variables say that there are other processes, but not which rank this process has.
void require_whole(const Launcher& launcher, int most) {
  const auto complain = [&](const char* set, const char* missing) {
    throw Error(absl::StrCat("the variable ", set, "=", text_of(set), " without ", missing,
                             ": start the program with rondorun or ", launcher.name));
  };
  const bool has_rank = !text_of(launcher.rank).empty();
  if (!has_rank && number_of(launcher.world_size, 1, 1, most) > 1) complain(launcher.world_size, launcher.rank);
  if (has_rank && text_of(launcher.world_size).empty() && !launcher.may_have_rank_alone)
    complain(launcher.rank, launcher.world_size);
}

}  // namespace

HostPort Environment::store_address() const {
  if (store.empty()) return {master_addr, master_port};
  HostPort at;
  const size_t colon = store.rfind(':');
  if (colon == std::string::npos || !absl::SimpleAtoi(store.substr(colon + 1), &at.port))
    throw Error(absl::StrCat("the variable RONDO_STORE=", store, " must be host:port"));
  at.host = store.substr(0, colon);
  return at;
}

Environment Environment::from_process() {
  Environment e;
  constexpr int kMost = 1 << 14;
  const auto started_by = std::find_if(launchers().begin(), launchers().end(), [](const Launcher& launcher) {
    return !text_of(launcher.rank).empty() && !text_of(launcher.world_size).empty();
  });
  const bool is_ours = !text_of("RANK").empty() || !text_of("WORLD_SIZE").empty();
  if (!is_ours && started_by != launchers().end()) {
    read_launcher(*started_by, e, kMost);
  } else {
    for (const Launcher& launcher : launchers())
      if (!is_ours) require_whole(launcher, kMost);
    e.world_size = number_of("WORLD_SIZE", 1, 1, kMost);
    if (e.world_size > 1 && text_of("RANK").empty())
      throw Error(
          absl::StrCat("the variable WORLD_SIZE=", e.world_size, " without RANK: start the program with rondorun"));
    e.rank = number_of("RANK", 0, 0, e.world_size - 1);
    e.local_world_size = number_of("LOCAL_WORLD_SIZE", e.world_size, 1, e.world_size);
    e.local_rank = number_of("LOCAL_RANK", e.rank % e.local_world_size, 0, e.local_world_size - 1);
  }
  if (const std::string address = text_of("MASTER_ADDR"); !address.empty()) e.master_addr = address;
  e.master_port = number_of("MASTER_PORT", e.master_port, 1, 65535);
  e.store = text_of("RONDO_STORE");
  e.store_token = text_of("RONDO_STORE_TOKEN");
  if (const std::string id = text_of("TORCHELASTIC_RUN_ID"); !id.empty()) e.run_id = id;
  e.restart_count = number_of("TORCHELASTIC_RESTART_COUNT", 0, 0, 1 << 30);
  // Newer versions of torchrun keep PyTorch's own store at MASTER_PORT. So rank 0 opens its store at another port,
  // which all ranks derive from MASTER_PORT and the job's id.
  if (text_of("TORCHELASTIC_USE_AGENT_STORE") == "True" && e.master_port > 0)
    e.master_port = port_of(absl::StrCat(e.master_port, ".", e.run_id, ".", e.restart_count));
  if (e.world_size > 1 && e.master_port == 0 && e.store.empty())
    throw Error("the variable MASTER_PORT is not set: start the program with rondorun");
  return e;
}

}  // namespace rondo::dist
