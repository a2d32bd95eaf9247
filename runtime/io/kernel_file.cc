#include "rondo/runtime/io/kernel_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is written as it lies in memory");

constexpr char kMagic[8] = {'R', 'O', 'N', 'D', 'O', 'K', 'R', 'N'};
constexpr std::string_view kArtifactMagic = "RONDOART";
constexpr uint32_t kVersion = 1;
constexpr off_t kMaxFileBytes = off_t{1} << 30;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t kernels;
  uint64_t checksum;
};
static_assert(sizeof(Header) == 24);

void append(std::string& out, std::string_view text) {
  const uint64_t size = text.size();
  out.append(reinterpret_cast<const char*>(&size), sizeof(size));
  out.append(text);
}

// Takes a string off the front of `rest`.
bool take(std::string_view& rest, std::string& out) {
  uint64_t size;
  if (rest.size() < sizeof(size)) return false;
  std::memcpy(&size, rest.data(), sizeof(size));
  rest.remove_prefix(sizeof(size));
  if (size > rest.size()) return false;
  out = rest.substr(0, size);
  rest.remove_prefix(size);
  return true;
}

uint64_t checksum_of(std::string_view bytes) {
  Checksum sum;
  sum.update(bytes);
  return sum.digest();
}

std::string errno_text() { return std::generic_category().message(errno); }

}  // namespace

std::string pack(const KernelFile& file) {
  std::string body;
  append(body, file.host);
  for (const KernelRecord& record : file.kernels) {
    append(body, record.kernel);
    append(body, record.object);
  }
  Header header{{}, kVersion, static_cast<uint32_t>(file.kernels.size()), checksum_of(body)};
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + body;
}

absl::StatusOr<KernelFile> unpack(std::string_view bytes) {
  Header header;
  if (bytes.size() < sizeof(header)) return absl::InvalidArgumentError("shorter than its header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kMagic, sizeof(kMagic)) != 0) return absl::InvalidArgumentError("no file of kernels");
  if (header.version != kVersion)
    return absl::InvalidArgumentError(absl::StrCat("format version ", header.version, "; this build reads ", kVersion));
  std::string_view rest = bytes.substr(sizeof(header));
  if (checksum_of(rest) != header.checksum)
    return absl::InvalidArgumentError("its checksum is wrong: damaged or cut short");
  KernelFile file;
  bool whole = take(rest, file.host);
  for (uint32_t i = 0; whole && i < header.kernels; ++i) {
    KernelRecord record;
    whole = take(rest, record.kernel) && take(rest, record.object);
    file.kernels.push_back(std::move(record));
  }
  if (!whole || !rest.empty()) return absl::InvalidArgumentError("its lengths do not add up");
  return file;
}

std::string pack_artifact(const std::vector<KernelFile>& sections) {
  std::string bytes(kArtifactMagic);
  const uint64_t count = sections.size();
  bytes.append(reinterpret_cast<const char*>(&count), sizeof(count));
  for (const KernelFile& section : sections) append(bytes, pack(section));
  return bytes;
}

absl::StatusOr<std::vector<KernelFile>> unpack_artifact(std::string_view bytes) {
  uint64_t count;
  if (bytes.size() < kArtifactMagic.size() + sizeof(count))
    return absl::InvalidArgumentError("shorter than its header");
  if (!bytes.starts_with(kArtifactMagic)) return absl::InvalidArgumentError("no artifact file");
  bytes.remove_prefix(kArtifactMagic.size());
  std::memcpy(&count, bytes.data(), sizeof(count));
  bytes.remove_prefix(sizeof(count));
  std::vector<KernelFile> sections;
  for (uint64_t i = 0; i < count; ++i) {
    std::string section;
    if (!take(bytes, section)) return absl::InvalidArgumentError("cut short: its lengths do not add up");
    absl::StatusOr<KernelFile> file = unpack(section);
    if (!file.ok()) return file.status();
    sections.push_back(*std::move(file));
  }
  if (!bytes.empty()) return absl::InvalidArgumentError("its lengths do not add up");
  return sections;
}

std::string distrust(int fd) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return absl::StrCat("cannot examine it: ", errno_text());
  if (info.st_uid != ::geteuid() && info.st_uid != 0) return absl::StrCat("it belongs to user ", info.st_uid);
  if ((info.st_mode & (S_IWGRP | S_IWOTH)) != 0) return "others than its owner may write to it (chmod go-w)";
  return "";
}

std::string distrust_folder(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return errno_text();
  const absl::Cleanup close = [fd] { ::close(fd); };
  return distrust(fd);
}

absl::StatusOr<std::string> read_trusted_file(const std::string& path) {
  // Non-blocking: a FIFO must not hang us.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return errno == ENOENT ? absl::NotFoundError("no such file") : absl::PermissionDeniedError(errno_text());
  const absl::Cleanup close = [fd] { ::close(fd); };
  struct stat info;
  if (::fstat(fd, &info) != 0) return absl::PermissionDeniedError(errno_text());
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError("no regular file");
  if (info.st_size > kMaxFileBytes) return absl::InvalidArgumentError("too large");
  if (std::string reason = distrust(fd); !reason.empty()) return absl::PermissionDeniedError(reason);
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return absl::PermissionDeniedError(errno_text());
    if (n == 0) break;  // cut short meanwhile: unpack will tell
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace rondo::io
