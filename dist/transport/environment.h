// Environment: the rank of this process and the size of its job, as rondorun, torchrun, mpirun or srun set them.
#pragma once

#include <string>

#pragma GCC visibility push(default)
namespace rondo::dist {

struct HostPort {
  std::string host;
  int port = 0;
};

struct Environment {
  int rank = 0, world_size = 1;              // this process among all processes of the job
  int local_rank = 0, local_world_size = 1;  // this process among those on this machine
  std::string master_addr = "127.0.0.1";     // the address of rank 0's machine
  int master_port = 0;
  // "host:port" of a store that the launcher keeps. Empty: rank 0 opens one at master_addr:master_port.
  std::string store;
  std::string store_token;      // the secret that the store's clients must know; never sent
  std::string run_id = "none";  // the job's id, the same after a restart; rondorun gives each job its own
  int restart_count = 0;        // how often the job has been restarted

  // Returns the address of the store. Throws Error if `store` is not host:port.
  HostPort store_address() const;

  // Reads RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID,
  // TORCHELASTIC_RESTART_COUNT, RONDO_STORE and RONDO_STORE_TOKEN, which rondorun and torchrun set. If torchrun's agent
  // listens on MASTER_PORT itself (TORCHELASTIC_USE_AGENT_STORE=True), another port is derived from MASTER_PORT.
  //
  // If neither RANK nor WORLD_SIZE is set, reads the ranks from Open MPI's mpirun (OMPI_COMM_WORLD_*), MPICH's mpirun
  // (PMI_*, MPI_LOCAL*) or an srun step (SLURM_*); such a job must run on one machine. These launchers set no port: it
  // is derived from the job's id unless MASTER_PORT is set. If no launcher has set its variables, the job has one
  // process; so has an sbatch script, which has SLURM_PROCID alone.
  //
  // A rank without a number of ranks is an error, and so is a number of ranks above one without a rank. Throws Error,
  // which names the variable, if a value is invalid. The rest of the library reads only variables named RONDO_*,
  // OMP_NUM_THREADS, XDG_CACHE_HOME and HOME.
  static Environment from_process();
};

}  // namespace rondo::dist
#pragma GCC visibility pop
