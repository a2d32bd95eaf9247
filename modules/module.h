// Module: START HERE. A tree of named parameters, buffers and children, with a call operator.
//
// A child's or parameter's name is written once, where the member is declared. A GPT block:
//
//   struct Block : nn::Module<Block> {
//     Block(int64_t C, int64_t heads) : C(C), heads(heads) {}
//     int64_t C, heads;
//     nn::LayerNorm ln_1 = child("ln_1", C);
//     nn::MultiheadAttention attn = child("attn", C, heads);
//     nn::LayerNorm ln_2 = child("ln_2", C);
//     nn::MLP mlp = child("mlp", C, 4 * C);
//     Tensor forward(const Tensor& x_) {      // (B, T, C) -> (B, T, C)
//       Tensor x = x_ + attn(ln_1(x_));
//       return x + mlp(ln_2(x));
//     }
//   };
//   Block block(768, 12);                            // a root: the same constructor
//   nn::ModuleList<Block> h = child("h", 12, C, 12);  // in a model: h.0 .. h.11
//
// Calling a module (`attn(x)`, not `attn.forward(x)`) runs forward() inside a frame, so that errors name its path and
// the caller's line, and through `call_hook`, where a compiler plugs in. The first argument of forward is a tensor.
//
// Invariants: a module never moves, because its parent and its members refer to it. A module that is a member of
// another one is made by child(): otherwise its constructor throws, since its parameters would never be trained.
// Children and parameters are listed in the order of declaration. A parameter keeps its identity for life: to() and
// load_state_dict() change what the handle points to, never the handle, so optimizers, tied parameters and user copies
// see the change.
//
// Ownership: modules own their parameters. A parent refers to its children, which are its members.
//
// Thread safety: a tree is built, changed and called by one thread at a time.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/modules/state_dict.h"
#include "rondo/runtime/error.h"
#include "rondo/runtime/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

class ModuleBase;
template <class... Args> class Child;

struct NamedModule {
  std::string name;
  ModuleBase& module;
};

// One call of a module that has a hook.
struct ModuleCall {
  ModuleBase& module;
  // If forward takes tensors only and returns one tensor: these. Otherwise empty and null.
  std::span<const Tensor* const> inputs;
  Tensor* result;
};

// Wraps the forward of one module.
class CallHook {
 public:
  virtual ~CallHook() = default;
  // Must either call `forward` exactly once, on this thread, or throw, or set *call.result (if that is not null).
  virtual void around(const ModuleCall& call, absl::FunctionRef<void()> forward) = 0;
  // Tensors of the hook's own that train with the module (an adapter). They are among the module's parameters and in
  // its state dict, under these names.
  virtual std::vector<NamedTensor> named_parameters() const { return {}; }
};

class ModuleBase {
 public:
  virtual ~ModuleBase();
  ModuleBase& operator=(const ModuleBase&) = delete;

  // ---- The tree. Names are dotted paths below this module; tied parameters come once, under their first name.
  std::vector<NamedTensor> named_parameters() const;
  std::vector<Tensor> parameters() const;
  std::vector<NamedTensor> named_buffers() const;
  std::vector<NamedModule> named_modules();  // this one first, with an empty name
  std::span<ModuleBase* const> children() const { return children_; }
  ModuleBase* parent() const { return parent_; }
  // "h.3.mlp" below the root; empty for a root.
  const std::string& path() const { return path_; }
  // The last part of the path.
  const std::string& name() const { return name_; }
  // The class, without namespaces: "TransformerBlock".
  std::string type_name() const;
  int64_t num_parameters() const;

  // ---- State. The tensors share memory with the module.
  StateDict state_dict() const;
  // Copies values in, converting between floating dtypes. Throws StateDictError, which lists everything missing,
  // unexpected or of another shape, before anything is changed. With `strict = false`, missing and unexpected names are
  // returned instead. Names given to ignore_in_state_dict() are never unexpected. With `assign`, no value is copied:
  // parameters and buffers take over the given tensors' memory and dtype, and share it with `state`.
  StateDictReport load_state_dict(const StateDict& state, bool strict = true, bool assign = false);

