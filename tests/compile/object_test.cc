// The loader of machine code: what it places runs, and what is not right is refused, whatever the bytes.
#include "rondo/compile/jit/cpu/object.h"

#include <elf.h>

#include <fstream>
#include <sstream>

#include "rondo/compile/codegen/loop_text.h"
#include "rondo/compile/jit/cpu/plugin.h"
#include "rondo/compile/jit/cpu/toolchain.h"
#include "rondo/compile/jit/elf_machine.h"
#include "rondo/tests/compile/kernel_fixture.h"

namespace rondo::compile {
namespace {

// A use of a constant's address in code.
struct Use {
  uint64_t place;
  uint32_t type;
  int64_t addend = 0;
};
template <class Unit> struct Reader {
  std::vector<Unit> code;
  std::vector<Use> uses;
};
// Relocations of each kind, and functions that make the first float of operand 0 what stands at a constant.
#if defined(__aarch64__)
constexpr uint32_t kDistance = R_AARCH64_PREL32, kAddress = R_AARCH64_ABS64, kCall = R_AARCH64_CALL26,
                   kUnknown = R_AARCH64_ADR_GOT_PAGE;
const Reader<uint32_t> kReaders[] = {
    // ldr x1, [x0]; adrp x2, constant; ldr s0, [x2, :lo12:constant]; str s0, [x1]; ret
    {{0xF9400001, 0x90000002, 0xBD400040, 0xBD000020, 0xD65F03C0},
     {{4, R_AARCH64_ADR_PREL_PG_HI21}, {8, R_AARCH64_LDST32_ABS_LO12_NC}}},
    // ldr x1, [x0]; adrp x2, constant; add x2, x2, :lo12:constant; ldr s0, [x2]; str s0, [x1]; ret
    {{0xF9400001, 0x90000002, 0x91000042, 0xBD400040, 0xBD000020, 0xD65F03C0},
     {{4, R_AARCH64_ADR_PREL_PG_HI21}, {8, R_AARCH64_ADD_ABS_LO12_NC}}},
    // ldr x1, [x0]; adr x2, constant; ldr s0, [x2]; str s0, [x1]; ret
    {{0xF9400001, 0x10000002, 0xBD400040, 0xBD000020, 0xD65F03C0}, {{4, R_AARCH64_ADR_PREL_LO21}}},
    // ldr x1, [x0]; ldr s0, constant; str s0, [x1]; ret
    {{0xF9400001, 0x1C000000, 0xBD000020, 0xD65F03C0}, {{4, R_AARCH64_LD_PREL_LO19}}},
    // ldr x1, [x0]; ldr x2, 24; ldr w3, [x2]; str w3, [x1]; ret; nop; 24: the constant's address
    {{0xF9400001, 0x580000A2, 0xB9400043, 0xB9000023, 0xD65F03C0, 0xD503201F, 0, 0}, {{24, R_AARCH64_ABS64}}},
};
#else
constexpr uint32_t kDistance = R_X86_64_PC32, kAddress = R_X86_64_64, kCall = R_X86_64_PLT32,
                   kUnknown = R_X86_64_GOTPCREL;
// mov rdi, [rdi]; movss xmm0, [rip + constant]; movss [rdi], xmm0; ret
const std::vector<uint8_t> kRelativeRead = {0x48, 0x8b, 0x3f, 0xf3, 0x0f, 0x10, 0x05, 0,
                                            0,    0,    0,    0xf3, 0x0f, 0x11, 0x07, 0xc3};
const Reader<uint8_t> kReaders[] = {
    {kRelativeRead, {{7, R_X86_64_PC32, -4}}},
    {kRelativeRead, {{7, R_X86_64_PLT32, -4}}},
    // mov rax, imm64; mov rdi, [rdi]; mov eax, [rax]; mov [rdi], eax; ret
    {{0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0x48, 0x8b, 0x3f, 0x8b, 0x00, 0x89, 0x07, 0xc3}, {{2, R_X86_64_64}}},
};
#endif

float run(const MachineCode& code) {
  std::vector<float> x(100, 1.0f), y(100);
  void* operands[] = {x.data(), y.data()};
  const std::vector<int64_t> sizes = extents(scale(2));
  code.entry()(operands, nullptr, sizes.data(), 0, 100);
  EXPECT_EQ(y.front(), y.back());
  return y.front();
}

// An object written by hand: .text (4 kB of `ret`), .rodata (16 bytes), a kernel at 0, and whatever a test changes.
struct HandMade {
  enum Section { kNull, kText, kConstants, kRela, kSymbols, kNames, kSections };
  std::string text = std::string(4096, '\xc3'), constants = std::string(16, '\0');
  std::vector<Elf64_Rela> relocations;
  std::vector<Elf64_Sym> symbols;
  std::string names = std::string("\0rondo_kernel\0memset\0", 21);
  Elf64_Ehdr header{};
  Elf64_Shdr sections[kSections] = {};

