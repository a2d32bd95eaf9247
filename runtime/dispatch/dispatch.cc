// The only path of a call: infer -> (recording? append : run the backend's kernel) -> (gradient needed? tape).
#include "absl/cleanup/cleanup.h"
#include "absl/container/fixed_array.h"
#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/anomaly_check.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/autograd/op_node.h"
#include "rondo/runtime/base/cause.h"
#include "rondo/runtime/base/floating_point_scope.h"
#include "rondo/runtime/base/library_error.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/dispatch/op_compiler.h"
#include "rondo/runtime/dispatch/queued_kernel.h"
#include "rondo/runtime/dispatch/run_in_parts.h"
#include "rondo/runtime/op/op.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/ops/lowered.h"
#include "rondo/runtime/ops/table.h"
#include "rondo/runtime/tensor/dynamic_range.h"
#include "rondo/runtime/tensor/memory_order.h"

namespace rondo {

namespace {
// While the decomposition of an op runs: the line of the op's call. Errors of the decomposition's ops name this line.
thread_local const std::source_location* call_in_parts = nullptr;

const BackendEntry& entry_of(const OpDef& op, const BackendTable& backend) {
  if (backend.own_kernels == nullptr) [[likely]]
    return op.host;
  return backend.own_kernels(op);
}

// Runs a kernel: the one place where eager kernels are called. CPU kernels are host code, which a device with streams
// runs later. Kernels of another backend enqueue their launches themselves.
void launch(const BackendTable& backend, Device device, KernelFn kernel, const KernelContext& context) {
  if (backend.enqueue == nullptr || backend.kernels != kCPU.backend) [[likely]]
    return naming_op(context.op.name, context.where, [&] { kernel(context); });
  queue_kernel(device, kernel, context);
}

using Operands = absl::InlinedVector<Tensor, kUsualInputs>;
Operands copies_of(std::span<const Tensor* const> inputs) {
  Operands copies;
  for (const Tensor* input : inputs) copies.push_back(*input);
  return copies;
}

// Runs the decomposition of an op for which the device has no kernel.
void run_parts(const OpDef& op, std::span<const Tensor* const> inputs, Device device, const Attrs& attrs,
               std::span<Tensor> outputs, std::source_location where) {
  if (op.decompose == nullptr)
    throw_op_error(op.name,
                   absl::StrCat("has neither a kernel for ", to_string(device), " nor a decomposition",
                                device == kCPU   ? ""
                                : inputs.empty() ? "; make the tensor on kCPU and move it with .to(Device)"
                                                 : "; move its operands with .to(kCPU)"),
                   where);
  const Operands copies = copies_of(inputs);
  const NoGrad off;  // the op is one tape node
  const memory::Cause cause("", op.name, where);
  if (call_in_parts != nullptr) return op.decompose(copies, attrs, outputs);
  call_in_parts = &where;
  const absl::Cleanup end = [] { call_in_parts = nullptr; };
  op.decompose(copies, attrs, outputs);
}

}  // namespace

const BackendEntry& entry_of(const OpDef& op, Device device) { return entry_of(op, backend_of(device)); }

namespace {
// Runs a call as generated kernels: of the op itself, or of its decomposition if the device has no kernel for the op.
// Returns false if there are no such kernels for this call.
[[gnu::noinline]] bool run_generated(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs,
                                     std::span<Tensor> outputs, std::source_location where,
                                     std::span<const Tensor> homes = {}) {
  OpCompiler* const compiler = op_compiler();
  if (compiler == nullptr || inputs.empty()) return false;
  if (op.lower == nullptr && (op.decompose == nullptr || entry_of(op, inputs[0]->device()).kernel != nullptr))
    return false;
  const memory::Cause cause("", op.name, where);
  return compiler->run(op, inputs, attrs, outputs, where, homes);
}
}  // namespace

void run_kernel(const KernelContext& context) try {
  const FloatingPointScope floating_point;
  const memory::Cause cause("", context.op.name, context.where);
  const Device device = context.out().device();
  const BackendTable& backend = backend_of(device);
  if (backend.generates) [[unlikely]] {
    absl::InlinedVector<Tensor, kUsualOutputs> made(context.outputs.size());
    if (run_generated(context.op, context.inputs, context.attrs, {made.data(), made.size()}, context.where)) {
      const NoGrad off;
      for (size_t i = 0; i < made.size(); ++i) context.outputs[i].copy_(made[i]);
      return;
    }
  }
  if (const KernelFn kernel = entry_of(context.op, backend).kernel; kernel != nullptr)
    return launch(backend, device, kernel, context);
  run_in_parts(context);
} catch (const std::bad_alloc&) {
  throw_out_of_memory(context.op.name);
}

void run_in_parts(const KernelContext& context) {
  const RecorderScope eager(nullptr);
  absl::InlinedVector<Tensor, kUsualOutputs> parts(context.outputs.size());
  run_parts(context.op, context.inputs, context.out().device(), context.attrs, {parts.data(), parts.size()},
            context.where);
  const NoGrad off;
  for (size_t i = 0; i < context.outputs.size(); ++i) context.outputs[i].copy_(parts[i]);
}

class Dispatcher {
 public:
  Dispatcher(const OpDef& op, std::span<const TensorArg> args, Attrs& attrs)
      : op_(op),
        args_(args),
        attrs_(attrs),
        n_(static_cast<int>(args.size())),
        where_(call_in_parts != nullptr ? *call_in_parts
               : args.empty()           ? std::source_location{}
                                        : args[0].where),
        inputs_(args.size()) {
    for (int i = 0; i < n_; ++i) inputs_[i] = &args[i].tensor;
    if (n_ > 0 && !inputs_[0]->defined()) throw_op_error(op.name, "operand 0 is an undefined tensor", where_);
    for (int i = 1; i < n_; ++i)
      if (inputs_[i]->defined() && !(inputs_[i]->impl()->device == inputs_[0]->impl()->device)) [[unlikely]]
        throw_two_devices(i);
    if (op.amp != AmpPolicy::kNone)
      if (const std::optional<DType> lower = amp::autocast_dtype()) apply_autocast(*lower);
  }

