// Replay: a recording of one module instance, run again without running the module's C++ (Capture::kReplay).
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "rondo/compile/capture/writes.h"
#include "rondo/compile/region/entry.h"
#include "rondo/modules/module.h"
#include "rondo/runtime/random/random.h"

namespace rondo::compile {

// Immutable once made.
class Replay {
 public:
  // Makes a replay from a call that has just been recorded as one piece and run as `binding`. Null, with the reason in
  // `why_not`, if the recording does not determine the call. This is so if it reads other tensors than arguments,
  // parameters and buffers (masks that forward makes), draws from another generator than the thread's default one
  // (`drawn`: of a GeneratorScope), returns anything but one tensor of its own, or lets a value escape.
  static std::shared_ptr<const Replay> make(const nn::ModuleCall& call, const WritingTrace& trace,
                                            std::span<const GeneratorState> drawn,
                                            std::shared_ptr<const Binding> binding, std::string& why_not);

  // True if the arguments, the parameters and the modes are of the kind that was recorded: dtypes, devices, shapes,
  // strides, requires_grad, leaf or result, train/eval, grad mode, autocast, default device. The user promises that
  // forward depends on nothing else.
  bool matches(const nn::ModuleCall& call) const;
  // Runs the recording and sets *call.result. The calling thread's default generator moves on as in forward. REQUIRES:
  // matches(call).
  void run(const nn::ModuleCall& call) const;
  const Binding& binding() const { return *binding_; }

 private:
  struct Kind {
    DType dtype;
    Device device;
    bool requires_grad;
    bool leaf;
    Dims sizes, strides;
    static Kind of(const Tensor& t) {
      return {t.dtype(), t.device(), t.requires_grad(), t.is_leaf(), t.sizes(), t.strides()};
    }
    bool is_of(const Tensor& t) const {
      return dtype == t.dtype() && device == t.device() && requires_grad == t.requires_grad() && leaf == t.is_leaf() &&
             sizes == t.sizes() && strides == t.strides();
    }
  };
  struct Source {
    enum Kind : uint8_t { kArgument, kSlot, kRandomState } kind;
    int32_t index = 0;  // into the arguments, or into slots_
  };

  std::shared_ptr<const Binding> binding_;
  // REQUIRES: no random state.
  const Tensor& tensor_of(const Source& source, const nn::ModuleCall& call) const {
    return source.kind == Source::kArgument ? *call.inputs[static_cast<size_t>(source.index)]
                                            : *slots_[static_cast<size_t>(source.index)];
  }
  // REQUIRES: draws_ is above 0.
  Tensor next_random_state() const;
  // True if no other tensor that is read shares memory with a written one. Otherwise the recording would differ.
  bool writes_alone(const nn::ModuleCall& call) const;
  std::vector<Source> sources_;   // by input of the recording
  std::vector<int32_t> written_;  // indices into sources_ of the inputs that are written
  uint64_t draws_ = 0;            // by how much the default generator moves on
  Device random_device_;          // the device of the random state
  size_t result_ = 0;             // index into the recording's outputs
  std::vector<Kind> arguments_;
  std::vector<const Tensor*> slots_;  // parameters and buffers of the module and all below it
  std::vector<const TensorImpl*>
      in_slots_;  // the tensors in slots_ (null: undefined); another tensor means another recording
  std::vector<Kind> slot_kinds_;
  struct ModuleState {
    const nn::ModuleBase* module;
    bool training;
    size_t children;  // the number of children: a list of layers may grow
  };
  std::vector<ModuleState> modules_;
  uint64_t tree_version_ = 0;  // of the module; changes when children are added or removed
  bool grad_mode_ = true;
  std::optional<DType> autocast_;
  Device default_device_;  // for the factories that forward calls
};

}  // namespace rondo::compile
