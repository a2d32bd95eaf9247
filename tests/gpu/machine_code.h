// The facts that a cubin has of its kernels: resources, and the memory accesses of its machine code. Read from the file
// itself, so that it needs no tool of NVIDIA's; static.cc compares the counts with nvdisasm's where that is there.
#pragma once

#include <string>
#include <vector>

namespace rondo::test {

struct MachineCode {
  std::string name;  // of the function
  int registers = 0;
  int stack_bytes = 0;                  // of a thread: spilled registers, and arrays that are no registers
  int shared_bytes = 0;                 // static, of a block; without what the driver reserves
  unsigned dynamic_shared = 0;          // that launches ask for: the cubin does not say it
  int loads = 0, stores = 0;            // instructions for global memory
  int wide_loads = 0, wide_stores = 0;  // of these, 16 bytes a thread
  int generic = 0;       // of these, where the compiler does not know that the address is of global memory
  int local = 0;         // for local memory: what is spilled goes through it
  int flight_bytes = 0;  // that a thread's loads ask for at most in a stretch of code without a branch
};

// The functions of a cubin for sm_80 or later. Throws Error if it is none.
std::vector<MachineCode> machine_code(const std::string& cubin, int architecture);

// Threads of a multiprocessor that run at once, by the toolkit's cuda_occupancy.h; 0: this build has not found it.
int resident_threads(const MachineCode& code, int architecture, int threads_per_block);

}  // namespace rondo::test