  HandMade() {
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_type = ET_REL;
    header.e_machine = kElfMachine;
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = kSections;
    symbols = {{},
               {1, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC), 0, kText, 0, 1},
               {0, STT_NOTYPE, 0, kConstants, 0, 0},
               {14, STT_NOTYPE, 0, SHN_UNDEF, 0, 0}};
    sections[kText] = {.sh_name = 0,
                       .sh_type = SHT_PROGBITS,
                       .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
                       .sh_addr = 0,
                       .sh_offset = 0,
                       .sh_size = 0,
                       .sh_link = 0,
                       .sh_info = 0,
                       .sh_addralign = 16,
                       .sh_entsize = 0};
    sections[kConstants] = sections[kText];
    sections[kConstants].sh_flags = SHF_ALLOC;
    sections[kRela] = {.sh_name = 0,
                       .sh_type = SHT_RELA,
                       .sh_flags = 0,
                       .sh_addr = 0,
                       .sh_offset = 0,
                       .sh_size = 0,
                       .sh_link = kSymbols,
                       .sh_info = kText,
                       .sh_addralign = 8,
                       .sh_entsize = sizeof(Elf64_Rela)};
    sections[kSymbols] = {.sh_name = 0,
                          .sh_type = SHT_SYMTAB,
                          .sh_flags = 0,
                          .sh_addr = 0,
                          .sh_offset = 0,
                          .sh_size = 0,
                          .sh_link = kNames,
                          .sh_info = 1,
                          .sh_addralign = 8,
                          .sh_entsize = sizeof(Elf64_Sym)};
    sections[kNames].sh_type = SHT_STRTAB;
  }
  void relocate(uint64_t offset, uint32_t symbol, uint32_t type, int64_t addend) {
    relocations.push_back({offset, ELF64_R_INFO(uint64_t{symbol}, type), addend});
  }
  template <class T> static std::string bytes(const std::vector<T>& list) {
    return std::string(reinterpret_cast<const char*>(list.data()), list.size() * sizeof(T));
  }
  // Offsets and sizes as they should be; `change` may spoil them.
  std::string object(absl::FunctionRef<void(HandMade&)> change = [](HandMade&) {}) {
    const std::string parts[kSections] = {"", text, constants, bytes(relocations), bytes(symbols), names};
    std::string body;
    for (int i = 1; i < kSections; ++i) {
      sections[i].sh_offset = sizeof(header) + body.size();
      sections[i].sh_size = parts[i].size();
      body += parts[i];
    }
    header.e_shoff = sizeof(header) + body.size();
    change(*this);
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + body +
           std::string(reinterpret_cast<const char*>(sections), sizeof(sections));
  }
};

class ObjectFile : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_place_objects()) GTEST_SKIP() << "LLVM places code here";
  }
};

TEST_F(ObjectFile, CompiledCodeRuns) {
  if (!toolchain_exists()) GTEST_SKIP() << "built without LLVM";
  const std::string object = compile_object(scale(3), {});
  const auto code = place_object(object);
  ASSERT_TRUE(code.ok()) << code.status();
  EXPECT_EQ(run(**code), 3);
  // LLVM's linker agrees: it serves where ours does not.
  EXPECT_EQ(run(*link_object(object)), 3);
}

TEST_F(ObjectFile, PagesAreNeverWritableAndExecutable) {
  const auto code = place_object(HandMade().object());
  ASSERT_TRUE(code.ok()) << code.status();
  const auto address = reinterpret_cast<uint64_t>((*code)->entry());
  std::ifstream maps("/proc/self/maps");
  bool found = false;
  for (std::string line; std::getline(maps, line);) {
    uint64_t first, last;
    char dash;
    std::string rights;
    std::istringstream(line) >> std::hex >> first >> dash >> last >> rights;
    if (address < first || address >= last) continue;
    found = true;
    EXPECT_EQ(rights, "r-xp");
  }
  EXPECT_TRUE(found);
}

TEST_F(ObjectFile, RelocationsPointWhereTheyShould) {
  for (const int64_t offset : {0, 32, 4096 + 12}) {
    HandMade made;
    made.constants = std::string(8192, '\0');
    const float five = 5;
    std::memcpy(made.constants.data() + offset, &five, 4);
    for (const auto& reader : kReaders) {
      std::memcpy(made.text.data(), reader.code.data(), reader.code.size() * sizeof(reader.code[0]));
      made.relocations.clear();
      for (const Use& use : reader.uses) made.relocate(use.place, 2, use.type, offset + use.addend);
      const auto code = place_object(made.object());
      ASSERT_TRUE(code.ok()) << code.status();
      float out = 0;
      void* operands[] = {&out};
      (*code)->entry()(operands, nullptr, nullptr, 0, 1);
      EXPECT_EQ(out, 5) << "relocation type " << reader.uses[0].type << ", constant at " << offset;
    }
  }
}

