#include "rondo/runtime/onednn/product_library.h"

#include <exception>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/onednn/onednn_library.h"

namespace rondo {
namespace {

// Runs before main() and before the constructors of the program's static variables. So exit handlers that oneDNN
// registers while it is opened run after those of the program (onednn_library.cc, Note [At exit]).
[[gnu::constructor(101)]] void open_library() try {
  cpu::library();
} catch (const std::exception&) {  // the first product opens the library again, and throws
}

}  // namespace

bool library_has_avx512() {
#ifdef __x86_64__
  return (cpu::library().dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
#else
  return false;
#endif
}

std::string product_library() {
  const cpu::Library& library = cpu::library();
  const dnnl_version_t& version = *library.dnnl_version();  // may be later than that of the header
  return absl::StrCat("oneDNN ", version.major, ".", version.minor, ".", version.patch, ", instructions ",
                      absl::Hex(static_cast<unsigned>(library.dnnl_get_effective_cpu_isa())));
}

}  // namespace rondo
