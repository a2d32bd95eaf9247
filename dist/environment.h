// Where a process stands in its job: torchrun's words, which `rondorun` sets.
#pragma once

#include <string>

#pragma GCC visibility push(default)
namespace rondo::dist {

struct Environment {
  int rank = 0, world_size = 1;              // among all processes
  int local_rank = 0, local_world_size = 1;  // among those on this machine
  std::string master_addr = "127.0.0.1";     // rank 0's machine
  int master_port = 0;
  // "host:port" of a store that the launcher keeps. Empty: rank 0 opens one at master_addr:master_port.
  std::string store;

  // From RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and RONDO_STORE; one process where
  // they are not set. This is the only place of the library that reads variables not named RONDO_*, and only when a
  // program calls it. Throws Error, which names the variable, where they make no sense.
  static Environment from_process();
};

}  // namespace rondo::dist
#pragma GCC visibility pop
