// LaunchOptions: the options of rondorun's command line.
#pragma once

#include <string>
#include <vector>

#include "rondo/dist/transport/socket.h"

namespace rondo::dist {

struct LaunchOptions {
  int nproc_per_node = 1;
  int max_restarts = 0;
  int master_port = 0;  // 0: any free port. A port that is in use is an error
  Milliseconds grace_period{5'000};
  bool prefix = true;  // "[rank 1] " before each line
  bool help = false;
  std::vector<std::string> command;
};

// `args`: argv without the program's name. Throws Error with a message for the user. REQUIRES: this process has one
// thread, if the options ask for the number of GPUs (--nproc-per-node gpu or auto).
LaunchOptions parse_launch_options(const std::vector<std::string>& args);
std::string launch_usage();

}  // namespace rondo::dist
