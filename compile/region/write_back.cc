#include "rondo/compile/region/write_back.h"

#include <algorithm>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::compile {
namespace {

// Copies `value` into `target` as one write, which the version counts.
void write(const Tensor& target, const Tensor& value) {
  const NoGrad off;
  const RecorderScope eager(nullptr);
  target.detach().copy_(value.detach());
}

}  // namespace

void write_back(const Graph& recorded, std::span<const Tensor> inputs, std::span<Tensor> results) {
  if (recorded.versions.empty()) return;
  for (const WriteBack& back : write_backs(recorded)) {
    Tensor& result = results[static_cast<size_t>(back.output)];
    const Tensor& input = back.input < 0 ? result : inputs[static_cast<size_t>(back.input)];
    int32_t writes = back.writes;
    if (!(result.impl()->storage == input.impl()->storage)) {
      write(input, result);
      --writes;
    }
    for (; writes > 0; --writes) input.impl()->storage.bump_version();
    result = input;
  }
}

void write_versions(const Graph& recorded, const GraphNode& made, std::span<const Tensor> inputs,
                    std::span<const Tensor> values) {
  for (const Version& version : recorded.versions)
    if (version.input >= 0 && std::count(made.outputs.begin(), made.outputs.end(), version.value) > 0)
      write(inputs[static_cast<size_t>(version.input)], values[static_cast<size_t>(version.value)]);
}

bool must_not_repeat(const Graph& recorded, std::span<const Tensor> inputs, std::span<const Tensor> finished) {
  if (recorded.versions.empty() || finished.empty()) return false;
  const std::vector<WriteBack> backs = write_backs(recorded);
  return std::any_of(backs.begin(), backs.end(), [&](const WriteBack& back) {
    const Tensor& result = finished[static_cast<size_t>(back.output)];
    return back.input >= 0 && result.defined() &&
           result.impl()->storage == inputs[static_cast<size_t>(back.input)].impl()->storage;
  });
}

}  // namespace rondo::compile
