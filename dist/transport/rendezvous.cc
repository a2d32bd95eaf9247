#include "rondo/dist/transport/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <thread>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/dist/transport/failure_record.h"
#include "rondo/dist/transport/keyed_hash.h"

namespace rondo::dist {
namespace {

// How long the store may take to notice that a process has ended.
constexpr Milliseconds kFarewell{2'000};

class Meeting {
 public:
  Meeting(Store& store, const Environment& environment, Milliseconds timeout)
      : store_(store),
        environment_(environment),
        job_(job_prefix(environment)),
        timeout_(timeout),
        deadline_(after(timeout)),
        began_(FailureRecord::now({}, "").time) {}

  std::string run() {
    claim_rank();
    store_.remove(failure_key(environment_, environment_.rank));  // left by an earlier group
    const std::string ticket = absl::StrCat(store_.add(job_ + "tickets", 1));
    store_.hold(ticket_key(environment_.rank), ticket);
    if (environment_.rank == 0) return lead();
    if (!store_.wait_for(std::vector<std::string>{group_key(ticket)}, timeout_).empty()) throw_missing();
    const std::string name = store_.get(group_key(ticket), timeout_);
    store_.remove(group_key(ticket));
    return name;
  }

 private:
  // Claims this rank for this process. The claim ends with the process's connection to the store.
  void claim_rank() {
    const std::string mine = this_process();
    // The store may still know a process of this rank that was killed a moment ago, so try again for a while.
    for (const Deadline until = after(std::min(timeout_, kFarewell));;) {
      const std::string owner = store_.claim(absl::StrCat(job_, "process_of/", environment_.rank), mine);
      if (owner == mine) return;
      if (std::chrono::steady_clock::now() >= until)
        throw ConnectionError(absl::StrCat("two processes of this job have RANK=", environment_.rank, ": ",
                                           owner.substr(0, owner.find('/')), " and ", mine.substr(0, mine.find('/')),
                                           ". Each needs a RANK of its own, from 0 to ", environment_.world_size - 1));
      std::this_thread::sleep_for(Milliseconds(20));
    }
  }
  static std::string this_process() {
    // A process id alone is not unique: ids are reused, and each machine has its own.
    static const std::string& tag = *new std::string(random_bytes(8));
    return absl::StrCat("process ", ::getpid(), "/", absl::BytesToHexString(tag));
  }
  std::string ticket_key(int rank) const { return absl::StrCat(job_, "ticket/", rank); }
  std::string group_key(const std::string& ticket) const { return absl::StrCat(job_, "group_of/", ticket); }

  std::string lead() {
    std::vector<std::string> keys;
    for (int r = 0; r < environment_.world_size; ++r) keys.push_back(ticket_key(r));
    for (;;) {
      const auto left = std::chrono::ceil<Milliseconds>(deadline_ - std::chrono::steady_clock::now());
      if (!store_.wait_for(keys, std::max(left, Milliseconds(0))).empty()) throw_missing();
      std::vector<std::string> tickets;
      for (const std::string& key : keys)
        if (const std::optional<std::string> ticket = store_.get_if_there(key)) tickets.push_back(*ticket);
      if (tickets.size() < keys.size()) continue;  // a process has ended since wait_for()
      for (const std::string& key : keys) store_.remove(key);
      const std::string name = absl::StrCat(job_, "group/", store_.add(job_ + "groups", 1), "/");
      for (size_t r = 1; r < tickets.size(); ++r) store_.set(group_key(tickets[r]), name);
      return name;
    }
  }

  [[noreturn]] void throw_missing() {
    std::vector<int> missing;
    for (int r = 0; r < environment_.world_size; ++r) {
      if (store_.get_if_there(ticket_key(r))) continue;
      // A rank that failed after this rank began to wait, and whose failure record names other ranks, did come: it gave
      // up a moment before this rank. So it is not missing.
      const std::optional<std::string> text = store_.get_if_there(failure_key(environment_, r));
      const std::optional<FailureRecord> failure = text ? FailureRecord::from_text(*text) : std::nullopt;
      if (!failure || failure->time < began_ || failure->causes.empty()) missing.push_back(r);
    }
    const std::string who = missing.empty() ? std::string("rank 0 did not answer")
                                            : absl::StrCat("rank ", absl::StrJoin(missing, ", rank "), " did not come");
    if (missing.empty()) missing = {0};
    throw MissingRanksError(absl::StrCat("rank ", environment_.rank, " cannot connect: ", who, " within ",
                                         timeout_.count(), " ms. All ", environment_.world_size,
                                         " processes of the job must be started (WORLD_SIZE=", environment_.world_size,
                                         "), each with a RANK of its own; rondorun does both"),
                            missing);
  }

  Store& store_;
  const Environment& environment_;
  const std::string job_;
  const Milliseconds timeout_;
  const Deadline deadline_;
  const int64_t began_;
};

}  // namespace

std::string meet(Store& store, const Environment& environment, Milliseconds timeout) {
  return Meeting(store, environment, timeout).run();
}

}  // namespace rondo::dist
