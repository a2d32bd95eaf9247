// The key of compiled code, besides its kernel: the sources of the compiler, its version, the architecture, the
// launch ABI. Each maker of code has its own. Nothing that differs from run to run: no pointers, paths or
// object identity.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace rondo::io {

struct HostKey {
  struct Component {
    std::string name, value;  // the value as words
  };
  std::vector<Component> components;

  // False: a component is not known, so that nothing can be kept for later processes.
  bool complete() const;
  std::string text() const;  // a line each: "name: value"
  static HostKey parse(std::string_view text);
};

struct HostDifference {
  std::string components;  // the names of those that differ: "cpu, build"; empty if none does
  std::string text;        // "cpu: there avx512f avx512bw, here fma4"
};
HostDifference compare(const HostKey& there, const HostKey& here);
// Whether code from an artifact with the key `there` (its text) may be used here. A host without the compiler, whose
// version is then not known, runs what any version of it has made. kFailedPrecondition, with the difference.
absl::Status accepts(const HostKey& here, std::string_view there);

}  // namespace rondo::io
