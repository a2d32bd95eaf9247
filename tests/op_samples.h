// Samples of every op, for the sweeps: a new op gets its line in op_samples.cc, and a test fails
// until it has one. What the line names is made in samples/.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/op/op.h"

namespace rondo::test {

// How a sample's tensor changes when the sweep turns to a dtype.
enum class Role : uint8_t {
  kReal,     // takes the dtype
  kCompute,  // takes its compute dtype (statistics that an op keeps), and stays dense
  kFixed,    // indices, masks, random state
};

struct OpSample {
  std::string label;
  std::vector<Tensor> inputs;  // floats in f64
  Attrs attrs = {};
  int n_outputs = 1;
  std::vector<Role> roles = {};  // empty: floats are real, the rest is fixed
  int64_t terms = 0;             // products in the sum of one result, where there may be many

  Role role(size_t i) const;
  // The inputs in `dtype`, dense. Undefined ones stay so.
  std::vector<Tensor> inputs_as(DType dtype) const;
};

struct OpSpec {
  const char* name;
  // Small shapes, odd, of size 1 and empty; or, `large`, enough elements for several threads.
  std::vector<OpSample> (*make)(bool large);
  // Distance to the f64 result, in units of the dtype's last place at the largest element.
  double tolerance = 4;
  bool takes_integers = false;
  bool takes_bool = false;
  // Outputs whose gradient counts, as a mask; inputs that have none although they are floats.
  uint32_t differentiable_outputs = 1;
  uint32_t constant_inputs = 0;
  bool decomposes_exactly = false;  // the decomposition promises the kernel's bits

  // Beyond the last bit: as it says.
  bool is_differentiable(size_t output) const {
    return (differentiable_outputs >> std::min<size_t>(output, 31) & 1u) != 0;
  }
  bool is_constant(size_t input) const { return (constant_inputs >> std::min<size_t>(input, 31) & 1u) != 0; }
};

std::span<const OpSpec> op_specs();
const OpSpec* find_spec(std::string_view op);  // null if there is none
// False for ops that this run of a sweep leaves out: with RONDO_TEST_OP=name, all but one.
bool is_swept(const OpDef& op);
// The same values on every call.
std::vector<OpSample> samples_of(const OpSpec& spec, bool large = false);

// Calls `op`, in place on a copy of input 0 if it exists only so.
std::vector<Tensor> apply_op(const OpDef& op, std::span<const Tensor> inputs, const Attrs& attrs, int n_outputs);

// Uniform in [low, high), in f64, on test_device(); the same on every run, another for each seed.
Tensor uniform(const Dims& sizes, double low, double high, uint64_t seed);

}  // namespace rondo::test
