#include "rondo/runtime/onednn/product_library.h"

#include <exception>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/onednn/onednn_library.h"

namespace rondo {
namespace {

// Before main() and before the program's own static variables: what oneDNN registers for the process's end while it is
// opened then runs after what they register (onednn_library.cc, Note [At exit]).
[[gnu::constructor(101)]] void open_library() try {
  cpu::library();
} catch (const std::exception&) {  // the first product throws it
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
  const dnnl_version_t& version = *library.dnnl_version();  // which may be later than its header
  return absl::StrCat("oneDNN ", version.major, ".", version.minor, ".", version.patch, ", instructions ",
                      absl::Hex(static_cast<unsigned>(library.dnnl_get_effective_cpu_isa())));
}

}  // namespace rondo
