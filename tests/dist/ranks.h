// The ranks of a job as threads of one process: each with its own group, over real sockets.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/dist/groups/process_group.h"
#include "rondo/dist/transport/environment.h"
#include "rondo/dist/transport/store.h"

namespace rondo::test {

// For groups whose ranks all come. Long, as the machine may be busy: tests that wait for it to pass use their own.
inline constexpr dist::Milliseconds kPatient{60'000};

// Runs fn(environment of the rank) for each rank at once. What a rank throws is its text in the result, "" if nothing.
inline std::vector<std::string> run_ranks(int n, const std::function<void(const dist::Environment&)>& fn) {
  const dist::StoreServer server("127.0.0.1", 0);
  std::vector<std::string> errors(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&, r] {
      dist::Environment environment;
      environment.rank = environment.local_rank = r;
      environment.world_size = environment.local_world_size = n;
      environment.store = absl::StrCat("127.0.0.1:", server.port());
      try {
        fn(environment);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(r)] = e.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// As above, with the group already made; every rank must end without an error.
inline void with_groups(int n, const std::function<void(dist::ProcessGroup&)>& fn) {
  const std::vector<std::string> errors = run_ranks(
      n, [&](const dist::Environment& e) { fn(*dist::ProcessGroup::connect(e, {.timeout = kPatient})); });
  for (size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

}  // namespace rondo::test
