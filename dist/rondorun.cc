// rondorun --nproc-per-node 2 train_gpt --data=book.txt      (--help tells more)
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <exception>

#include "absl/strings/str_cat.h"
#include "rondo/dist/launcher/launch_options.h"
#include "rondo/dist/launcher/launcher.h"

namespace {

// Writes all of `text`. If the reader has gone away (`| head`), drops the rest, and the job goes on.
void write_out(int stream, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(stream, text.data(), text.size());
    if (n >= 0) {
      text.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN) {
      pollfd ready = {stream, POLLOUT, 0};
      ::poll(&ready, 1, 1000);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const rondo::dist::LaunchOptions options = rondo::dist::parse_launch_options({argv + 1, argv + argc});
    if (options.help) return write_out(STDOUT_FILENO, rondo::dist::launch_usage()), 0;
    std::signal(SIGPIPE, SIG_IGN);
    return rondo::dist::launch(options, write_out);
  } catch (const std::exception& error) {
    write_out(STDERR_FILENO, absl::StrCat("rondorun: ", error.what(), "\n"));
    return 2;
  }
}