  // ---- Changing the whole tree
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }
  // Converts floating parameters (with their gradients) and buffers.
  void to(DType dtype);
  void requires_grad_(bool on = true);
  void zero_grad(bool set_to_none = true);
  // The members that hold the parameters and buffers of this module and all below it, also tied and undefined ones. The
  // addresses stay valid as long as the module lives.
  std::vector<const Tensor*> tensor_slots() const;
  // Calls fn on every module, children before parents.
  void apply(absl::FunctionRef<void(ModuleBase&)> fn);

  // Null: a direct call.
  std::shared_ptr<CallHook> call_hook;

 protected:
  // `type` and `size` are those of the class that derives from Module. Throws Error if this object is a member of a
  // module and was not made by child().
  ModuleBase(const std::type_info& type, size_t size);
  ModuleBase(const ModuleBase&) = delete;

  // Registers a parameter and returns its handle, which this module keeps: `Tensor& weight = parameter("weight", ...)`.
  // Assigning another parameter to the member ties the two. An undefined tensor holds a place: `bias` without a bias.
  Tensor& parameter(std::string name, Tensor value);
  // As parameter(), for state without a gradient; one that is not persistent stays out of state_dict().
  Tensor& buffer(std::string name, Tensor value, bool persistent = true);
  // load_state_dict() accepts and ignores this name: published checkpoints hold tensors that a model computes.
  void ignore_in_state_dict(std::string name) { ignored_.push_back(std::move(name)); }
  // Makes a member module: `nn::Linear fc = child("fc", 768, 3072);`. The arguments are those of its constructor. An
  // argument that is a member declared further down is not initialised yet: Error.
  template <class... Args> Child<Args...> child(std::string name, Args&&... args) {
    return Child<Args...>(this, std::move(name), std::forward<Args>(args)...);
  }

 private:
  template <class... Args> friend class Child;
  struct Entry {
    std::string name;
    Tensor tensor;
    bool is_parameter;
    bool persistent;
  };
  // Where the next module to be constructed on this thread goes: set by Child, taken by the first ModuleBase().
  struct Place {
    ModuleBase* parent = nullptr;
    std::string name;
    std::vector<const void*> arguments;  // of its constructor
  };
  bool contains(const void* p) const;
  // The innermost module that `p` lies in; null: none.
  static ModuleBase* enclosing(const void* p);
  void check_initialised(const Place& place) const;
  static Place& next_place();
  void check_name(const std::string& name) const;
  Tensor& add_entry(Entry entry);
  // Dotted names relative to this module, tied tensors repeated.
  void visit(const std::string& prefix, absl::FunctionRef<void(const std::string& name, const Entry&)> fn) const;
  void collect_ignored(const std::string& prefix, std::set<std::string>& out) const;
  void collect_modules(const std::string& prefix, std::vector<NamedModule>& out);

  const size_t size_;
  bool registered_ = false;  // a live module that lies in no other one
  ModuleBase* parent_ = nullptr;
  std::string name_, path_;
  std::vector<std::string> ignored_;
  std::vector<std::unique_ptr<Entry>> entries_;  // addresses are stable: members refer to the tensors
  std::vector<ModuleBase*> children_;
  bool training_ = true;
};

