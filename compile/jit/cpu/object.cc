#include "rondo/compile/jit/cpu/object.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/compile/jit/cpu/plugin.h"
#include "rondo/compile/jit/elf_machine.h"
#include "rondo/compile/jit/symbols.h"

namespace rondo::compile {
namespace {

constexpr uint64_t kMaxBytes = 16 << 20;  // a limit: kernels have a few KB

absl::Status damaged(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("object code: ", std::string(what)));
}
absl::Status unsupported(std::string_view what) {
  return absl::UnimplementedError(absl::StrCat("object code: ", std::string(what)));
}

// A section in memory. `address` counts from the start of the image.
struct Placed {
  bool used = false;
  bool executable = false;
  uint64_t address = 0;
  std::string_view bytes;
};

// A kind of relocation: how the value that is written at a place follows from a symbol's address plus an addend. Names
// and formulas are those of "System V ABI, AMD64", 4.4.1, and "ELF for the Arm 64-bit Architecture", 5.7.
struct Relocation {
  enum Value {
    kAddress,
    kDistance,      // the distance from the place to the address
    kPageDistance,  // from the place's page to the address's page; a page here has 4 KiB on every system
    kInPage,        // the offset of the address within its page
  };
  enum Field {
    kWhole,       // the value in full, 4 or 8 bytes
    kLow26,       // in bits of an instruction, from bit 0 on
    kFrom5,       // in bits from bit 5 on
    kFrom10,      // in bits from bit 10 on
    kAdrPattern,  // the lowest two at bit 29, the others from bit 5 on
  };
  uint32_t type;
  Value value;
  Field field;
  int bits;   // of the field; it is signed, except for kInPage
  int scale;  // this many low bits of the value must be 0, and are not stored
  uint64_t width() const { return field == kWhole && bits == 64 ? 8 : 4; }
};
#if defined(__aarch64__)
constexpr Relocation kRelocations[] = {
    {R_AARCH64_ABS64, Relocation::kAddress, Relocation::kWhole, 64, 0},
    {R_AARCH64_PREL64, Relocation::kDistance, Relocation::kWhole, 64, 0},
    {R_AARCH64_PREL32, Relocation::kDistance, Relocation::kWhole, 32, 0},
    {R_AARCH64_CALL26, Relocation::kDistance, Relocation::kLow26, 26, 2},
    {R_AARCH64_JUMP26, Relocation::kDistance, Relocation::kLow26, 26, 2},
    {R_AARCH64_CONDBR19, Relocation::kDistance, Relocation::kFrom5, 19, 2},
    {R_AARCH64_LD_PREL_LO19, Relocation::kDistance, Relocation::kFrom5, 19, 2},
    {R_AARCH64_TSTBR14, Relocation::kDistance, Relocation::kFrom5, 14, 2},
    {R_AARCH64_ADR_PREL_LO21, Relocation::kDistance, Relocation::kAdrPattern, 21, 0},
    {R_AARCH64_ADR_PREL_PG_HI21, Relocation::kPageDistance, Relocation::kAdrPattern, 21, 12},
    {R_AARCH64_ADD_ABS_LO12_NC, Relocation::kInPage, Relocation::kFrom10, 12, 0},
    {R_AARCH64_LDST8_ABS_LO12_NC, Relocation::kInPage, Relocation::kFrom10, 12, 0},
    {R_AARCH64_LDST16_ABS_LO12_NC, Relocation::kInPage, Relocation::kFrom10, 12, 1},
    {R_AARCH64_LDST32_ABS_LO12_NC, Relocation::kInPage, Relocation::kFrom10, 12, 2},
    {R_AARCH64_LDST64_ABS_LO12_NC, Relocation::kInPage, Relocation::kFrom10, 12, 3},
    {R_AARCH64_LDST128_ABS_LO12_NC, Relocation::kInPage, Relocation::kFrom10, 12, 4},
};
#else
constexpr Relocation kRelocations[] = {
    {R_X86_64_64, Relocation::kAddress, Relocation::kWhole, 64, 0},
    {R_X86_64_PC32, Relocation::kDistance, Relocation::kWhole, 32, 0},
    {R_X86_64_PLT32, Relocation::kDistance, Relocation::kWhole, 32, 0},
};
#endif
const Relocation* find_relocation(uint64_t type) {
  const auto* const found = std::ranges::find(kRelocations, type, &Relocation::type);
  return found == std::end(kRelocations) ? nullptr : found;
}

// A relocation at its place. Addresses are relative to the image, which begins at a page.
struct Patch {
  const Relocation* relocation;
  uint64_t place;
  uint64_t target;
  int64_t addend;