  // homes[i]: memory in which the caller wants output i. It is used if it fits and a kernel runs.
  void run(std::span<Tensor> outputs, std::span<const Tensor> homes = {}) {
    Recorder* const recorder = active_recorder();
    if (recorder != nullptr && recorder->append_known(op_, inputs(), attrs_, outputs, where_)) return;
    InferContext infer(op_, inputs(), attrs_, where_, args_);
    op_.infer(infer);
    if (infer.outputs().size() < outputs.size()) [[unlikely]]
      throw_internal(std::string(op_.name) + ": infer left out a result", where_);
    for (const TensorMeta& meta : infer.outputs()) check_size(meta);
    const bool needs = needs_grad();
    if (needs && op_.grad == nullptr && op_.decompose != nullptr) {
      // An op without a gradient rule is differentiated through its decomposition.
      const FloatingPointScope floating_point;
      op_.decompose(copies_of(inputs()), attrs_, outputs);
      return;
    }
    // An op with neither a gradient rule nor a decomposition gets a node whose backward is an error.
    const bool differentiable = needs && has_floating(infer.outputs());
    if (recorder != nullptr) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        outputs[i] = make_handle(infer.outputs()[i]);
        outputs[i].impl()->requires_grad = differentiable && is_floating(infer.outputs()[i].dtype);
        if (op_.kind == OpKind::kView && (!grad_enabled() || autograd::is_no_grad_view(*inputs_[0])))
          autograd::mark_no_grad_view(outputs[i]);
      }
      recorder->record(op_, inputs(), attrs_, outputs, /*in_place=*/false, where_);
      return;
    }
    const FloatingPointScope floating_point;
    settle_floats();
    if (op_.kind == OpKind::kView) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        outputs[i] = make_handle(infer.outputs()[i]);
        outputs[i].impl()->storage = inputs_[0]->storage();
        autograd::mark_view(outputs[i], *inputs_[0], !grad_enabled());
        if (inputs_[0]->impl()->marks != nullptr) [[unlikely]]
          follow_marks(*inputs_[0], outputs[i]);
      }
    } else if (const BackendTable& backend = backend_of(device());
               backend.generates && run_generated(op_, inputs(), attrs_, outputs, where_, homes)) {
      // Generated kernels have run, so none of the backend's own kernels runs.
    } else if (const KernelFn kernel = entry_of(op_, backend).kernel) {
      const memory::Cause cause("", op_.name, where_);
      for (int i = 0; i < n_; ++i)
        if (inputs_[i]->defined() && !inputs_[i]->impl()->storage) [[unlikely]]
          static_cast<void>(inputs_[i]->storage(where_));
      for (size_t i = 0; i < outputs.size(); ++i) {
        const TensorMeta& meta = infer.outputs()[i];
        outputs[i] = make_handle(meta);
        if (i < homes.size() && fits(homes[i], meta)) [[unlikely]] {
          outputs[i].impl()->storage = homes[i].storage();
          outputs[i].impl()->offset = homes[i].storage_offset();
          continue;
        }
        outputs[i].impl()->storage = Storage::allocate(static_cast<size_t>(meta.sizes.numel()) * size_of(meta.dtype),
                                                       meta.device);
      }
      launch(backend, device(), kernel, {op_, inputs(), outputs, attrs_, where_});
    } else {
      run_parts(op_, inputs(), device(), attrs_, outputs, where_);
      const NoGrad off;  // the op is one tape node
      for (size_t i = 0; i < outputs.size(); ++i)
        if (outputs[i].defined()) outputs[i] = with_strides(outputs[i], infer.outputs()[i].strides);
      for (Tensor& output : outputs)
        if (output.defined() && autograd::is_no_grad_view(output)) output = output.detach();
    }
    if (differentiable) autograd::record_call(op_, inputs(), attrs_, outputs, where_);
    else if (op_.grad == nullptr && op_.decompose == nullptr && needs_grad())
      autograd::record_nondifferentiable(op_, inputs(), outputs, where_);
  }

  void run_in_place() {
    InferContext infer(op_, inputs(), attrs_, where_, args_);
    infer.set_in_place();
    op_.infer(infer);
    Tensor target = *inputs_[0];
    const TensorMeta& meta = infer.outputs()[0];
    if (!(meta.sizes == target.sizes()))
      throw_op_error(
          op_.name,
          absl::StrCat("the result ", to_string(meta.sizes), " does not fit in place into ", to_string(target.sizes())),
          where_);
    if (meta.dtype != target.dtype())
      throw_op_error(op_.name,
                     absl::StrCat("the result is ", std::string(name_of(meta.dtype)),
                                  " and cannot be written in place into ", std::string(name_of(target.dtype()))),
                     where_);
    const bool differentiable = needs_grad() && is_floating(target.dtype());
    if (Recorder* const recorder = active_recorder(); recorder != nullptr) {
      Tensor next = make_handle(meta);
      next.impl()->requires_grad = differentiable;
      recorder->record(op_, inputs(), attrs_, {&next, 1}, /*in_place=*/true, where_);
      return;
    }
    const FloatingPointScope floating_point;
    settle_floats();
    autograd::check_in_place(op_, target, differentiable, where_);
    before_write(target.storage(), where_);
    // Copies operands that share the target's memory. In another layout, an operand would be read after it is
    // overwritten. In the same layout, it would be overwritten before the gradient reads it.
    Operands copies(static_cast<size_t>(n_));
    for (int i = 1; i < n_; ++i) {
      const Tensor& input = *inputs_[i];
      if (!input.defined() || !(input.storage() == target.storage())) continue;
      const bool saved = differentiable && op_.saved.input(static_cast<size_t>(i));
      if (!saved && input.storage_offset() == target.storage_offset() && input.sizes() == target.sizes() &&
          input.strides() == target.strides())
        continue;
      copies[i] = input.clone();
      inputs_[i] = &copies[i];
    }
    // If the gradient reads the old value, the old value is copied before the write. `before` keeps the old history.
    Tensor before;
    if (differentiable) {
      before = target.detach();
      if ((op_.saved.inputs & 1u) != 0) before = no_grad([&] { return before.clone(); });
      if (target.impl()->autograd != nullptr || target.requires_grad()) {
        const Edge edge = autograd::gradient_edge(target);
        if (edge.node) autograd::set_history(before, edge.node, edge.output);
      }
    }
    run_kernel({op_, inputs(), {&target, 1}, attrs_, where_});
    target.storage().bump_version();
    if (differentiable) {
      inputs_[0] = &before;
      autograd::record_in_place(op_, inputs(), attrs_, target, where_);
    }
  }

 private:
  // Kernels take plain numbers, not symbolic ones.
  void settle_floats() {
    for (size_t i = 0; i < attrs_.floats.size(); ++i) attrs_.floats[i] = static_cast<double>(attrs_.floats[i]);
  }
  std::span<const Tensor* const> inputs() const { return {inputs_.data(), inputs_.size()}; }
  Device device() const { return n_ > 0 ? inputs_[0]->impl()->device : default_device(); }
  [[gnu::cold, gnu::noinline]] void throw_two_devices(int i) const {
    throw_op_error(op_.name,
                   absl::StrCat("operand 0 is on ", to_string(inputs_[0]->device()), " and operand ", i, " on ",
                                to_string(inputs_[i]->device()), "; move one with .to(Device)"),
                   where_);
  }

  bool needs_grad() const {
    if (!grad_enabled()) {
      if (autograd::LeafNotes* const notes = autograd::LeafNotes::now()) [[unlikely]]
        for (const TensorArg& arg : args_) notes->note(arg.tensor);  // the operands as given, before autocast
      return false;
    }
    bool needs = false;
    for (int i = 0; i < n_; ++i) {
      if (!inputs_[i]->defined() || !inputs_[i]->requires_grad()) continue;
      needs = true;
      if (!inputs_[i]->impl()->requires_grad) [[unlikely]]
        autograd::check_operand(op_, *inputs_[i], where_);
    }
    return needs;
  }

  static bool has_floating(std::span<const TensorMeta> outputs) {
    for (const TensorMeta& meta : outputs)
      if (is_floating(meta.dtype)) return true;
    return false;
  }

  // Throws Error if the number of bytes of a result overflows. A view needs no memory, so only its number of elements
  // must not overflow.
  void check_size(const TensorMeta& meta) const {
    int64_t numel = 1;
    bool overflows = false;
    for (const int64_t d : meta.sizes) overflows |= __builtin_mul_overflow(numel, d, &numel);
    if (overflows || numel > kMostElements) [[unlikely]]
      refuse_size(meta);
  }
  [[gnu::cold, gnu::noinline]] void refuse_size(const TensorMeta& meta) const {
    const int64_t numel = checked_numel(meta.sizes);  // 0 if any size is 0
    if (numel < 0 || (numel > kMostElements && op_.kind != OpKind::kView))
      throw_op_error(op_.name, "the result " + to_string(meta.sizes) + " is more than memory can hold", where_);
  }
  static constexpr int64_t kMostElements = int64_t{1} << 56;  // an element has at most 8 bytes
  static bool fits(const Tensor& home, const TensorMeta& meta) {
    return home.defined() && home.dtype() == meta.dtype && home.device() == meta.device && home.sizes() == meta.sizes &&
           home.is_contiguous() && is_contiguous(meta.sizes, meta.strides);
  }
  static Tensor make_handle(const TensorMeta& meta) {
    auto* impl = new TensorImpl;
    impl->dtype = meta.dtype;
    impl->device = meta.device;
    impl->sizes = meta.sizes;
    impl->strides = meta.strides;
    impl->offset = meta.offset;
    return Tensor(impl);
  }

  void apply_autocast(DType lower) {
    const DType target = op_.amp == AmpPolicy::kLower ? lower : kF32;
    const amp::Autocast off(std::nullopt);  // the casts are ops, too, and must not be cast again
    cast_.resize(static_cast<size_t>(n_));
    for (int i = 0; i < n_; ++i) {
      const Tensor& input = *inputs_[i];
      // f64 is the user's explicit choice, so it is never lowered.
      if (!input.defined() || !is_floating(input.dtype()) || input.dtype() == kF64 || input.dtype() == target) continue;
      cast_[i] = active_recorder() == nullptr && is_low_precision(target) && amp::keeps_copy(input)
                     ? lowered(input, target)
                     : input.to(target, where_);
      inputs_[i] = &cast_[i];
    }
  }

  // Returns the parameter's copy in `target`, with the history that a cast here would give it.
  Tensor lowered(const Tensor& parameter, DType target) const {
    Tensor copy = amp::lowered(parameter, target);
    const Tensor* inputs[] = {&parameter};
    if (grad_enabled())
      autograd::record_call(ops::kCast, inputs, {.ints = {static_cast<int64_t>(target)}}, {&copy, 1}, where_);
    return copy;
  }

  const OpDef& op_;
  std::span<const TensorArg> args_;
  Attrs& attrs_;
  int n_;
  std::source_location where_;
  absl::FixedArray<const Tensor*, kUsualInputs> inputs_;
  Operands cast_;  // the operands that autocast converted
};

