// What came of a program's work, as text that is equal in every run.
#pragma once

#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "rondo/modules/module.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/memory/failing_memory.h"

namespace rondo::test {

inline void append(std::string& out, const Tensor& tensor) {
  if (!tensor.defined()) return;
  const Tensor dense = tensor.detach().to(kCPU).contiguous();
  out.append(reinterpret_cast<const char*>(dense.address()),
             static_cast<size_t>(dense.numel()) * size_of(dense.dtype()));
}
inline void append(std::string& out, std::string_view text) { (out += text) += '\0'; }
template <class T>
requires std::is_arithmetic_v<T>
void append(std::string& out, T number) { out += std::to_string(number) + ' '; }
inline void append(std::string& out, const nn::NamedTensor& named) {
  append(out, named.name);
  append(out, named.tensor);
}
template <class K, class V> void append(std::string& out, const std::map<K, V>& map) {
  for (const auto& [key, value] : map) {
    append(out, key);
    append(out, value);
  }
}
template <class T> void append(std::string& out, const std::vector<T>& list) {
  for (const T& one : list) append(out, one);
}
inline void append(std::string& out, const nn::ModuleBase& module) {
  append(out, module.named_parameters());
  append(out, module.named_buffers());
}
// Has all memory.
template <class... T> void note(std::string& out, const T&... values) {
  const FailingMemory::Pause pause;
  (append(out, values), ...);
}
template <class... T> std::string digest(const T&... values) {
  std::string out;
  note(out, values...);
  return out;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}
inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace rondo::test