TEST_F(ObjectFile, WhatItDoesNotKnowItLeavesToLlvm) {
  const auto code_of = [](absl::FunctionRef<void(HandMade&)> before) {
    HandMade made;
    before(made);
    return check_object(made.object());
  };
  const absl::Status external = code_of([](HandMade& m) { m.relocate(0, 3, kCall, -4); });
  EXPECT_TRUE(absl::IsUnimplemented(external));
  EXPECT_NE(external.ToString().find("memset"), std::string::npos) << external;
  EXPECT_TRUE(absl::IsUnimplemented(code_of([](HandMade& m) { m.relocate(0, 2, kUnknown, -4); })));
  EXPECT_TRUE(
      absl::IsUnimplemented(code_of([](HandMade& m) { m.sections[HandMade::kConstants].sh_flags |= SHF_WRITE; })));
  EXPECT_TRUE(
      absl::IsUnimplemented(code_of([](HandMade& m) { m.sections[HandMade::kConstants].sh_type = SHT_NOBITS; })));
}

TEST_F(ObjectFile, RefusesWhatIsWrong) {
  struct Case {
    const char* what;
    void (*change)(HandMade&);  // after offsets are known
    void (*before)(HandMade&) = nullptr;
  };
  using H = HandMade;
  const Case cases[] = {
      {"magic", [](H& m) { m.header.e_ident[0] = 0; }},
      {"class", [](H& m) { m.header.e_ident[EI_CLASS] = ELFCLASS32; }},
      {"machine", [](H& m) { m.header.e_machine = EM_RISCV; }},
      {"shared library", [](H& m) { m.header.e_type = ET_DYN; }},
      {"no sections", [](H& m) { m.header.e_shnum = 0; }},
      {"too many sections", [](H& m) { m.header.e_shnum = 65535; }},
      {"section table far away", [](H& m) { m.header.e_shoff = ~uint64_t{0} - 8; }},
      {"section entries of another size", [](H& m) { m.header.e_shentsize = 63; }},
      {"section offset wraps around", [](H& m) { m.sections[H::kText].sh_offset = ~uint64_t{0} - 100; }},
      {"section size wraps around", [](H& m) { m.sections[H::kText].sh_size = ~uint64_t{0} - 10; }},
      {"section beyond the end", [](H& m) { m.sections[H::kText].sh_size = 1 << 20; }},
      {"odd alignment", [](H& m) { m.sections[H::kText].sh_addralign = 24; }},
      {"huge alignment", [](H& m) { m.sections[H::kText].sh_addralign = uint64_t{1} << 62; }},
      {"no code", [](H& m) { m.sections[H::kText].sh_flags = m.sections[H::kConstants].sh_flags = 0; }},
      {"no symbols", [](H& m) { m.sections[H::kSymbols].sh_type = SHT_PROGBITS; }},
      {"two symbol tables", [](H& m) { m.sections[H::kRela] = m.sections[H::kSymbols]; }},
      {"symbols of another size", [](H& m) { m.sections[H::kSymbols].sh_entsize = 8; }},
      {"names nowhere", [](H& m) { m.sections[H::kSymbols].sh_link = 77; }},
      {"names of another kind", [](H& m) { m.sections[H::kSymbols].sh_link = H::kText; }},
      {"no kernel", [](H&) {}, [](H& m) { m.symbols[1].st_name = 3; }},
      {"name beyond the names", [](H&) {}, [](H& m) { m.symbols[1].st_name = 1u << 31; }},
      {"kernel in the constants", [](H&) {}, [](H& m) { m.symbols[1].st_shndx = H::kConstants; }},
      {"kernel in no section", [](H&) {}, [](H& m) { m.symbols[1].st_shndx = 4000; }},
      {"kernel at the end", [](H&) {}, [](H& m) { m.symbols[1].st_value = 4096; }},
      {"kernel beyond", [](H&) {}, [](H& m) { m.symbols[1].st_value = ~uint64_t{0}; }},
      {"two kernels", [](H&) {}, [](H& m) { m.symbols.push_back(m.symbols[1]); }},
      {"patch at the end", [](H&) {}, [](H& m) { m.relocate(4093, 2, kDistance, 0); }},
      {"absolute patch at the end", [](H&) {}, [](H& m) { m.relocate(4089, 2, kAddress, 0); }},
      {"patch beyond", [](H&) {}, [](H& m) { m.relocate(~uint64_t{0} - 1, 2, kDistance, 0); }},
      {"patch with a huge addend", [](H&) {}, [](H& m) { m.relocate(0, 2, kAddress, int64_t{1} << 40); }},
      {"patch that reaches too far", [](H&) {}, [](H& m) { m.relocate(0, 2, kDistance, INT32_MAX); }},
      {"patch without a symbol", [](H&) {}, [](H& m) { m.relocate(0, 99, kDistance, 0); }},
      {"patch to a symbol beyond its section", [](H&) {},
       [](H& m) {
         m.symbols[2].st_value = 17;
         m.relocate(0, 2, kDistance, 0);
       }},
      {"patches of no section", [](H& m) { m.sections[H::kRela].sh_info = 88; },
       [](H& m) { m.relocate(0, 2, kDistance, 0); }},
      {"patches of other symbols", [](H& m) { m.sections[H::kRela].sh_link = 1; },
       [](H& m) { m.relocate(0, 2, kDistance, 0); }},
      {"patches of another size", [](H& m) { m.sections[H::kRela].sh_entsize = 16; },
       [](H& m) { m.relocate(0, 2, kDistance, 0); }},
  };
  EXPECT_TRUE(check_object(HandMade().object()).ok());
  for (const Case& c : cases) {
    HandMade made;
    if (c.before != nullptr) c.before(made);
    const absl::Status status = check_object(made.object(c.change));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << c.what << ": " << status;
  }
}