Tensor call(const OpDef& op, std::span<const TensorArg> inputs, Attrs attrs) try {
  Tensor output;
  if (anomaly::detecting) [[unlikely]]
    return call(op, inputs, std::move(attrs), {&output, 1}), output;
  Dispatcher(op, inputs, attrs).run({&output, 1});
  return output;
} catch (const std::bad_alloc&) {
  throw_out_of_memory(op.name);
}

void call(const OpDef& op, std::span<const TensorArg> inputs, Attrs attrs, std::span<Tensor> outputs) try {
  if (anomaly::detecting) [[unlikely]]
    return anomaly::checked_call(op, inputs, attrs, outputs, [&] { Dispatcher(op, inputs, attrs).run(outputs); });
  Dispatcher(op, inputs, attrs).run(outputs);
} catch (const std::bad_alloc&) {
  throw_out_of_memory(op.name);
}

void call(const OpDef& op, std::span<const TensorArg> inputs, Attrs attrs, std::span<Tensor> outputs,
          std::span<const Tensor> homes) try {
  if (anomaly::detecting) [[unlikely]]
    return call(op, inputs, std::move(attrs), outputs);
  Dispatcher(op, inputs, attrs).run(outputs, homes);
  for (size_t i = 0; i < homes.size(); ++i)
    if (homes[i].defined() && outputs[i].impl()->storage && outputs[i].storage() == homes[i].storage())
      homes[i].storage().bump_version();
} catch (const std::bad_alloc&) {
  throw_out_of_memory(op.name);
}

void call_in_place(const OpDef& op, std::span<const TensorArg> inputs, Attrs attrs) try {
  if (anomaly::detecting) [[unlikely]]
    return anomaly::checked_call(op, inputs, attrs, {&inputs[0].tensor, 1},
                                 [&] { Dispatcher(op, inputs, attrs).run_in_place(); });
  Dispatcher(op, inputs, attrs).run_in_place();
} catch (const std::bad_alloc&) {
  throw_out_of_memory(op.name);
}

}  // namespace rondo
