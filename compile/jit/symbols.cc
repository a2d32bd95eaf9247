#include "rondo/compile/jit/symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "rondo/compile/jit/elf_machine.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/io/open_to_write.h"
#include "rondo/runtime/io/trusted_file.h"

// ---- gdb looks for these names. They are weak, because LLVM defines the same ones, and both must share one list.
extern "C" {
struct jit_code_entry {
  jit_code_entry* next_entry;
  jit_code_entry* prev_entry;
  const char* symfile_addr;
  uint64_t symfile_size;
};
struct jit_descriptor {
  uint32_t version;
  uint32_t action_flag;  // 0 nothing, 1 register, 2 unregister
  jit_code_entry* relevant_entry;
  jit_code_entry* first_entry;
};
[[gnu::weak, gnu::visibility("default")]] jit_descriptor __jit_debug_descriptor = {1, 0, nullptr, nullptr};
// gdb has a breakpoint here.
[[gnu::weak, gnu::visibility("default"), gnu::noinline]] void __jit_debug_register_code() {
  asm volatile("" ::: "memory");
}
}

namespace rondo::compile {
namespace {

// An ELF image that says only: at this address there is a function with this name.
struct Image {
  enum Section : uint16_t { kNull, kText, kSymbols, kNames, kSections };
  Elf64_Ehdr header = {};
  Elf64_Shdr sections[kSections] = {};
  Elf64_Sym symbols[2] = {};
  char names[128] = {};  // names: "", then those of the sections and of the function

  Image(const void* code, size_t bytes, std::string_view name) {
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_ident[EI_VERSION] = EV_CURRENT;
    header.e_type = ET_EXEC;
    header.e_machine = kElfMachine;
    header.e_version = EV_CURRENT;
    header.e_ehsize = sizeof(Elf64_Ehdr);
    header.e_shoff = offsetof(Image, sections);
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = kSections;
    header.e_shstrndx = kNames;
    size_t used = 1;
    const auto add_name = [&](std::string_view text) {
      const size_t at = used, length = std::min(text.size(), sizeof(names) - used - 1);
      std::memcpy(names + at, text.data(), length);
      used += length + 1;
      return static_cast<uint32_t>(at);
    };
    const auto address = reinterpret_cast<uint64_t>(code);
    Elf64_Shdr& text = sections[kText];
    text.sh_name = add_name(".text");
    text.sh_type = SHT_NOBITS;  // its bytes are in memory
    text.sh_flags = SHF_ALLOC | SHF_EXECINSTR;
    text.sh_addr = address;
    text.sh_size = bytes;
    text.sh_addralign = 16;
    Elf64_Shdr& table = sections[kSymbols];
    table.sh_name = add_name(".symtab");
    table.sh_type = SHT_SYMTAB;
    table.sh_offset = offsetof(Image, symbols);
    table.sh_size = sizeof(symbols);
    table.sh_link = kNames;
    table.sh_info = 1;  // the index of the first symbol that is not local
    table.sh_entsize = sizeof(Elf64_Sym);
    Elf64_Shdr& strings = sections[kNames];
    strings.sh_name = add_name(".strtab");
    strings.sh_type = SHT_STRTAB;
    strings.sh_offset = offsetof(Image, names);
    strings.sh_size = sizeof(names);
    symbols[1].st_name = add_name(name);
    symbols[1].st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbols[1].st_shndx = kText;
    symbols[1].st_value = address;
    symbols[1].st_size = bytes;
  }
};

struct Shown {
  Shown(const void* code, size_t bytes, std::string_view name)
      : image(code, bytes, name),
        line(formatted("%x %x %s\n", reinterpret_cast<uint64_t>(code), bytes, std::string(name))) {}
  Image image;
  jit_code_entry entry = {};
  std::string line;  // the code's line in perf's file
};

class Symbols {
 public:
  void show(const void* code, size_t bytes, std::string_view name) {
    std::lock_guard lock(mutex_);
    if (by_address_.contains(code)) return;
    Shown& shown = *by_address_.emplace(code, std::make_unique<Shown>(code, bytes, name)).first->second;
    jit_code_entry& entry = shown.entry;
    entry = {__jit_debug_descriptor.first_entry, nullptr, reinterpret_cast<const char*>(&shown.image), sizeof(Image)};
    if (entry.next_entry != nullptr) entry.next_entry->prev_entry = &entry;
    __jit_debug_descriptor.first_entry = &entry;
    tell_gdb(entry, 1);
    if (perf_) append(shown.line);
  }
  void hide(const void* code) {
    std::lock_guard lock(mutex_);
    const auto found = by_address_.find(code);
    if (found == by_address_.end()) return;
    jit_code_entry& entry = found->second->entry;
    (entry.prev_entry != nullptr ? entry.prev_entry->next_entry
                                 : __jit_debug_descriptor.first_entry) = entry.next_entry;
    if (entry.next_entry != nullptr) entry.next_entry->prev_entry = entry.prev_entry;
    tell_gdb(entry, 2);
    by_address_.erase(found);
  }
  void set_perf(bool on) {
    std::lock_guard lock(mutex_);
    perf_ = on;
    process_ = 0;
  }

 private:
  static bool perf_wanted() {
    const char* value = std::getenv("RONDO_PERF");
    return value != nullptr && *value != '\0' && std::string_view(value) != "0";
  }
  static void tell_gdb(jit_code_entry& entry, uint32_t action) {
    __jit_debug_descriptor.relevant_entry = &entry;
    __jit_debug_descriptor.action_flag = action;
    __jit_debug_register_code();
    __jit_debug_descriptor.action_flag = 0;
    __jit_debug_descriptor.relevant_entry = nullptr;
  }
  // Appends a line to perf's file. A forked process has the kernels of its parent, so its file begins with all of them.
  // Never throws: a line that cannot be written is left out.
  void append(const std::string& line) {
    try {
      std::string text = line;
      if (process_ != ::getpid()) {
        text.clear();
        for (const auto& [code, shown] : by_address_) text += shown->line;
        process_ = ::getpid();
      }
      const int file = io::open_to_write(perf_map_path(), O_WRONLY | O_APPEND, io::Links::kRefuse, 0600);
      // Does not write to another user's file: anybody may make a file with this name in /tmp.
      if (io::distrust(file).empty()) [[maybe_unused]]
        const ssize_t written = ::write(file, text.data(), text.size());
      ::close(file);
    } catch (const FileError&) {
    } catch (const std::bad_alloc&) {
    }
  }

  std::mutex mutex_;
  std::map<const void*, std::unique_ptr<Shown>> by_address_;
  bool perf_ = perf_wanted();
  pid_t process_ = 0;  // the process whose file has all lines so far
};

// Never destroyed: code may outlive every static object. The instance needs no allocation, because destructors of code
// call hide().
Symbols& symbols() {
  alignas(Symbols) static std::byte place[sizeof(Symbols)];
  static auto* const all = new (place) Symbols;
  return *all;
}

}  // namespace

void show_symbol(const void* code, size_t bytes, std::string_view name) { symbols().show(code, bytes, name); }
void hide_symbol(const void* code) { symbols().hide(code); }
void set_perf_map(bool on) { symbols().set_perf(on); }
std::string perf_map_path() { return formatted("/tmp/perf-%d.map", ::getpid()); }

}  // namespace rondo::compile
