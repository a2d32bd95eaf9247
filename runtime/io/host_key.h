// The part of a compiled kernel's key that does not depend on the kernel: the sources of the compiler, its version, the
// architecture, the launch ABI. Each code generator has its own key. It holds nothing that differs from run to run: no
// pointers, paths or object identities.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace rondo::io {

struct HostKey {
  struct Component {
    std::string name, value;  // `value` is a list of words
  };
  std::vector<Component> components;

  // Returns false if a component is not known. Then no code can be kept for later processes.
  bool complete() const;
  std::string text() const;  // one line for each component: "name: value"
  static HostKey parse(std::string_view text);
};

struct HostDifference {
  std::string components;  // names of the components that differ: "cpu, build"; empty if none differs
  std::string text;        // "cpu: there avx512f avx512bw, here fma4"
};
HostDifference compare(const HostKey& there, const HostKey& here);
// Returns OK if code from an artifact with the key text `there` may run on this host; else kFailedPrecondition with the
// difference. A host without the compiler does not know the compiler's version and accepts code of every version.
absl::Status accepts(const HostKey& here, std::string_view there);

}  // namespace rondo::io
