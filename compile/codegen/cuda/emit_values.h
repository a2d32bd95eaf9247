// One instruction of the loop IR as an expression of CUDA C++. It computes what codegen/interpret.cc computes.
#pragma once

#include <string>

#include "rondo/compile/codegen/loop_ir.h"

namespace rondo::compile::cuda {

std::string memory_type(DType type);    // of an element in memory
std::string register_type(DType type);  // of a register: float for the 16-bit floats

// Returns the type of an instruction's result.
DType result_type(const Instr& instr);
// Returns the literal of `value`, rounded to `type`.
std::string literal(double value, DType type);
// Converts an element of type `memory` (the expression `element`) to a register of `type`.
std::string from_memory(const std::string& element, DType memory, DType type);
// Converts a register of `type` (the expression `value`) to an element of type `memory`.
std::string to_memory(const std::string& value, DType type, DType memory);
// Returns the expression of an instruction on the registers v<id>. REQUIRES: the instruction does not access memory and
// is no reduction or effect.
std::string arithmetic(const LoopKernel& kernel, const Instr& instr);

}  // namespace rondo::compile::cuda
