// Strangers: what any other user of this machine may do to the ports of a job. They connect to every port on which a
// process below `root` listens, as soon as it is there, and to no other port.
#pragma once

#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/dist/launcher/descendants.h"
#include "rondo/dist/transport/socket.h"

namespace rondo::test {

// The ports of 127.0.0.1 on which a process listens that is below `root`, or `root` itself.
inline std::vector<int> ports_below(pid_t root) {
  std::set<uint64_t> inodes;
  std::vector<pid_t> pids = {root};
  for (const dist::ProcessInfo& info : dist::descendants_of(root)) pids.push_back(info.pid);
  for (const pid_t pid : pids) {
    const std::string folder = absl::StrCat("/proc/", pid, "/fd/");
    DIR* list = ::opendir(folder.c_str());
    if (list == nullptr) continue;
    while (const dirent* entry = ::readdir(list)) {
      char link[64] = "";
      unsigned long inode = 0;
      if (::readlink((folder + entry->d_name).c_str(), link, sizeof link - 1) > 0 &&
          std::sscanf(link, "socket:[%lu]", &inode) == 1)
        inodes.insert(inode);
    }
    ::closedir(list);
  }
  std::vector<int> ports;
  std::FILE* table = std::fopen("/proc/net/tcp", "re");
  char line[256];
  while (table != nullptr && std::fgets(line, sizeof line, table) != nullptr) {
    unsigned address = 0, port = 0, state = 0;
    unsigned long inode = 0;
    if (std::sscanf(line, " %*d: %x:%x %*x:%*x %x %*x:%*x %*x:%*x %*x %*u %*d %lu", &address, &port, &state, &inode) ==
            4 &&
        state == 0x0A && inodes.contains(inode))
      ports.push_back(static_cast<int>(port));
  }
  if (table != nullptr) std::fclose(table);
  return ports;
}

// Attacks from its own thread for as long as it lives.
class Strangers {
 public:
  explicit Strangers(pid_t root) : root_(root), thread_([this] { run(); }) {}
  ~Strangers() { stop(); }
  void stop() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
  }
  // After stop().
  int connections() const { return connections_; }
  size_t bytes_received() const { return received_; }

 private:
  static constexpr int kPerPort = 60;
  enum Kind { kLeaves, kHolds, kRandom, kZeros, kText, kGloo, kAlmost, kKinds };

  void run() {
    while (!done_) {
      for (const int port : ports_below(root_))
        for (int kind = 0; kind < kKinds; ++kind)
          if (visits_[port] < kPerPort) {
            ++visits_[port];
            visit(port, static_cast<Kind>(kind));
          }
      listen();
    }
    listen();
  }

  void visit(int port, Kind kind) {
    dist::Fd socket;
    try {
      socket = dist::connect_to("127.0.0.1", port, dist::after(dist::Milliseconds(0)));
    } catch (const dist::DistError&) {
      return;
    }
    ++connections_;
    const std::string bytes = what_to_say(kind);
    if (!bytes.empty() && ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) return;
    if (kind != kLeaves) held_.push_back(std::move(socket));
  }

  std::string what_to_say(Kind kind) {
    std::string bytes(4096, '\0');
    switch (kind) {
      case kRandom:
        for (char& c : bytes) c = static_cast<char>(random_());
        return bytes;
      case kZeros: return bytes;
      case kText: return "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
      case kGloo:  // a message of Gloo's transport: 4 KB for a buffer that nobody has
        bytes[0] = 48;
        bytes[8] = 1;
        return bytes;
      case kAlmost:  // as a rank begins, but without a proof
        bytes = what_to_say(kRandom).replace(0, 8, "RONDOPR1").replace(8, 8, std::string("\2\0\0\0\0\0\0\0", 8));
        bytes.resize(80);
        return bytes;
      default: return "";
    }
  }

  void listen() {
    char bytes[1 << 14];
    for (const dist::Fd& socket : held_)
      for (ssize_t n; (n = ::recv(socket.get(), bytes, sizeof bytes, 0)) > 0;) received_ += static_cast<size_t>(n);
  }

  const pid_t root_;
  std::map<int, int> visits_;
  std::vector<dist::Fd> held_;
  int connections_ = 0;
  size_t received_ = 0;
  std::mt19937 random_{1};
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

}  // namespace rondo::test
