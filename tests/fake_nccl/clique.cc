#include "rondo/tests/fake_nccl/clique.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

namespace rondo::fake_nccl {
namespace {

constexpr uint64_t kMagic = 0x6c63636e656b6166;  // "fakenccl"
constexpr size_t kPage = 4096;

[[noreturn]] void fail(const char* what) {
  std::perror((std::string("fake NCCL: ") + what).c_str());
  std::abort();
}

int open_of(int process, int file, bool writable) {
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(file);
  return open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
}

// The files of meeting places that this process keeps open.
std::set<int>& kept_files() {
  static auto* files = new std::set<int>;
  return *files;
}

}  // namespace

// ---- The meeting place

MeetingPlace MeetingPlace::of(const UniqueId& id) {
  MeetingPlace place;
  std::memcpy(&place, id.internal, sizeof place);
  return place;
}
UniqueId MeetingPlace::id() const {
  UniqueId id{};
  std::memcpy(id.internal, this, sizeof *this);
  return id;
}
bool MeetingPlace::is_one() const { return magic == kMagic; }

MeetingPlace Clique::make_place() {
  MeetingPlace place{.magic = kMagic, .process = getpid()};
  if (getrandom(&place.nonce, sizeof place.nonce, 0) != sizeof place.nonce) fail("getrandom");
  place.file = memfd_create("fake_nccl", MFD_CLOEXEC);
  if (place.file < 0 || ftruncate(place.file, sizeof(SharedBlock)) != 0) fail("memfd_create");
  kept_files().insert(place.file);
  const Mapping shared(place.file, sizeof(SharedBlock), true);
  if (!shared.ok()) fail("mmap");
  reinterpret_cast<SharedBlock*>(shared.data())->nonce = place.nonce;
  return place;
}

// ---- Mapping

Mapping::Mapping(int file, size_t bytes, bool writable) {
  void* data = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return;
  data_ = static_cast<std::byte*>(data);
  bytes_ = bytes;
}
Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}
Mapping::~Mapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

// ---- Joining

std::unique_ptr<Clique> Clique::join(const MeetingPlace& place, int ranks, int rank, const std::string& bus,
                                     std::string* why) {
  auto clique = std::unique_ptr<Clique>(new Clique);
  clique->place_ = place;
  clique->ranks_ = ranks;
  clique->rank_ = rank;
  clique->peers_.resize(static_cast<size_t>(ranks));
  const int file = open_of(place.process, place.file, true);
  if (file >= 0) {
    clique->shared_ = Mapping(file, sizeof(SharedBlock), true);
    close(file);
  }
  if (!clique->shared_.ok() || clique->block().nonce != place.nonce) {
    *why = "the process that made the unique id has gone, or all of its ranks had joined before";
    clique->shared_ = Mapping();
    return nullptr;
  }
  int32_t none = 0;
  if (!clique->block().ranks.compare_exchange_strong(none, ranks) && none != ranks) clique->block().broken = 1;
  none = 0;
  if (!clique->own().process.compare_exchange_strong(none, getpid())) {
    *why = "rank " + std::to_string(rank) + " of this unique id was taken by process " + std::to_string(none);
    clique->shared_ = Mapping();
    return nullptr;
  }
  std::snprintf(clique->own().bus, sizeof clique->own().bus, "%s", bus.c_str());
  clique->own().joined = 1;
  return clique;
}

Clique::~Clique() {
  for (const int file : files_)
    if (file >= 0) close(file);
  for (const Peer& peer : peers_)
    if (peer.watch >= 0) close(peer.watch);
}

bool Clique::all_joined() {
  if (have_all_joined_) return true;
  if (block().broken != 0) return false;
  for (int rank = 0; rank < ranks_; ++rank)
    if (seat(rank).joined == 0) return false;
  for (int rank = 0; rank < ranks_; ++rank)
    if (!is_of_this_process(rank))
      peers_[static_cast<size_t>(rank)].watch = static_cast<int>(
          syscall(SYS_pidfd_open, static_cast<pid_t>(seat(rank).process), 0));
  if (place_.process == getpid() && kept_files().erase(place_.file) > 0) close(place_.file);
  return have_all_joined_ = true;
}

bool Clique::is_of_this_process(int rank) const { return seat(rank).process == getpid(); }

bool Clique::is_gone(int rank) {
  if (seat(rank).aborted != 0) return true;
  if (is_of_this_process(rank)) return false;
  pollfd watched{.fd = peers_[static_cast<size_t>(rank)].watch, .events = POLLIN, .revents = 0};
  return watched.fd < 0 || poll(&watched, 1, 0) > 0;
}

// ---- What ranks send

bool Clique::buffer_is_free(uint64_t number) const {
  for (int rank = 0; rank < ranks_; ++rank)
    if (seat(rank).ended + 1 < number) return false;
  return true;
}

std::byte* Clique::buffer_for(uint64_t number, size_t bytes) {
  Mapping& mapping = buffers_[number % 2];
  int& file = files_[number % 2];
  if (file >= 0 && mapping.bytes() >= bytes) return mapping.data();
  if (file < 0) file = memfd_create("fake_nccl_buffer", MFD_CLOEXEC);
  const size_t capacity = std::max(kPage, (bytes + bytes / 4 + kPage - 1) / kPage * kPage);
  if (file < 0 || ftruncate(file, static_cast<off_t>(capacity)) != 0) fail("a buffer");
  mapping = Mapping(file, capacity, true);
  if (!mapping.ok()) fail("a buffer");
  own().buffers[number % 2].capacity = capacity;
  own().buffers[number % 2].file = file;
  return mapping.data();
}

void Clique::publish(uint64_t number, const Collective& collective, size_t bytes) {
  own().issued[number % 2] = {collective, bytes};
  own().begun = number + 1;
}

bool Clique::all_have_begun(uint64_t number) const {
  for (int rank = 0; rank < ranks_; ++rank)
    if (seat(rank).begun <= number) return false;
  return true;
}

bool Clique::read(int rank, uint64_t number, Sent* sent) {
  sent->bytes = issued(rank, number).bytes;
  if (rank == rank_) {
    sent->data = buffers_[number % 2].data();
    return true;
  }
  const Buffer& buffer = seat(rank).buffers[number % 2];
  Mapping& mapping = peers_[static_cast<size_t>(rank)].buffers[number % 2];
  if (mapping.bytes() < sent->bytes) {
    const int file = open_of(seat(rank).process, buffer.file, false);
    if (file < 0) return false;
    mapping = Mapping(file, buffer.capacity, false);
    close(file);
    if (!mapping.ok()) return false;
  }
  sent->data = mapping.data();
  return true;
}

}  // namespace rondo::fake_nccl
