// Loop kernels as text: canonical (equal kernels give equal text, and parsing it gives the kernel back, to the bit), so
// it serves dumps, cache keys and reproducers. It names no pointers, paths or values of the program.
//
//   kernel softmax rows=4 cols=20
//     @0: f32 {/1 %4 *20} col*1            # operand: axes {divisor size stride}, stride of the columns
//     @1: f32 {/1 %4 *20} col*1 output
//     stage
//       col %0: f32 = load @0
//       red %1: f32 = reduce_max %0
//   ...
// A `?` behind an extent marks one that the code reads at run time (LoopKernel::varying); what the code takes for
// granted of it follows (LoopKernel::ranges): `4096?[>=32][<=65536][/32]`, at least 32, at most 65536, a multiple
// of 32.
#pragma once

#include <string>
#include <string_view>

#include "rondo/compile/codegen/loop_ir.h"
#include "rondo/compile/ir/scanner.h"

namespace rondo::compile {

struct LoopOpInfo {
  const char* name;
  int n_args;  // instructions read
};
LoopOpInfo info(LoopOp op);

std::string to_string(const LoopKernel& kernel);

// A cache key: the text of everything that code depends on, and of nothing else. Kernels with equal texts compile to
// equal code. Names, numbers of rows and extents that are read at run time are left out.
std::string code_text(const LoopKernel& kernel);

// The kernel that `text` spells; not verified. Throws Error "line 3: what".
LoopKernel parse_loop_kernel(std::string_view text);
// One kernel, from the middle of a file.
LoopKernel parse_loop_kernel(Scanner& in);

}  // namespace rondo::compile