// Run under the address sanitizer, too.
TEST_F(ObjectFile, SurvivesDamage) {
  HandMade made;
  made.relocate(0, 2, kDistance, 4);
  made.relocate(8, 2, kAddress, 0);
  const std::string whole = made.object();
  ASSERT_TRUE(place_object(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) EXPECT_FALSE(place_object(whole.substr(0, size)).ok()) << size;
  std::mt19937 random(1);
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string damaged = whole;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int c = 0; c < changes; ++c) {
      // Not in the code: 4 kB of it would take most of the hits.
      const size_t at = random() % (damaged.size() - 4096);
      damaged[at < sizeof(Elf64_Ehdr) ? at : at + 4096] = static_cast<char>(random() % 3 == 0 ? 0xff : random());
    }
    refused += !place_object(damaged).ok();
  }
  EXPECT_GT(refused, 5000);
}

TEST_F(ObjectFile, EqualTextsAreEqualCode) {
  if (!toolchain_exists()) GTEST_SKIP() << "built without LLVM";
  const auto same = [](const LoopKernel& a, const LoopKernel& b) {
    const bool texts = code_text(a) == code_text(b);
    EXPECT_EQ(texts, compile_object(a, {}) == compile_object(b, {})) << code_text(a) << code_text(b);
    return texts;
  };
  LoopKernel named = scale(2);
  named.name = "other";
  EXPECT_TRUE(same(scale(2), named));
  EXPECT_FALSE(same(scale(2), scale(3)));
  EXPECT_FALSE(same(scale(0.0), scale(-0.0)));
  EXPECT_FALSE(same(scale(2), scale(2, 64)));
  // Sizes that are read at run time, and the number of rows, are no part of the code.
  const auto rows = [](int64_t n, int64_t cols) {
    KernelBuilder b("rows", n, cols, 2);
    const int32_t x = b.dense(kF32), scale = b.per_column(kF32), y = b.dense(kF32, true);
    const LoopValue sum = b.reduce(LoopOp::kReduceSum, b.load(x, kF32));
    b.stage(1);
    b.store(y, b.emit(LoopOp::kMul, kF32, b.emit(LoopOp::kSub, kF32, b.load(x, kF32), sum), b.load(scale, kF32)));
    return b.kernel;
  };
  LoopKernel fixed = rows(4, 48), taller = rows(5, 48), wider = rows(4, 80), longer = rows(4000, 48);
  taller.operands[0].axes[0].size = fixed.operands[0].axes[0].size;
  EXPECT_FALSE(same(fixed, wider));
  for (LoopKernel* k : {&fixed, &taller, &wider, &longer}) k->varying.assign(extents(*k).size(), true);
  EXPECT_TRUE(same(fixed, wider));
  EXPECT_TRUE(same(fixed, longer));
  // The facts that code takes for granted of them are.
  LoopKernel bounded = fixed, divisible = fixed;
  bounded.ranges.resize(extents(fixed).size());
  divisible.ranges = bounded.ranges;
  bounded.ranges[0] = {.min = 33, .max = 48};
  divisible.ranges[0] = {.multiple_of = 16};
  EXPECT_FALSE(same(fixed, bounded));
  EXPECT_FALSE(same(fixed, divisible));
  EXPECT_FALSE(same(bounded, divisible));
  // An axis that wraps around is other code: the fifth row is the first again.
  EXPECT_FALSE(same(fixed, taller));
}

}  // namespace
}  // namespace rondo::compile