  // Returns the value to write if the image lies at `base`. Image and addend are small, so nothing overflows.
  int64_t value(uint64_t base) const {
    constexpr int64_t kInPage = 4095;
    const int64_t at = static_cast<int64_t>(target) + addend;
    switch (relocation->value) {
      case Relocation::kAddress: return static_cast<int64_t>(base) + at;
      case Relocation::kDistance: return at - static_cast<int64_t>(place);
      case Relocation::kPageDistance: return (at & ~kInPage) - (static_cast<int64_t>(place) & ~kInPage);
      case Relocation::kInPage: return at & kInPage;
    }
    return 0;
  }
  // True if the value fits into the field.
  bool fits() const {
    if (relocation->value == Relocation::kAddress) return true;
    const int64_t whole = value(0), stored = whole >> relocation->scale;
    if (stored << relocation->scale != whole) return false;
    if (relocation->value == Relocation::kInPage || relocation->bits == 64) return true;
    const int64_t end = int64_t{1} << (relocation->bits - 1);
    return stored >= -end && stored < end;
  }
};

// The facts of an object that place_object() needs. They are checked, except for whether patches fit.
struct Image {
  uint64_t size = 0;
  uint64_t entry = 0;
  std::vector<Placed> sections;
  std::vector<Patch> patches;
};

class Parser {
 public:
  explicit Parser(std::string_view object) : object_(object) {}

  absl::StatusOr<Image> run() {
    if (absl::Status s = read_header(); !s.ok()) return s;
    if (absl::Status s = place_sections(); !s.ok()) return s;
    if (absl::Status s = read_symbols(); !s.ok()) return s;
    for (const Elf64_Shdr& section : headers_)
      if (section.sh_type == SHT_RELA)
        if (absl::Status s = read_relocations(section); !s.ok()) return s;
    return std::move(image_);
  }

 private:
  // `out` gets bytes [offset, offset + size) of the object. Returns false if they are not all inside.
  bool slice(uint64_t offset, uint64_t size, std::string_view& out) const {
    if (offset > object_.size() || size > object_.size() - offset) return false;
    out = object_.substr(offset, size);
    return true;
  }
  template <class T> bool read_all(const Elf64_Shdr& section, std::vector<T>& out) const {
    std::string_view bytes;
    if (section.sh_entsize != sizeof(T) || section.sh_size % sizeof(T) != 0 ||
        !slice(section.sh_offset, section.sh_size, bytes))
      return false;
    out.resize(bytes.size() / sizeof(T));
    if (!bytes.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
    return true;
  }

  absl::Status read_header() {
    Elf64_Ehdr header;
    if (object_.size() < sizeof(header)) return damaged("shorter than its header");
    if (object_.size() > kMaxBytes) return damaged("too large");
    std::memcpy(&header, object_.data(), sizeof(header));
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return damaged("no ELF file");
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB || header.e_type != ET_REL)
      return damaged("no relocatable 64-bit file");
    if (header.e_machine != kElfMachine) return damaged("for another processor");
    std::string_view bytes;
    if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum == 0 ||
        !slice(header.e_shoff, uint64_t{header.e_shnum} * sizeof(Elf64_Shdr), bytes))
      return damaged("no section table");
    headers_.resize(header.e_shnum);
    std::memcpy(headers_.data(), bytes.data(), bytes.size());
    return absl::OkStatus();
  }

