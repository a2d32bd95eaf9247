// What compiled code depends on besides its kernel: the sources of the compiler, LLVM, the processor, the launch ABI.
// Nothing that differs from run to run: no pointers, paths or object identity. Costs microseconds and asks nothing of
// LLVM.
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

  std::string text() const;  // a line each: "name: value"
  static HostKey parse(std::string_view text);
};

// Of this build on this machine; constant.
const HostKey& host_key();

struct Difference {
  std::string components;  // the names of those that differ: "cpu, build"; empty if none does
  std::string text;        // "cpu: there avx512f avx512bw, here fma4"
};
Difference compare(const HostKey& there, const HostKey& here);

// The processor and all its features that code could use, as words. "" where this is not known (not x86-64): then
// nothing can be kept on disk.
std::string describe_cpu();

}  // namespace rondo::compile
