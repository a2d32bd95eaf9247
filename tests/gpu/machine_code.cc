#include "rondo/tests/gpu/machine_code.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string_view>

#include "rondo/runtime/base/error.h"

#if defined(RONDO_HAS_CUDA_OCCUPANCY)
#include <cuda_occupancy.h>
#endif

namespace rondo::test {
namespace {

// An ELF file of 64 bits, read without trust in its offsets.
class Elf {
 public:
  struct Section {
    std::string name;
    uint32_t type;
    size_t at, bytes;
    uint32_t link;
  };

  explicit Elf(const std::string& bytes) : bytes_(bytes) {
    if (bytes.size() < 64 || bytes.compare(0, 4,
                                           "\x7f"
                                           "ELF") != 0)
      throw Error("no cubin");
    const auto begin = get<uint64_t>(40), size = uint64_t{get<uint16_t>(58)}, count = uint64_t{get<uint16_t>(60)};
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t at = begin + i * size;
      sections_.push_back(
          {"", get<uint32_t>(at + 4), get<uint64_t>(at + 24), get<uint64_t>(at + 32), get<uint32_t>(at + 40)});
    }
    const size_t names = get<uint16_t>(62);
    for (uint64_t i = 0; i < count; ++i) sections_[i].name = text(names, get<uint32_t>(begin + i * size));
  }

  template <class T> T get(size_t at) const {
    T value;
    if (at > bytes_.size() || bytes_.size() - at < sizeof value) throw Error("a cubin that is cut short");
    std::memcpy(&value, bytes_.data() + at, sizeof value);
    return value;
  }
  const std::vector<Section>& sections() const { return sections_; }
  const Section* find(std::string_view name) const {
    for (const Section& section : sections_)
      if (section.name == name) return &section;
    return nullptr;
  }
  std::string symbol(size_t index) const {
    const Section* table = find(".symtab");
    if (table == nullptr) throw Error("a cubin without symbols");
    return text(table->link, get<uint32_t>(table->at + 24 * index));
  }

 private:
  std::string text(size_t section, size_t offset) const {
    if (section >= sections_.size()) throw Error("a cubin that is cut short");
    const size_t at = sections_[section].at + offset, end = bytes_.find('\0', at);
    if (at > bytes_.size() || end == bytes_.npos) throw Error("a cubin that is cut short");
    return bytes_.substr(at, end - at);
  }
  const std::string& bytes_;
  std::vector<Section> sections_;
};

// Opcodes of 128-bit instructions (sm_70 and later), and the width of an access in bits 73 to 75, as nvdisasm shows
// them.
constexpr uint64_t kLoad = 0x980, kStore = 0x985, kLoadGlobal = 0x981, kStoreGlobal = 0x986, kLoadLocal = 0x983,
                   kStoreLocal = 0x387, kStoreLocalUniform = 0x987;
constexpr uint64_t kBranches[] = {0x947, 0x949, 0x94d, 0x950, 0x943, 0x944, 0x941, 0xb1d};
constexpr int kBytesOfWidth[] = {1, 1, 2, 2, 4, 8, 16, 16};
constexpr int kWide = 16;

void read_instructions(const Elf& elf, const Elf::Section& text, MachineCode& code) {
  int stretch = 0;
  for (size_t at = text.at; at + 16 <= text.at + text.bytes; at += 16) {
    const auto low = elf.get<uint64_t>(at), high = elf.get<uint64_t>(at + 8);
    const uint64_t opcode = low & 0xFFF;
    const int bytes = kBytesOfWidth[high >> 9 & 7];
    code.generic += opcode == kLoad || opcode == kStore;
    if (opcode == kLoadGlobal || opcode == kLoad) {
      ++code.loads;
      code.wide_loads += bytes == kWide;
      stretch += bytes;
    } else if (opcode == kStoreGlobal || opcode == kStore) {
      ++code.stores;
      code.wide_stores += bytes == kWide;
    } else if (opcode == kLoadLocal || opcode == kStoreLocal || opcode == kStoreLocalUniform) {
      ++code.local;
    } else if (std::find(std::begin(kBranches), std::end(kBranches), opcode) != std::end(kBranches)) {
      stretch = 0;
    }
    code.flight_bytes = std::max(code.flight_bytes, stretch);
  }
}

}  // namespace

