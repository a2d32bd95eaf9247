// The floor of a training step: its products (convolutions, matrix products, attention), forward and backward, each
// alone through the kernel that eager execution calls, and the time that the machine's memory stream needs for the bytes
// of everything else. Both come from recordings of the step itself, so they follow the model.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "rondo/runtime/tensor.h"

namespace rondo::bench {

struct StepFloor {
  double products_ms = 0;
  std::map<std::string, double> ms_of;  // by op
  int distinct_products = 0;            // by op, shapes, layouts and options
  int products = 0;
  // Moved by the kernels and other library calls of the whole step compiled as one region. 0: such a region has graph
  // breaks.
  int64_t rest_bytes = 0;
  double stream_gb_per_s = 0;  // of a copy, reads and writes counted
  double rest_ms() const { return static_cast<double>(rest_bytes) / stream_gb_per_s / 1e6; }
};

// `loss` is the forward pass, from real inputs to the loss. It is called twice, once to record and once to train;
// gradients and buffers change. On the CPU only.
StepFloor measure_floor(const std::function<Tensor()>& loss);

}  // namespace rondo::bench
