// RankOutput: forwards what the ranks print to stdout and stderr, line by line.
//
// If the reader is slow, output stays in the rank's pipe, and the rank blocks as it would without a launcher. After
// drop(), output that finds no room in the queue is dropped, so that the ranks can end.
#pragma once

#include <poll.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/launcher/output_queue.h"
#include "rondo/dist/transport/socket.h"

namespace rondo::dist {

class RankOutput {
 public:
  // `prefix`: each line begins with "[rank 1] ".
  RankOutput(int n_ranks, bool prefix, OutputQueue::Writer writer);

  // Prints a line of the launcher itself.
  void say(std::string_view text);
  // Call when a rank has started. `out`, `err`: the pipes of its stdout and stderr.
  void open(size_t rank, Fd out, Fd err);
  bool any_open() const;

  // Appends the descriptors that poll() should wait for.
  void watch(std::vector<pollfd>& fds) const;
  // Reads the output that has arrived. `fds`: what watch() appended, after poll(). Returns false if there
  // was no output.
  bool take(std::span<const pollfd> fds);
  // Call when no more output will come: forwards unfinished lines.
  void end_lines();

  // True if the reader of stdout or of stderr is behind.
  bool waits_for_reader() const;
  // True if the readers have received everything.
  bool is_empty() const { return queue_.is_empty(); }
  void drop() { drops_ = true; }
  bool drops() const { return drops_; }

 private:
  struct Stream {
    Fd fd;
    std::string line;  // the beginning of a line whose end has not arrived yet
  };
  struct Streams {
    Stream of[2];  // stdout, stderr
  };
  void read_from(size_t rank, int s);
  void end_line(size_t rank, int s);
  void emit(size_t rank, int s, std::string_view line);

  const bool prefix_;
  OutputQueue queue_;
  std::vector<Streams> ranks_;
  bool drops_ = false;
};

}  // namespace rondo::dist
