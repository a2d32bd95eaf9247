// Shape::kTiles: a block takes kTile rows of kTile columns. For operands whose rows are adjacent in memory,
// neighbouring threads read and write neighbouring rows; for the others, neighbouring columns. In between, the elements
// are in a tile in shared memory. A tile is [column][row]; in either direction, the threads of a warp access all banks.
#include "rondo/compile/codegen/cuda/kernel_emitter.h"

namespace rondo::compile::cuda {

void KernelEmitter::tiles() {
  const std::vector<bool> through = tiled(k_);
  const auto goes_through = [&](size_t i) { return through[i]; };
  const auto is_direct = [&](size_t i) { return !through[i]; };
  bool loads = false, stores = false;
  for (size_t i = 0; i < through.size(); ++i) {
    if (!through[i]) continue;
    line("__shared__ ", memory_type(k_.operands[i].dtype), " tile", i, "[", kTile, "][",
         kTile + tile_pad(k_.operands[i].dtype), "];");
    (k_.operands[i].is_output ? stores : loads) = true;
  }
  line("const int x = static_cast<int>(threadIdx.x) % ", kTile, ", y = static_cast<int>(threadIdx.x) / ", kTile, ";");
  line("const Index across = (cols + ", kTile - 1, ") / ", kTile, ";");
  line("const Index first_row = block / across * ", kTile, ", first_column = block % across * ", kTile, ";");

  // Neighbouring threads take neighbouring rows.
  const auto along_rows = [&](bool outputs) {
    const Block scope = block("if (first_row + x < n_rows)");
    line("const Index row = first_row + x;");
    emit_row_pointers([&](size_t i) { return through[i] && k_.operands[i].is_output == outputs; });
    line("#pragma unroll");
    const Block each = block("for (int j = y; j < ", kTile, "; j += ", kTileRows, ")");
    line("const Index c = first_column + j;");
    line("if (c >= cols) break;");
    for (size_t i = 0; i < through.size(); ++i) {
      if (!through[i] || k_.operands[i].is_output != outputs) continue;
      const std::string element = absl::StrCat("r", i, " + c * ", col_stride(i)),
                        in_tile = absl::StrCat("tile", i, "[j][x]");
      if (outputs) line("write(", element, ", get(", in_tile, "));");
      else line("put(", in_tile, ", read(", element, "));");
    }
  };
  if (loads) {
    along_rows(/*outputs=*/false);
    line("__syncthreads();");
  }
  {
    line("#pragma unroll");
    const Block each = block("for (int j = y; j < ", kTile, "; j += ", kTileRows, ")");
    line("const Index row = first_row + j, c = first_column + x;");
    line("if (row >= n_rows || c >= cols) break;");
    emit_row_pointers(is_direct);
    const Stage& stage = k_.stages[0];
    emit_row_code(stage, "", "");
    for (int32_t id : stage.column) {
      const Instr& i = instr(id);
      const std::string in_tile = absl::StrCat("tile", i.index, "[x][j]");
      if (i.op == LoopOp::kLoad) {
        if (operand(i).col_stride == 0) continue;
        const std::string element = goes_through(static_cast<size_t>(i.index))
                                        ? absl::StrCat("get(", in_tile, ")")
                                        : absl::StrCat("read(r", i.index, " + c * ",
                                                       col_stride(static_cast<size_t>(i.index)), ")");
        line("const ", register_type(i.type), " v", id, " = ", from_memory(element, operand(i).dtype, i.type), ";");
      } else if (i.op == LoopOp::kStore) {
        const std::string value = to_memory(absl::StrCat("v", i.a), instr(i.a).type, operand(i).dtype);
        if (goes_through(static_cast<size_t>(i.index))) line("put(", in_tile, ", ", value, ");");
        else line("write(r", i.index, " + c * ", col_stride(static_cast<size_t>(i.index)), ", ", value, ");");
      } else if (i.op == LoopOp::kIndex) {
        line("const long long v", id, " = ", place(i, "c"), ";");
      } else if (is_random(i.op)) {
        if (operand(i).col_stride != 0) emit_one_random(id, /*row=*/false);
      } else {
        emit_column_instr(id);
      }
    }
  }
  if (!stores) return;
  line("__syncthreads();");
  along_rows(/*outputs=*/true);
}

}  // namespace rondo::compile::cuda
