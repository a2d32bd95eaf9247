// The floor of a training step: its products (convolutions, matrix products, attention), forward and backward, each
// alone through the kernel that eager execution calls, and the time that the machine's memory stream needs for the
// bytes of everything else. Both come from recordings of the step itself, so they follow the model.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "rondo/runtime/op/op.h"

namespace rondo::bench {

class StepFloor {
 public:
  // `loss` is the forward pass, from real inputs to the loss. It is called twice, once to record and once to train;
  // gradients and buffers change. On the CPU only.
  explicit StepFloor(const std::function<Tensor()>& loss);

  // Measures every product once more; times ms_of() too.
  double products_ms();
  const std::map<std::string, double>& ms_of() const { return ms_of_; }  // by op
  int64_t products() const;                                              // of one step
  size_t distinct() const { return products_.size(); }                   // by op, shapes, layouts and options
  // Moved by the kernels and other library calls of the whole step compiled as one region. 0: such a region has graph
  // breaks.
  int64_t rest_bytes() const { return rest_bytes_; }

 private:
  struct Product {
    const OpDef* op;
    Attrs attrs;
    std::vector<Tensor> inputs, outputs;
    int64_t count = 0;
  };
  std::map<std::string, Product> products_;
  std::map<std::string, double> ms_of_;
  int64_t rest_bytes_ = 0;
};

// The machine's bandwidth in GB/s: of a copy, whose reads and writes count.
double stream_gb_per_s();

}  // namespace rondo::bench
