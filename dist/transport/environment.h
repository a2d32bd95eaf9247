// Environment: the rank of this process and the size of its job, as rondorun, torchrun, mpirun or srun say it.
#pragma once

#include <string>

#pragma GCC visibility push(default)
namespace rondo::dist {

struct HostPort {
  std::string host;
  int port = 0;
};

struct Environment {
  int rank = 0, world_size = 1;              // among all processes
  int local_rank = 0, local_world_size = 1;  // among those on this machine
  std::string master_addr = "127.0.0.1";     // rank 0's machine
  int master_port = 0;
  // "host:port" of a store that the launcher keeps. Empty: rank 0 opens one at master_addr:master_port.
  std::string store;
  std::string store_token;      // what the store asks its clients for
  std::string run_id = "none";  // of the job, the same after a restart; rondorun gives every job one of its own
  int restart_count = 0;        // how often the job was started again

  // Where the store is. Throws Error if `store` is not host:port.
  HostPort store_address() const;

  // Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID,
  // TORCHELASTIC_RESTART_COUNT, RONDO_STORE and RONDO_STORE_TOKEN, which rondorun and torchrun set. If neither RANK nor
  // WORLD_SIZE is set: the ranks that Open MPI's mpirun (OMPI_COMM_WORLD_*), MPICH's (PMI_*, MPI_LOCAL*) or a step of
  // srun (SLURM_*) give, of jobs on one machine. These name no port: it follows from the job's id, and MASTER_PORT
  // names another. Where torchrun's agent uses MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE=True), the port follows
  // from it. If none of these is set: a job of one process. A rank without the number of ranks is an error, and so is a
  // number above one without the rank; a script of sbatch has SLURM_PROCID alone, and is a job of one process. No other
  // place of the library reads variables not named RONDO_*, and this one only when a program calls it. Throws Error,
  // which names the variable, if a value makes no sense.
  static Environment from_process();
};

}  // namespace rondo::dist
#pragma GCC visibility pop