// What child() returns: converts to the module that is being declared, built in place.
template <class... Args> class [[nodiscard]] Child {
 public:
  Child(ModuleBase* parent, std::string name, Args&&... args)
      : parent_(parent), name_(std::move(name)), args_(std::forward<Args>(args)...) {}
  template <std::derived_from<ModuleBase> M> operator M() && {
    static_assert(std::is_constructible_v<M, Args...>, "child(name, args...): no constructor takes these args");
    const PlaceScope scope(*this, /*is_member=*/true);
    if constexpr (std::is_constructible_v<M, Args...>)  // otherwise the message above is the only error
      return std::apply([](auto&&... args) { return M(std::forward<Args>(args)...); }, std::move(args_));
  }
  // The same on the heap, for lists.
  template <std::derived_from<ModuleBase> M> std::unique_ptr<M> make() && {
    static_assert(std::is_constructible_v<M, Args...>, "no constructor takes these args");
    const PlaceScope scope(*this, /*is_member=*/false);
    return std::apply([](auto&&... args) { return std::make_unique<M>(std::forward<Args>(args)...); },
                      std::move(args_));
  }

 private:
  struct PlaceScope {
    PlaceScope(Child& child, bool is_member) {
      child.parent_->check_name(child.name_);
      ModuleBase::Place place{child.parent_, std::move(child.name_), {}};
      if (is_member)
        std::apply([&](const auto&... args) { (place.arguments.push_back(std::addressof(args)), ...); }, child.args_);
      ModuleBase::next_place() = std::move(place);
    }
    ~PlaceScope() { ModuleBase::next_place() = {}; }  // an argument's conversion may have thrown
  };
  ModuleBase* parent_;
  std::string name_;
  std::tuple<Args&&...> args_;  // of the full expression that declares the member
};

template <class> inline constexpr bool kModulesMove = false;

// The base of every module, with the module itself as `Self`; gives it the call operator.
template <class Self> class Module : public ModuleBase {
 public:
  // Declared so that the error of whoever copies or moves a module is this one.
  Module(const Module&) : Module() {
    static_assert(kModulesMove<Self>,
                  "a module cannot be copied or moved, because other modules and its members refer to it: hold it in a "
                  "std::unique_ptr, or a list of them in a ModuleList");
  }

  template <class... Rest> decltype(auto) operator()(TensorArg first, Rest&&... rest) {
    Self& self = static_cast<Self&>(*this);
    const ModuleFrame frame(&path(), first.where);
    using Result = decltype(self.forward(first.tensor, std::forward<Rest>(rest)...));
    if (!call_hook) [[likely]]
      return static_cast<Result>(self.forward(first.tensor, std::forward<Rest>(rest)...));
    const std::shared_ptr<CallHook> hook = call_hook;  // may be replaced by the call itself
    if constexpr (std::is_void_v<Result>) {
      hook->around({*this, {}, nullptr}, [&] { self.forward(first.tensor, std::forward<Rest>(rest)...); });
    } else if constexpr (std::is_same_v<Result, Tensor> && (std::is_convertible_v<const Rest&, const Tensor&> && ...)) {
      const Tensor* const inputs[] = {&first.tensor, &static_cast<const Tensor&>(rest)...};
      Tensor result;
      hook->around({*this, inputs, &result}, [&] { result = self.forward(first.tensor, std::forward<Rest>(rest)...); });
      return result;
    } else {
      static_assert(!std::is_reference_v<Result>, "forward must return a value");
      std::optional<Result> result;
      hook->around({*this, {}, nullptr},
                   [&] { result.emplace(self.forward(first.tensor, std::forward<Rest>(rest)...)); });
      invariant(result.has_value(), "a call hook did not run forward");
      return static_cast<Result>(*std::move(result));
    }
  }

 private:
  friend Self;  // `struct B : Module<A>` does not compile: its call operator would call A's forward
  Module() : ModuleBase(typeid(Self), sizeof(Self) - offset()) {}
  // Bytes of a Self before its Module: not 0 if Self has another base first.
  static size_t offset() {
    constexpr uintptr_t kAnywhere = 1 << 20;
    return reinterpret_cast<uintptr_t>(static_cast<Module*>(reinterpret_cast<Self*>(kAnywhere))) - kAnywhere;
  }
};

}  // namespace rondo::nn
#pragma GCC visibility pop
