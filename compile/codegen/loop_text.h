// Loop kernels as text, for dumps, cache keys and reproducers. The text is canonical: equal kernels give equal text,
// and parsing it gives back exactly the same kernel. It contains no pointers, paths or values of the program.
//
//   kernel softmax rows=4 cols=20
//     @0: f32 {/1 %4 *20} col*1            # operand: axes {divisor size stride}, stride of the columns
//     @1: f32 {/1 %4 *20} col*1 output
//     stage
//       col %0: f32 = load @0
//       red %1: f32 = reduce_max %0
//   ...
// A `?` after an extent says that the code reads it at run time (LoopKernel::varying). The range that the code assumes
// follows (LoopKernel::ranges): `4096?[>=32][<=65536][/32]` is at least 32, at most 65536 and a multiple of 32.
#pragma once

#include <string>
#include <string_view>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/ir/scanner.h"

namespace rondo::compile {

struct LoopOpInfo {
  const char* name;
  int n_args;  // number of arguments that are instructions
};
LoopOpInfo info(LoopOp op);

std::string to_string(const LoopKernel& kernel);

// Returns a cache key: the text of everything that code depends on, and of nothing else. Kernels with equal texts
// compile to equal code. Names, numbers of rows and the values of extents that are read at run time are left out.
std::string code_text(const LoopKernel& kernel);

// Parses a kernel; does not verify it. Throws Error "line 3: what".
LoopKernel parse_loop_kernel(std::string_view text);
// Parses one kernel from the middle of a file.
LoopKernel parse_loop_kernel(Scanner& in);

}  // namespace rondo::compile