  absl::Status place_sections() {
    image_.sections.resize(headers_.size());
    for (size_t i = 0; i < headers_.size(); ++i) {
      const Elf64_Shdr& header = headers_[i];
      if ((header.sh_flags & SHF_ALLOC) == 0) continue;
      if (header.sh_type != SHT_PROGBITS || (header.sh_flags & (SHF_WRITE | SHF_TLS | SHF_COMPRESSED)) != 0)
        return unsupported("a section that is neither code nor constants");
      Placed& placed = image_.sections[i];
      const uint64_t align = header.sh_addralign == 0 ? 1 : header.sh_addralign;
      if ((align & (align - 1)) != 0 || align > 4096) return damaged("alignment of a section");
      if (!slice(header.sh_offset, header.sh_size, placed.bytes)) return damaged("a section reaches beyond the end");
      placed.used = true;
      placed.executable = (header.sh_flags & SHF_EXECINSTR) != 0;
      placed.address = (image_.size + align - 1) / align * align;
      image_.size = placed.address + placed.bytes.size();
      if (image_.size > kMaxBytes) return damaged("too large");
    }
    return image_.size > 0 ? absl::OkStatus() : damaged("no code");
  }

  absl::Status read_symbols() {
    const Elf64_Shdr* table = nullptr;
    for (size_t i = 0; i < headers_.size(); ++i) {
      if (headers_[i].sh_type != SHT_SYMTAB) continue;
      if (table != nullptr) return damaged("two symbol tables");
      table = &headers_[i];
      symbol_table_ = i;
    }
    if (table == nullptr || !read_all(*table, symbols_)) return damaged("no symbol table");
    if (table->sh_link >= headers_.size() || headers_[table->sh_link].sh_type != SHT_STRTAB ||
        !slice(headers_[table->sh_link].sh_offset, headers_[table->sh_link].sh_size, names_))
      return damaged("no table of names");
    bool found = false;
    for (const Elf64_Sym& symbol : symbols_) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || name_of(symbol) != kKernelSymbol) continue;
      if (found || !inside(symbol) || !image_.sections[symbol.st_shndx].executable ||
          symbol.st_value >= image_.sections[symbol.st_shndx].bytes.size())
        return damaged("the kernel's symbol");
      found = true;
      image_.entry = image_.sections[symbol.st_shndx].address + symbol.st_value;
    }
    return found ? absl::OkStatus() : damaged("defines no kernel");
  }

  std::string_view name_of(const Elf64_Sym& symbol) const {
    if (symbol.st_name >= names_.size()) return "";
    const std::string_view rest = names_.substr(symbol.st_name);
    return rest.substr(0, rest.find('\0'));
  }
  // True if the symbol is defined in a section that is placed.
  bool inside(const Elf64_Sym& symbol) const {
    return symbol.st_shndx < image_.sections.size() && image_.sections[symbol.st_shndx].used &&
           symbol.st_value <= image_.sections[symbol.st_shndx].bytes.size();
  }

  absl::Status read_relocations(const Elf64_Shdr& section) {
    if (section.sh_info >= headers_.size()) return damaged("relocations of no section");
    const Placed& target = image_.sections[section.sh_info];
    if (!target.used) return absl::OkStatus();
    std::vector<Elf64_Rela> entries;
    if (section.sh_link != symbol_table_ || !read_all(section, entries)) return damaged("relocations");
    for (const Elf64_Rela& entry : entries) {
      const uint64_t type = ELF64_R_TYPE(entry.r_info), index = ELF64_R_SYM(entry.r_info);
      if (index >= symbols_.size()) return damaged("a relocation without a symbol");
      const Elf64_Sym& symbol = symbols_[index];
      if (symbol.st_shndx == SHN_UNDEF) return unsupported(absl::StrCat("needs ", std::string(name_of(symbol))));
      if (!inside(symbol)) return damaged("a relocation against a symbol outside of the code");
      const Relocation* const relocation = find_relocation(type);
      if (relocation == nullptr) return unsupported(absl::StrCat("relocation type ", type));
      if (target.bytes.size() < relocation->width() || entry.r_offset > target.bytes.size() - relocation->width())
        return damaged("a relocation beyond the end of its section");
      // Addends reach a few bytes around a symbol; anything else could make a value overflow below.
      if (entry.r_addend != static_cast<int32_t>(entry.r_addend)) return damaged("an addend");
      image_.patches.push_back({relocation, target.address + entry.r_offset,
                                image_.sections[symbol.st_shndx].address + symbol.st_value, entry.r_addend});
    }
    return absl::OkStatus();
  }

  std::string_view object_, names_;
  std::vector<Elf64_Shdr> headers_;
  std::vector<Elf64_Sym> symbols_;
  size_t symbol_table_ = 0;
  Image image_;
};

