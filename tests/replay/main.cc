// rondo_replay: runs what a reproducer holds (compile/exec/reproduce.h), or a graph or loop kernel as text.
//
//   rondo_replay /tmp/rondo-fuse-0123456789abcdef.txt
//
// Prints what the stage makes. A kernel is also run, on random operands, and compared with the interpreter bit by bit.
// An op of a program of your own has to be linked to this tool: own_ops.h. Exit code: 0 if the stage worked, 1 if it
// failed, 2 if the file could not be read.
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include "rondo/compile/exec/reproduce.h"
#include "rondo/runtime/base/error.h"
#include "rondo/tests/compile/kernel_fixture.h"
#include "rondo/tests/replay/own_ops.h"

namespace rondo::compile {
namespace {

// "" if compiled code gives the interpreter's bits.
std::string compare_with_interpreter(const LoopKernel& kernel) {
  const auto code = compile_kernels({&kernel, 1});
  const std::vector<int64_t> sizes = extents(kernel);
  const std::vector<double> scalars(static_cast<size_t>(kernel.n_scalars), 0.3);
  std::mt19937 random(42);
  std::vector<Buffer> expected = random_operands(kernel, random, Samples::kSpecial), actual = expected;
  auto pointers = [](std::vector<Buffer>& buffers) {
    std::vector<void*> result;
    for (Buffer& buffer : buffers) result.push_back(buffer.data());
    return result;
  };
  const std::vector<void*> from = pointers(expected), to = pointers(actual);
  const int64_t all = extent_of_calls(kernel), step = kernel.chunk_rows > 0 ? kernel.chunk_rows : all;
  for (int64_t at = 0; at < all; at += step) {
    const int64_t end = std::min(all, at + step);
    interpret(kernel, from.data(), scalars.data(), at, end);
    code->entry(0)(to.data(), scalars.data(), sizes.data(), at, end);
  }
  for (size_t i = 0; i < expected.size(); ++i)
    if (const std::string difference = first_difference(kernel.operands[i].dtype, expected[i], actual[i]);
        !difference.empty())
      return "operand " + std::to_string(i) + ", " + difference;
  return "";
}

int run(const char* path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) {
    std::fprintf(stderr, "%s: cannot be read\n", path);
    return 2;
  }
  Reproducer reproducer;
  try {
    reproducer = parse_reproducer(text.str(), own_ops());
  } catch (const Error& e) {
    std::fprintf(stderr, "%s: %s\n", path, e.what());
    if (std::strstr(e.what(), ": no op \"") != nullptr)
      std::fprintf(stderr,
                   "This tool has Rondo's ops. An op of your own program: list it in tests/replay/own_ops.cc, link "
                   "its code to rondo_replay, and build that again.\n");
    return 2;
  }
  try {
    std::printf("%s", replay(reproducer).c_str());
    if (reproducer.kernel) {
      const std::string difference = compare_with_interpreter(*reproducer.kernel);
      if (!difference.empty()) throw InternalError("compiled code is not what the interpreter computes: " + difference);
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "stage %s fails: %s\n", reproducer.stage.c_str(), e.what());
    return 1;
  }
  std::fprintf(stderr, "stage %s works\n", reproducer.stage.c_str());
  return 0;
}

}  // namespace
}  // namespace rondo::compile

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: rondo_replay FILE\n");
    return 2;
  }
  return rondo::compile::run(argv[1]);
}
