// What compiled code depends on besides its kernel: the sources of the compiler, its version, the architecture, the
// launch ABI. Each target makes its own (exec/target.h). Nothing that differs from run to run: no pointers, paths or
// object identity.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace rondo::compile {

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

}  // namespace rondo::compile
