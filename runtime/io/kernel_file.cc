#include "rondo/runtime/io/kernel_file.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::io {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is written as it lies in memory");

constexpr char kMagic[8] = {'R', 'O', 'N', 'D', 'O', 'K', 'R', 'N'};
constexpr std::string_view kArtifactMagic = "RONDOART";
constexpr uint32_t kVersion = 1;

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

// Moves the first string of `rest` to `out`. Returns false if `rest` is too short.
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
    return absl::FailedPreconditionError(
        absl::StrCat("format version ", header.version, "; this build reads ", kVersion));
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

}  // namespace rondo::io
