#include "rondo/compile/jit/cuda/object.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::compile::cuda {
namespace {

constexpr std::string_view kMagic = "RONDOCU1";

absl::Status damaged(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("CUDA code: ", std::string(what)));
}

uint64_t checksum_of(std::string_view bytes) {
  io::Checksum sum;
  sum.update(bytes);
  return sum.digest();
}

std::string letters(const std::string& name) {
  std::string result = "rondo_";
  for (const char c : name) result += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return result;
}

bool is_sound(const CudaObject& o) {
  const Schedule& s = o.schedule;
  const auto power_of_two = [](int32_t n) { return n > 0 && (n & (n - 1)) == 0; };
  return o.name.starts_with("rondo_") && s.threads >= kWarp && s.threads <= 1024 && s.threads % kWarp == 0 &&
         power_of_two(s.threads_per_row) && s.threads_per_row <= s.threads && power_of_two(s.elements) &&
         s.elements <= 8 && s.steps >= 0 && (s.chunk_rows == 0) == o.sums.empty() && !o.image.cubin.empty() &&
         !(o.per_item && s.chunk_rows > 0);
}

}  // namespace

CudaObject describe(const LoopKernel& kernel, const Schedule& schedule) {
  CudaObject object{letters(kernel.name), schedule, kernel.per_item, kernel.varying, {}, {}};
  for (const Operand& operand : kernel.operands)
    if (operand.is_partial && kernel.starts < 0) object.sums.push_back(operand.dtype);
  return object;
}

std::string pack(const CudaObject& o) {
  const Schedule& s = o.schedule;
  std::string body = absl::StrCat(o.name, " ", static_cast<int>(s.shape), " ", s.threads, " ", s.threads_per_row, " ",
                                  s.elements, " ", s.chunk_rows, " ", s.steps);
  for (const bool fact : {s.keeps_sums, s.keeps_row, s.wide, o.per_item}) absl::StrAppend(&body, " ", fact ? 1 : 0);
  absl::StrAppend(&body, " ", o.varying.size());
  for (const bool varies : o.varying) absl::StrAppend(&body, " ", varies ? 1 : 0);
  absl::StrAppend(&body, " ", o.sums.size());
  for (const DType type : o.sums) absl::StrAppend(&body, " ", static_cast<int>(type));
  absl::StrAppend(&body, " ", o.image.cubin.size(), " ", o.image.ptx.size(), "\n");
  body += o.image.cubin;
  body += o.image.ptx;
  const uint64_t sum = checksum_of(body);
  std::string bytes(kMagic);
  bytes.append(reinterpret_cast<const char*>(&sum), sizeof(sum));
  return bytes + body;
}

absl::StatusOr<CudaObject> unpack_object(std::string_view bytes) {
  uint64_t sum;
  if (!bytes.starts_with(kMagic)) return damaged("no object of this kind");
  bytes.remove_prefix(kMagic.size());
  if (bytes.size() < sizeof(sum)) return damaged("shorter than its header");
  std::memcpy(&sum, bytes.data(), sizeof(sum));
  bytes.remove_prefix(sizeof(sum));
  if (checksum_of(bytes) != sum) return damaged("its checksum is wrong: damaged or cut short");
  const size_t end = bytes.find('\n');
  if (end == bytes.npos) return damaged("no facts");
  std::istringstream words{std::string(bytes.substr(0, end))};
  bytes.remove_prefix(end + 1);
  CudaObject o;
  Schedule& s = o.schedule;
  int shape = 0;
  bool keeps_sums = false, keeps_row = false, wide = false;
  size_t n_varying = 0, n_sums = 0, cubin = 0, ptx = 0;
  words >> o.name >> shape >> s.threads >> s.threads_per_row >> s.elements >> s.chunk_rows >> s.steps >> keeps_sums >>
      keeps_row >> wide >> o.per_item >> n_varying;
  for (bool varies = false; o.varying.size() < n_varying && words >> varies;) o.varying.push_back(varies);
  words >> n_sums;
  for (int type = 0; o.sums.size() < n_sums && words >> type;) {
    if (type < 0 || type >= kNumDTypes) return damaged("a type that is none");
    o.sums.push_back(static_cast<DType>(type));
  }
  words >> cubin >> ptx;
  if (words.fail() || shape < 0 || shape > static_cast<int>(Schedule::Shape::kTiles))
    return damaged("facts that are none");
  s.shape = static_cast<Schedule::Shape>(shape);
  s.keeps_sums = keeps_sums;
  s.keeps_row = keeps_row;
  s.wide = wide;
  if (cubin > bytes.size() || ptx != bytes.size() - cubin) return damaged("its lengths do not add up");
  o.image.cubin = bytes.substr(0, cubin);
  o.image.ptx = bytes.substr(cubin);
  if (!is_sound(o)) return damaged("facts that do not fit together");
  return o;
}

}  // namespace rondo::compile::cuda
