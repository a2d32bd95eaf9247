#include "rondo/runtime/onednn/own_names.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/library_error.h"

namespace rondo::cpu {
namespace {

using Word = ElfW(Addr);
using Symbol = ElfW(Sym);
using Relocation = ElfW(Rela);

// Types of relocations that store a symbol's address: an entry of the address table (GOT), one of the call table (PLT),
// or any other word.
#if defined(__x86_64__)
constexpr uint32_t kAddressEntry = R_X86_64_GLOB_DAT, kCallEntry = R_X86_64_JUMP_SLOT, kWord = R_X86_64_64;
#elif defined(__aarch64__)
constexpr uint32_t kAddressEntry = R_AARCH64_GLOB_DAT, kCallEntry = R_AARCH64_JUMP_SLOT, kWord = R_AARCH64_ABS64;
#else
constexpr uint32_t kAddressEntry = ~0u, kCallEntry = ~0u, kWord = ~0u;  // none
#endif

// The tables of a loaded library.
struct Image {
  Word base = 0;
  const Symbol* symbols = nullptr;
  const char* names = nullptr;
  std::span<const Relocation> of_words, of_calls;
  Word fixed_begin = 0, fixed_end = 0;  // whole pages that are read-only since relocation (RELRO)
};

Image image_of(void* library) {
  Image image;
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) throw LibraryError(absl::StrCat("oneDNN: dlinfo: ", dlerror()));
  image.base = map->l_addr;
  Word words = 0, calls = 0;
  size_t word_bytes = 0, call_bytes = 0;
  for (const ElfW(Dyn)* d = map->l_ld; d->d_tag != DT_NULL; ++d) {
    // glibc adds the base to these addresses, unless they are read-only (linker option -z rodynamic); musl does not.
    const Word address = d->d_un.d_ptr < image.base ? image.base + d->d_un.d_ptr : d->d_un.d_ptr;
    switch (d->d_tag) {
      case DT_SYMTAB: image.symbols = reinterpret_cast<const Symbol*>(address); break;
      case DT_STRTAB: image.names = reinterpret_cast<const char*>(address); break;
      case DT_RELA: words = address; break;
      case DT_RELASZ: word_bytes = d->d_un.d_val; break;
      case DT_JMPREL: calls = address; break;
      case DT_PLTRELSZ: call_bytes = d->d_un.d_val; break;
      default: break;
    }
  }
  image.of_words = {reinterpret_cast<const Relocation*>(words), word_bytes / sizeof(Relocation)};
  image.of_calls = {reinterpret_cast<const Relocation*>(calls), call_bytes / sizeof(Relocation)};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* argument) {
        Image& image = *static_cast<Image*>(argument);
        if (info->dlpi_addr != image.base) return 0;
        const auto page = static_cast<Word>(sysconf(_SC_PAGESIZE));
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr)& part = info->dlpi_phdr[i];
          if (part.p_type != PT_GNU_RELRO) continue;
          image.fixed_begin = (image.base + part.p_vaddr) / page * page;
          image.fixed_end = (image.base + part.p_vaddr + part.p_memsz) / page * page;
        }
        return 1;
      },
      &image);
  return image;
}

// In this scope all tables of the image are writable.
class Writable {
 public:
  explicit Writable(const Image& image) : image_(image) {
    if (set(PROT_READ | PROT_WRITE) != 0)
      throw LibraryError(absl::StrCat("oneDNN's tables cannot be written: mprotect: ", std::strerror(errno)));
  }
  ~Writable() { static_cast<void>(set(PROT_READ)); }
  Writable(const Writable&) = delete;
  Writable& operator=(const Writable&) = delete;

 private:
  int set(int rights) const {
    if (image_.fixed_end <= image_.fixed_begin) return 0;
    return mprotect(reinterpret_cast<void*>(image_.fixed_begin), image_.fixed_end - image_.fixed_begin, rights);
  }
  const Image& image_;
};

// A word of the library that holds a symbol's address plus an addend.
struct Use {
  uint32_t type;  // the type of the relocation
  const Symbol& symbol;
  Word* word;
  Word addend;
};
template <class F> void for_each_use(const Image& image, F fn) {
  for (const std::span<const Relocation> relocations : {image.of_words, image.of_calls}) {
    for (const Relocation& relocation : relocations) {
      const auto type = static_cast<uint32_t>(ELF64_R_TYPE(relocation.r_info));
      if (type != kAddressEntry && type != kCallEntry && type != kWord) continue;
      fn(Use{.type = type,
             .symbol = image.symbols[ELF64_R_SYM(relocation.r_info)],
             .word = reinterpret_cast<Word*>(image.base + relocation.r_offset),
             .addend = static_cast<Word>(relocation.r_addend)});
    }
  }
}
// Calls fn only for the uses of one name that the library takes from other libraries.
template <class F> void for_each_use_of(std::string_view name, const Image& image, F fn) {
  for_each_use(image, [&](const Use& use) {
    if (use.symbol.st_shndx == SHN_UNDEF && image.names + use.symbol.st_name == name) fn(use);
  });
}

using Changes = std::vector<std::pair<Word*, Word>>;
void make(const Changes& changes, const Image& image) {
  if (changes.empty()) return;
  const Writable writable(image);
  for (const auto& [word, value] : changes) __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

}  // namespace

void use_own_names(void* library) {
  const Image image = image_of(library);
  Changes changes;
  for_each_use(image, [&](const Use& use) {
    const Symbol& symbol = use.symbol;
    const int kind = ELF64_ST_TYPE(symbol.st_info);
    if (symbol.st_shndx == SHN_UNDEF || symbol.st_shndx == SHN_ABS || kind == STT_GNU_IFUNC || kind == STT_TLS ||
        ELF64_ST_BIND(symbol.st_info) == STB_GNU_UNIQUE)
      return;
    const Word own = image.base + symbol.st_value + use.addend;
    if (*use.word == own) return;
    // A writable variable may have got another value since it was relocated. Such a value is kept.
    const auto at = reinterpret_cast<Word>(use.word);
    const bool fixed = image.fixed_begin <= at && at < image.fixed_end;
    if (use.type == kWord && !fixed &&
        *use.word != reinterpret_cast<Word>(dlsym(RTLD_DEFAULT, image.names + symbol.st_name)) + use.addend)
      return;
    changes.emplace_back(use.word, own);
  });
  make(changes, image);
}

void* function_used(void* library, std::string_view name) {
  Word found = 0;
  for_each_use_of(name, image_of(library), [&](const Use& use) { found = *use.word; });
  return reinterpret_cast<void*>(found);
}

void use_instead(void* library, std::string_view name, void* function) {
  const Image image = image_of(library);
  const auto address = reinterpret_cast<Word>(function);
  Changes changes;
  for_each_use_of(name, image, [&](const Use& use) {
    if (*use.word != address) changes.emplace_back(use.word, address);
  });
  make(changes, image);
}

}  // namespace rondo::cpu
