#include "rondo/dist/transport/peer_status.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/dist/transport/failure_record.h"

namespace rondo::dist {
namespace {

// The store may learn of a rank's end later than a socket does: how long to look, and the pause between looks.
constexpr Milliseconds kLook{2'000}, kLookPause{20};
constexpr size_t kLongestCall = 200;

// Cuts a peer's text for use in messages, and replaces characters that could control a terminal.
std::string printable(std::string text) {
  text.resize(std::min(text.size(), kLongestCall));
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  return text;
}

const char* progress_key(PeerStatus::Lane lane) {
  return lane == PeerStatus::Lane::kHost ? "progress" : "device_progress";
}
const char* late_key(PeerStatus::Lane lane) { return lane == PeerStatus::Lane::kHost ? "late" : "device_late"; }

}  // namespace

PeerStatus::PeerStatus(Store& store, const Environment& environment, std::string prefix, std::vector<int> members)
    : store_(store), environment_(environment), prefix_(std::move(prefix)), members_(std::move(members)) {
  store_.set_last_message(key("gone", environment_.rank), "its process ended");
}

std::string PeerStatus::key(const char* what, int rank) const { return absl::StrCat(prefix_, what, "/", rank); }

void PeerStatus::begin(Lane lane, uint64_t number, std::string_view description) noexcept {
  try {
    store_.post(key(progress_key(lane), environment_.rank), absl::StrCat(number, " ", std::string(description)));
  } catch (const std::exception&) {  // errors will only say less about this rank's progress
  }
}

void PeerStatus::fail(const std::string& sentence, const std::vector<int>& causes) noexcept {
  if (has_failed_.exchange(true)) return;
  try {
    // If another group of this rank has failed first, its record is kept.
    if (!store_.get_if_there(failure_key(environment_, environment_.rank)))
      write_failure(store_, environment_, FailureRecord::now(causes, sentence));
    store_.set(key("failed", environment_.rank), sentence);
  } catch (const std::exception&) {
  }
}

void PeerStatus::leave(const char* how) noexcept {
  try {
    store_.post(key("gone", environment_.rank), how);
    store_.set_last_message("", "");
  } catch (const std::exception&) {  // without a store, the other ranks notice from their sockets
  }
}

PeerStatus::Peer PeerStatus::look_at(Lane lane, int rank, uint64_t number) {
  Peer peer;
  const std::optional<std::string> gone = store_.get_if_there(key("gone", rank));
  const std::optional<std::string> failed = store_.get_if_there(key("failed", rank));
  peer.is_silent = store_.get_if_there(key(late_key(lane), rank)) != absl::StrCat(number);
  const std::string progress = store_.get_if_there(key(progress_key(lane), rank)).value_or("0 ");
  const std::pair<std::string, std::string> seen = absl::StrSplit(progress, absl::MaxSplits(' ', 1));
  uint64_t at = 0;
  if (failed) {
    peer = {State::kFailed, peer.is_silent, absl::StrCat("rank ", rank, " gave up (", *failed, ")")};
  } else if (gone) {
    peer = {State::kGone, peer.is_silent, absl::StrCat("rank ", rank, " is gone: ", *gone)};
  } else if (absl::SimpleAtoi(seen.first, &at) && at < number) {
    peer = {State::kBehind, peer.is_silent,
            absl::StrCat("rank ", rank, " has not come to it, ",
                         at == 0 ? "nor to any before" : absl::StrCat("and was last at ", seen.second))};
  } else if (at == number) {
    peer = {State::kThere, peer.is_silent, seen.second};
  }
  return peer;
}

bool PeerStatus::has_lost_one(Lane lane, uint64_t number) noexcept {
  try {
    for (const int r : members_) {
      if (r == environment_.rank) continue;
      const State state = look_at(lane, r, number).state;
      if (state == State::kGone || state == State::kFailed) return true;
    }
  } catch (const std::exception&) {  // the store is gone: the timeout decides
  }
  return false;
}

PeerStatus::Diagnosis PeerStatus::diagnose(Lane lane, uint64_t number, std::string_view what, bool late,
                                           Milliseconds timeout, std::string_view error) {
  const std::string lost = absl::StrCat(
      std::string(what),
      late ? absl::StrCat(" did not complete within ", timeout.count(), " ms") : std::string(" failed"));
  std::vector<int> silent;
  try {
    if (late) store_.set(key(late_key(lane), environment_.rank), absl::StrCat(number));
    for (const Deadline until = after(kLook); std::chrono::steady_clock::now() < until;
         std::this_thread::sleep_for(kLookPause)) {
      std::vector<std::pair<int, Peer>> peers;
      silent.clear();
      for (const int r : members_) {
        if (r == environment_.rank) continue;
        peers.emplace_back(r, look_at(lane, r, number));
        if (peers.back().second.is_silent) silent.push_back(r);
      }
      const auto named = [&](State state, size_t most) {
        Diagnosis diagnosis;
        std::vector<std::string> texts;
        for (const auto& [r, peer] : peers) {
          if (peer.state != state || texts.size() == most) continue;
          texts.push_back(peer.text);
          diagnosis.causes.push_back(r);
        }
        diagnosis.sentence = absl::StrCat(lost, ": ", absl::StrJoin(texts, "; "));
        return diagnosis;
      };
      for (const auto& [state, most, applies] :
           {std::tuple(State::kGone, peers.size(), true), std::tuple(State::kFailed, size_t{1}, true),
            std::tuple(State::kBehind, peers.size(), late)})
        if (Diagnosis diagnosis = named(state, most); applies && !diagnosis.causes.empty()) return diagnosis;
      // Ranks compare collectives of host tensors before these run, so only collectives of devices can differ here.
      for (const auto& [r, peer] : peers)
        if (late && peer.state == State::kThere && !what.ends_with(peer.text))
          return {absl::StrCat(lost, ": rank ", r, " is at ", peer.text, " instead"), {r}};
      if (late && silent.empty()) return {lost + ": every rank has come to it, but not all its bytes", {}};
    }
  } catch (const DistError& e) {
    return {absl::StrCat(lost, ", and ", e.what(), " (", std::string(error), ")"), {}};
  }
  // All ranks have begun the collective, and those still running have timed out, too.
  if (late)
    return {absl::StrCat(lost, ": rank ", absl::StrJoin(silent, ", rank "), " came to it and was not heard of since"),
            silent};
  return {absl::StrCat(lost, ": ", std::string(error)), {}};
}

void PeerStatus::publish_call(std::string_view description) { store_.set(key("call", environment_.rank), description); }

std::string PeerStatus::call_of(int rank, Milliseconds timeout) {
  return printable(store_.get(key("call", rank), timeout));
}

}  // namespace rondo::dist
