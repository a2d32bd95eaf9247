// Compiles a model for a GPU that is not here: START HERE to ship compiled code. Needs NVRTC, but no device.
//
//   nn::GPT2 model(config);
//   compile::compile_for(model, {tokens}, "cuda sm_90").save("gpt2.rondo");        // on any machine
//   compile::load_artifacts("gpt2.rondo");                                         // on the machine with the GPU
//   model.to(gpu); compile::compile_regions(model); ...                            // compiles nothing
//
// Targets: "cuda sm_80", "cuda sm_90", "cuda sm_100" (its code includes PTX, for newer devices). Both machines need
// the same build of Rondo, and the same version of NVRTC if the one with the GPU has it. A region's code depends on its
// shapes and on CompileOptions; an eager op's code depends on dtypes and layouts. So the call must do what the machine
// with the GPU will do: with the same sizes, autocast, mode (train or eval), loss and optimizer. For that, pass your
// own step. If cuDNN is found, the file also contains its plans for the step's convolutions:
//
//   compile::compile_for(model, [&](Device gpu) {
//     optim::AdamW adamw(model.parameters(), {.lr = 3e-4});
//     optim::compile(adamw);
//     model.loss(tokens.to(gpu), targets.to(gpu)).backward();
//     adamw.step();
//   }, "cuda sm_90").save("gpt2.rondo");
//
// The step runs once, on a device that launches nothing: values that it reads back (a loss) are meaningless, and a
// branch on such a value takes one side only. Code for the other side is compiled when it is first needed. Afterwards
// the model is as it was: values, gradients, regions, random numbers.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "rondo/compile/compile.h"

#pragma GCC visibility push(default)
namespace rondo::compile {

// Code for one target.
class Artifacts {
 public:
  Artifacts(std::string target, int kernels, std::string packed)
      : target_(std::move(target)), kernels_(kernels), packed_(std::move(packed)) {}
  const std::string& target() const { return target_; }
  int kernels() const { return kernels_; }
  int64_t bytes() const { return static_cast<int64_t>(packed_.size()); }
  // Writes the file for load_artifacts(). Throws FileError.
  void save(const std::string& path) const;
  // The bytes of that file, for load_artifact_bytes().
  const std::string& packed() const { return packed_; }

 private:
  std::string target_;
  int kernels_;
  std::string packed_;  // the file's bytes
};

// Moves the model to the device, compiles its blocks with `options` (or the whole model, if it has none), and calls
// `step` once with the device. Throws Error if there is no such target, if the target's code can only be made on the
// machine that runs it (the CPU), or if this process has used a CUDA device; NoCodeGenerator (an Error) without NVRTC;
// what the step throws. No other thread may use CUDA or the model meanwhile.
Artifacts compile_for(nn::ModuleBase& model, const std::function<void(Device device)>& step, std::string_view target,
                      CompileOptions options = {});

namespace detail {
// Runs backward if the result requires a gradient. For a result of several elements, the gradient is all ones.
void backward_from(const Tensor& result);

template <class M, size_t... I> Tensor call(M& model, const std::vector<Tensor>& inputs, std::index_sequence<I...>) {
  return model(inputs[I]...);
}
template <class M, size_t kInputs> constexpr bool takes() {
  return []<size_t... I>(std::index_sequence<I...>) {
    return requires(M & model, const Tensor& x) { Tensor(model.forward((static_cast<void>(I), x)...)); };
  }
  (std::make_index_sequence<kInputs>());
}
template <class M, size_t kInputs = 1> Tensor call_with(M& model, const std::vector<Tensor>& inputs) {
  if constexpr (takes<M, kInputs>())
    if (inputs.size() == kInputs) return call(model, inputs, std::make_index_sequence<kInputs>());
  if constexpr (kInputs < 8) return call_with<M, kInputs + 1>(model, inputs);
  throw Error("compile_for: forward does not take " + std::to_string(inputs.size()) +
              " tensors and return one; give compile_for a step instead of inputs");
}
}  // namespace detail

// Compiles the code for one forward of the model on these inputs, and for its backward.
template <class M>
Artifacts compile_for(M& model, const std::vector<Tensor>& inputs, std::string_view target,
                      CompileOptions options = {}) {
  return compile_for(
      model,
      [&](Device device) {
        std::vector<Tensor> there;
        for (const Tensor& input : inputs)
          there.push_back(input.to(device).detach().requires_grad_(input.requires_grad()));
        detail::backward_from(detail::call_with(model, there));
      },
      target, std::move(options));
}

}  // namespace rondo::compile
#pragma GCC visibility pop
