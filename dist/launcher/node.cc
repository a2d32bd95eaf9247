#include "rondo/dist/launcher/node.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

#include "rondo/dist/transport/socket.h"
#include "rondo/runtime/device/device.h"

namespace rondo::dist {
namespace {

struct GpuCount {
  int n = 0;
  char why_not[500] = {};
};

}  // namespace

int count_gpus(std::string* why_not) {
  GpuCount count;
  std::snprintf(count.why_not, sizeof count.why_not, "asking the driver ended the process that asked it");
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(std::string("pipe: ") + std::strerror(errno));
  Fd read_end(ends[0]), write_end(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) throw Error(std::string("fork: ") + std::strerror(errno));
  if (child == 0) {
    GpuCount found;
    try {
      std::string reason;
      found.n = device_count(parse_device("cuda").backend, &reason);
      std::snprintf(found.why_not, sizeof found.why_not, "%s",
                    reason.empty() ? "the driver sees no device (CUDA_VISIBLE_DEVICES?)" : reason.c_str());
    } catch (const std::exception& e) {
      std::snprintf(found.why_not, sizeof found.why_not, "%s", e.what());
    }
    ::_exit(::write(write_end.get(), &found, sizeof found) == sizeof found ? 0 : 1);
  }
  write_end.reset();
  GpuCount told;
  if (::read(read_end.get(), &told, sizeof told) == sizeof told) count = told;
  while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  if (why_not != nullptr) *why_not = count.n > 0 ? "" : count.why_not;
  return count.n;
}

}  // namespace rondo::dist