std::vector<MachineCode> machine_code(const std::string& cubin, int architecture) {
  const Elf elf(cubin);
  constexpr std::string_view kText = ".text.";
  std::vector<MachineCode> functions;
  for (const Elf::Section& section : elf.sections()) {
    if (!section.name.starts_with(kText)) continue;
    MachineCode& code = functions.emplace_back(MachineCode{.name = section.name.substr(kText.size())});
    read_instructions(elf, section, code);
    // From sm_90 on the section has the driver's part, too.
    constexpr int kReserved = 1024;
    if (const Elf::Section* shared = elf.find(".nv.shared." + code.name))
      code.shared_bytes = static_cast<int>(shared->bytes) - (architecture >= 90 ? kReserved : 0);
  }
  // .nv.info: records of format, attribute, size; those of 8 bytes are of a function, by its symbol.
  constexpr uint8_t kSized = 4, kFrame = 0x11, kRegisters = 0x2f;
  const Elf::Section* info = elf.find(".nv.info");
  if (info == nullptr) throw Error("a cubin without resources");
  for (size_t at = info->at, end = info->at + info->bytes; at + 4 <= end;) {
    const auto format = elf.get<uint8_t>(at), attribute = elf.get<uint8_t>(at + 1);
    const auto bytes = elf.get<uint16_t>(at + 2);
    at += 4;
    if (format != kSized) continue;
    if (bytes == 8 && (attribute == kFrame || attribute == kRegisters)) {
      const std::string name = elf.symbol(elf.get<uint32_t>(at));
      for (MachineCode& code : functions)
        if (code.name == name)
          (attribute == kFrame ? code.stack_bytes : code.registers) = static_cast<int>(elf.get<uint32_t>(at + 4));
    }
    at += bytes;
  }
  return functions;
}

#if defined(RONDO_HAS_CUDA_OCCUPANCY)
int resident_threads(const MachineCode& code, int architecture, int threads_per_block) {
  // The CUDA programming guide's table of compute capabilities; multiprocessors of A100, H100 and B200.
  cudaOccDeviceProp device;
  device.computeMajor = architecture / 10;
  device.computeMinor = architecture % 10;
  device.maxThreadsPerBlock = 1024;
  device.maxThreadsPerMultiprocessor = 2048;
  device.regsPerBlock = device.regsPerMultiprocessor = 65536;
  device.warpSize = 32;
  device.sharedMemPerBlock = 48 << 10;
  device.sharedMemPerMultiprocessor = static_cast<size_t>(architecture == 80 ? 164 : 228) << 10;
  device.sharedMemPerBlockOptin = static_cast<size_t>(architecture == 80 ? 163 : 227) << 10;
  device.reservedSharedMemPerBlock = 1024;
  device.numSms = architecture == 80 ? 108 : architecture == 90 ? 132 : 148;
  cudaOccFuncAttributes function;
  function.maxThreadsPerBlock = 1024;
  function.numRegs = code.registers;
  function.sharedSizeBytes = static_cast<size_t>(code.shared_bytes);
  function.maxDynamicSharedSizeBytes = code.dynamic_shared;
  function.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
  function.partitionedGCConfig = PARTITIONED_GC_OFF;
  const cudaOccDeviceState state;
  cudaOccResult result;
  const cudaOccError error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &function, &state,
                                                                     threads_per_block, code.dynamic_shared);
  if (error != CUDA_OCC_SUCCESS)
    throw Error(code.name + ": cuda_occupancy.h: error " + std::to_string(static_cast<int>(error)));
  return result.activeBlocksPerMultiprocessor * threads_per_block;
}
#else
int resident_threads(const MachineCode&, int, int) { return 0; }
#endif

}  // namespace rondo::test