// Code in pages that this object owns.
class MappedCode final : public MachineCode {
 public:
  MappedCode(std::byte* pages, size_t bytes, uint64_t entry)
      : MachineCode(pages + entry), pages_(pages), bytes_(bytes) {}
  ~MappedCode() override {
    hide_symbol(handle());
    ::munmap(pages_, bytes_);
  }
  size_t bytes() const override {
    return bytes_ - static_cast<size_t>(static_cast<const std::byte*>(handle()) - pages_);
  }

 private:
  std::byte* pages_;
  size_t bytes_;
};

// Replaces those bits of the instruction at `at` that are set in `mask` by the same bits of `bits`.
void set_bits(std::byte* at, uint32_t mask, uint32_t bits) {
  uint32_t instruction;
  std::memcpy(&instruction, at, sizeof(instruction));
  instruction = (instruction & ~mask) | (bits & mask);
  std::memcpy(at, &instruction, sizeof(instruction));
}

void write_patch(const Patch& patch, std::byte* base) {
  const Relocation& relocation = *patch.relocation;
  std::byte* const at = base + patch.place;
  const int64_t value = patch.value(reinterpret_cast<uint64_t>(base)) >> relocation.scale;
  const uint32_t low = static_cast<uint32_t>(value), field = relocation.bits < 32 ? (1u << relocation.bits) - 1 : ~0u;
  switch (relocation.field) {
    case Relocation::kWhole: std::memcpy(at, &value, relocation.width()); break;  // little-endian
    case Relocation::kLow26: set_bits(at, field, low); break;
    case Relocation::kFrom5: set_bits(at, field << 5, low << 5); break;
    case Relocation::kFrom10: set_bits(at, field << 10, low << 10); break;
    case Relocation::kAdrPattern: set_bits(at, 3u << 29 | field >> 2 << 5, (low & 3u) << 29 | low >> 2 << 5); break;
  }
}

void write_image(const Image& image, std::byte* base) {
  for (const Placed& section : image.sections)
    if (!section.bytes.empty()) std::memcpy(base + section.address, section.bytes.data(), section.bytes.size());
  for (const Patch& patch : image.patches) write_patch(patch, base);
}

absl::StatusOr<Image> parse(std::string_view object) {
  if (!can_place_objects()) return unsupported("this processor's code is placed by LLVM");
  absl::StatusOr<Image> image = Parser(object).run();
  if (!image.ok()) return image;
  for (const Patch& patch : image->patches)
    if (!patch.fits()) return damaged("a relocation whose value does not fit");
  return image;
}

}  // namespace

bool can_place_objects() { return kElfMachine != EM_NONE; }

absl::Status check_object(std::string_view object) { return parse(object).status(); }

absl::StatusOr<std::shared_ptr<const MachineCode>> place_object(std::string_view object) {
  const absl::StatusOr<Image> image = parse(object);
  if (!image.ok()) return image.status();
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t bytes = (image->size + page - 1) / page * page;
  void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED)
    return absl::ResourceExhaustedError(absl::StrCat("memory for code: ", std::generic_category().message(errno)));
  write_image(*image, static_cast<std::byte*>(pages));
  // The processor may have cached older instructions from these addresses (x86 needs no action).
  __builtin___clear_cache(static_cast<char*>(pages), static_cast<char*>(pages) + bytes);
  if (::mprotect(pages, bytes, PROT_READ | PROT_EXEC) != 0) {
    const std::string reason = std::generic_category().message(errno);
    ::munmap(pages, bytes);
    return absl::ResourceExhaustedError(absl::StrCat("executable memory: ", reason));
  }
  return std::make_shared<MappedCode>(static_cast<std::byte*>(pages), bytes, image->entry);
}

}  // namespace rondo::compile
