// Module: START HERE. A tree of named parameters, buffers and children, with a call operator.
//
// A child's or parameter's name is written once, where the member is declared. A GPT block:
//
//   struct Block : nn::Module<Block> {
//     Block(int64_t C, int64_t heads) : C(C), heads(heads) {}
//     int64_t C, heads;
//     nn::LayerNorm ln_1 = child("ln_1", C);
//     nn::SelfAttention attn = child("attn", C, heads);
//     nn::LayerNorm ln_2 = child("ln_2", C);
//     nn::MLP mlp = child("mlp", C, 4 * C);
//     Tensor forward(const Tensor& x_) {      // (B, T, C) -> (B, T, C)
//       Tensor x = x_ + attn(ln_1(x_));
//       return x + mlp(ln_2(x));
//     }
//   };
//   Block block(768, 12);                             // a root: the same constructor
//   nn::ModuleList<Block> h = child("h", 12, C, 12);  // in a model: h.0 .. h.11
//
// Call a module (`attn(x)`), not its forward(): Note [Calls]. The first argument of forward is a tensor.
//
// Modules own their parameters. A parent refers to its children, which are its members, and owns those that were
// attached. Thread safety: a tree is built, changed and called by one thread at a time.
//
// More at the end of this file: Note [Calls], [What never changes], [Calls of a changed tree].
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
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "rondo/modules/state_dict.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/tensor/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::nn {

class ModuleBase;
template <class With, class... Args> class Child;

struct NamedModule {
  std::string name;
  ModuleBase& module;
};

// One call of a module that has a hook.
struct ModuleCall {
  ModuleBase& module;
  // The arguments and the result of forward, if it takes tensors only and returns one tensor. Otherwise empty and null.
  std::span<const Tensor* const> inputs;
  Tensor* result;
};

// Wraps the forward of one module. A hook with parameters is a module too: attach() it.
class CallHook {
 public:
  virtual ~CallHook() = default;
  // Must either call `forward` exactly once, on this thread, or throw, or set *call.result (if that is not null).
  virtual void around(const ModuleCall& call, absl::FunctionRef<void()> forward) = 0;
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
  // True for a list of blocks that a model repeats, such as a ModuleList. False for a chain that is one unit.
  virtual bool is_block_list() const { return false; }
  // Returns the blocks at or below this module, in the order of the tree. They are the items of the outermost lists. If
  // an item is a list itself, its items are the blocks. Everything inside a block is part of it, even a list.
  // compile::compile_regions() and nn::plan_seams() cut a model at these blocks.
  std::vector<ModuleBase*> repeated_blocks() const;
  std::span<ModuleBase* const> children() const { return children_; }
  ModuleBase* parent() const { return parent_; }
  // Returns the dotted path below the root, "h.3.mlp"; empty for a root.
  const std::string& path() const { return path_; }
  // Returns the last part of the path.
  const std::string& name() const { return name_; }
  // Returns the name of the class, without namespaces: "TransformerBlock".
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
  // Converts floating parameters (with their gradients) and buffers. In 16 bits running statistics stay in f32.
  void to(DType dtype);
  // Moves parameters (with their gradients) and buffers; if it throws (out of memory), none is moved. The states of an
  // optimizer that has made a step stay on the old device: load its state_dict() into a new optimizer.
  void to(Device device);
  void requires_grad_(bool on = true);
  void zero_grad(bool set_to_none = true);
  // Returns the members that hold the parameters and buffers of this module and all below it, also tied and undefined
  // ones. The addresses stay valid as long as the module lives.
  std::vector<const Tensor*> tensor_slots() const;
  // Calls fn on every module, children before parents.
  void apply(absl::FunctionRef<void(ModuleBase&)> fn);

  // ---- Changing the tree after construction; never during a call. Everything that walks the tree sees the change:
  // parameters(), state_dict(), train(), to(), regions. An optimizer or DistributedDataParallel that was made before
  // the change has its own list of parameters and does not see it: make it after the change, or use
  // FormulaOptimizer::add_param_group().

  // Adds a child, which this module owns from now on. It gets this module's mode (train or eval). If it is a CallHook,
  // it wraps every call of this module. Throws Error if the name is empty, taken or has a dot, or if `module` has a
  // parent.
  template <std::derived_from<ModuleBase> M> M& attach(std::string name, std::unique_ptr<M> module) {
    M& attached = require_module(module.get());
    attach_child(std::move(name), std::move(module));
    return attached;
  }
  // Takes away a child that was attached. Throws Error if there is no child of this name.
  std::unique_ptr<ModuleBase> detach(std::string_view name);
  // Puts `module` in the place of the child `name`, with the child's name, mode and call_hook. If the child is a member
  // of this module, the object stays, but is no longer in the tree. Its calls go to the new module, and calls of its
  // own members go to the new module's members of the same names. The old parameters are dropped. Code that reads them
  // directly, as in `wte.weight`, finds the new module's tensors of the same names, or undefined ones. The new module
  // may be of another class if the calls take tensors only, at most four, and return one tensor. Throws Error if there
  // is no such child, or if `module` has a parent.
  template <std::derived_from<ModuleBase> M> M& replace(std::string_view name, std::unique_ptr<M> module) {
    M& placed = require_module(module.get());
    replace_child(name, {std::move(module), &call_with_tensors<M>});
    return placed;
  }
  // True if a call runs only this module's own forward: there is no hook and no replacement.
  bool is_plain() const { return call_hook == nullptr && attached_hooks_.empty() && stand_in_.module == nullptr; }
  // Returns a number that rises with each change of the tree at or below this module, and with note_change().
  uint64_t tree_version() const { return tree_version_; }
  // Call this when a module computes something else from now on although its tensors and mode are the same, for example
  // because an adapter was switched off. Recordings (compile.h, Capture::kReplay) of this module, and of the modules
  // that contain it, are then no longer replayed.
  void note_change();

  struct Slot {
    std::string name;
    Tensor* tensor;  // the member: assigning to it gives the module another tensor
    bool is_parameter;
  };
  // This module's own parameters and persistent buffers, without its children's; also undefined ones.
  std::vector<Slot> own_slots();

  // Wraps calls of this module, outside of attached hooks: Note [Calls of a changed tree]. Null: none.
  std::shared_ptr<CallHook> call_hook;

 protected:
  // `type` and `size` are those of the class that derives from Module. Throws Error if this object is a member of a
  // module and was not made by child().
  ModuleBase(const std::type_info& type, size_t size);
  ModuleBase(const ModuleBase&) = delete;

  // Registers a parameter and returns its handle, which this module keeps: `Tensor& weight = parameter("weight", ...)`.
  // Assigning another parameter to the member ties the two. An undefined tensor is a placeholder (no bias).
  Tensor& parameter(std::string_view name, Tensor value);
  // As parameter(), for state without a gradient; one that is not persistent stays out of state_dict().
  Tensor& buffer(std::string_view name, Tensor value, bool persistent = true);
  // As buffer(), for a number that each step changes by little, as a running mean does: 16 bits would round the changes
  // away, so to(kBF16) and to(kF16) leave it in f32.
  Tensor& running_statistic(std::string_view name, Tensor value);
  // Makes load_state_dict() accept and ignore this name, for tensors in published checkpoints that a model computes
  // itself.
  void ignore_in_state_dict(std::string_view name);
  // Makes a member module: `nn::Linear fc = child("fc", 768, 3072);`. The arguments are those of its constructor.
  // Throws Error if an argument is a member that is declared further down, because it is not initialised yet.
  template <class... Args> auto child(std::string_view name, Args&&... args) {
    const auto with = [&](auto construct) { return construct(std::forward<Args>(args)...); };
    return Child<decltype(with), Args...>(this, name, with, args...);
  }

  using TensorCall = Tensor (*)(ModuleBase&, std::span<const Tensor* const> inputs, std::source_location where);
  // Calls of this module go to the module that has replaced it, if there is one.
  struct StandIn {
    ModuleBase* module = nullptr;
    TensorCall call = nullptr;
  };
  const StandIn& stand_in() const { return stand_in_; }
  [[noreturn]] void throw_cannot_stand_in() const;
  // Runs `forward` inside all hooks.
  void call_through_hooks(const ModuleCall& call, absl::FunctionRef<void()> forward);

 private:
  template <class With, class... Args> friend class Child;
  struct Entry {
    std::string name;
    Tensor tensor;
    bool is_parameter;
    bool persistent;
    bool keeps_f32 = false;  // to(DType) does not convert it to 16 bits
  };
  struct Replacement {
    std::unique_ptr<ModuleBase> module;
    TensorCall call;
  };
  // The place of a module that is about to be constructed.
  struct Place {
    ModuleBase* parent = nullptr;
    std::string name;
    std::span<const void* const> arguments;  // the arguments of its constructor
  };
  // While it lives, the next module that is constructed on this thread goes to this place. Throws Error for a bad name.
  class PlaceScope {
   public:
    PlaceScope(ModuleBase& parent, std::string_view name, std::span<const void* const> arguments);
    ~PlaceScope();  // takes an unused place back: an argument's conversion may have thrown
    PlaceScope(const PlaceScope&) = delete;
    PlaceScope& operator=(const PlaceScope&) = delete;

   private:
    Place place_;
  };
  bool contains(const void* p) const;
  // Returns the innermost module whose memory contains `p`; null: none.
  static ModuleBase* enclosing(const void* p);
  void check_initialised(const Place& place) const;
  // Returns the place of the next module that is constructed on this thread: set by Child, used by the first
  // ModuleBase(). Null: the module is a root.
  static Place*& next_place();
  void check_name(std::string_view name) const;
  Tensor& add_entry(Entry entry);
  template <class M> static M& require_module(M* module) {
    require_root(module);
    return *module;
  }
  static void require_root(const ModuleBase* module);
  template <class M>
  static Tensor call_with_tensors(ModuleBase& module, std::span<const Tensor* const> in, std::source_location where);
  void attach_child(std::string name, std::unique_ptr<ModuleBase> module);
  void replace_child(std::string_view name, Replacement replacement);
  ModuleBase& child_named(std::string_view name) const;
  // Sets the parent, name, path and mode of this module.
  void settle(ModuleBase* parent, std::string name);
  void update_paths();
  void redirect_to(ModuleBase& module, TensorCall call);
  // Calls fn with each tensor and its dotted name relative to this module. A tied tensor comes once for each of its
  // names.
  void visit(const std::string& prefix, absl::FunctionRef<void(const std::string& name, const Entry&)> fn) const;
  void collect_ignored(const std::string& prefix, std::set<std::string>& out) const;
  void collect_modules(const std::string& prefix, std::vector<NamedModule>& out);

  const size_t size_;
  bool registered_ = false;  // a live module that is not a member of another
  ModuleBase* parent_ = nullptr;
  std::string name_, path_;
  std::vector<std::string> ignored_;
  std::vector<std::unique_ptr<Entry>> entries_;  // addresses are stable: members refer to the tensors
  std::vector<ModuleBase*> children_;
  bool training_ = true;
  uint64_t tree_version_ = 0;
  std::vector<CallHook*> attached_hooks_;  // the hooks among attached_, in the same order
  StandIn stand_in_;
  std::vector<ModuleBase*> replaced_;  // members that an attached module has replaced in children_
  // Destroyed first: each takes itself out of children_.
  std::vector<std::unique_ptr<ModuleBase>> attached_;
};

template <class M>
Tensor ModuleBase::call_with_tensors(ModuleBase& module, std::span<const Tensor* const> in,
                                     std::source_location where) {
  const auto run = [&](const auto&... rest) -> Tensor {
    if constexpr (requires(M & m) {
                    { m.forward(*in[0], rest...) } -> std::same_as<Tensor>;
                  })
      return static_cast<M&>(module)(TensorArg(*in[0], where), rest...);
    else
      throw Error(module.type_name() + " is called with " + std::to_string(in.size()) + " tensors, which it cannot be");
  };
  switch (in.size()) {
    case 1: return run();
    case 2: return run(*in[1]);
    case 3: return run(*in[1], *in[2]);
    default: return run(*in[1], *in[2], *in[3]);
  }
}

// The result of child(): converts to the module that is being declared, built in place. `With` calls a function with
// the arguments of child(), which live until the end of the member's declaration. (A tuple of the arguments would do
// the same, but would cost compile time in every file that includes modules.)
template <class With, class... Args> class [[nodiscard]] Child {
 public:
  Child(ModuleBase* parent, std::string_view name, With with, const Args&... args)
      : parent_(parent), name_(name), with_(with), arguments_{std::addressof(args)..., nullptr} {}
  template <std::derived_from<ModuleBase> M> operator M() && {
    static_assert(std::is_constructible_v<M, Args...>, "child(name, args...): no constructor takes these args");
    const ModuleBase::PlaceScope scope(*parent_, name_, {arguments_, sizeof...(Args)});
    if constexpr (std::is_constructible_v<M, Args...>)  // otherwise the message above is the only error
      return with_([](auto&&... args) { return M(std::forward<decltype(args)>(args)...); });
  }
  // Makes the module on the heap, for lists.
  template <std::derived_from<ModuleBase> M> std::unique_ptr<M> make() && {
    static_assert(std::is_constructible_v<M, Args...>, "no constructor takes these args");
    const ModuleBase::PlaceScope scope(*parent_, name_, {});
    return with_([](auto&&... args) { return std::unique_ptr<M>(new M(std::forward<decltype(args)>(args)...)); });
  }

 private:
  ModuleBase* parent_;
  std::string_view name_;
  With with_;
  const void* arguments_[sizeof...(Args) + 1];
};

template <class> inline constexpr bool kModulesMove = false;

// The base of every module, with the module itself as `Self`; gives it the call operator.
template <class Self> class Module : public ModuleBase {
 public:
  // Declared so that code which copies or moves a module gets this error message.
  Module(const Module&) : Module() {
    static_assert(kModulesMove<Self>,
                  "a module cannot be copied or moved, because other modules and its members refer to it: hold it in a "
                  "std::unique_ptr, or a list of them in a ModuleList");
  }

  // Returns this module, or the module that has replaced it. Use it for fields, and for methods other than the call,
  // which goes to the replacement by itself. Throws Error if the replacement is of another class.
  Self& current() {
    if (stand_in().module == nullptr) return static_cast<Self&>(*this);
    if (Self* same = dynamic_cast<Self*>(stand_in().module); same != nullptr) return same->current();
    throw_cannot_stand_in();
  }
  const Self& current() const { return const_cast<Module*>(this)->current(); }

  template <class... Rest> decltype(auto) operator()(TensorArg first, Rest&&... rest) {
    Self& self = static_cast<Self&>(*this);
    using Result = decltype(self.forward(first.tensor, std::forward<Rest>(rest)...));
    if (is_plain()) [[likely]] {
      const ModuleFrame frame(&path(), first.where);
      return static_cast<Result>(self.forward(first.tensor, std::forward<Rest>(rest)...));
    }
    if (stand_in().module != nullptr)
      return static_cast<Result>(call_stand_in<Result>(first, std::forward<Rest>(rest)...));
    const ModuleFrame frame(&path(), first.where);
    if constexpr (std::is_void_v<Result>) {
      call_through_hooks({*this, {}, nullptr}, [&] { self.forward(first.tensor, std::forward<Rest>(rest)...); });
    } else if constexpr (kTensorsOnly<Result, Rest...>) {
      const Tensor* const inputs[] = {&first.tensor, &static_cast<const Tensor&>(rest)...};
      Tensor result;
      call_through_hooks({*this, inputs, &result},
                         [&] { result = self.forward(first.tensor, std::forward<Rest>(rest)...); });
      return result;
    } else {
      static_assert(!std::is_reference_v<Result>, "forward must return a value");
      std::optional<Result> result;
      call_through_hooks({*this, {}, nullptr},
                         [&] { result.emplace(self.forward(first.tensor, std::forward<Rest>(rest)...)); });
      invariant(result.has_value(), "a call hook did not run forward");
      return static_cast<Result>(*std::move(result));
    }
  }

 private:
  template <class Result, class... Rest>
  static constexpr bool kTensorsOnly = std::is_same_v<Result, Tensor> &&
                                       (std::is_convertible_v<const Rest&, const Tensor&> && ...);
  template <class Result, class... Rest> Result call_stand_in(TensorArg first, Rest&&... rest) {
    if (Self* same = dynamic_cast<Self*>(stand_in().module); same != nullptr)
      return static_cast<Result>((*same)(first, std::forward<Rest>(rest)...));
    if constexpr (kTensorsOnly<Result, Rest...> && sizeof...(Rest) < 4) {
      const Tensor* const inputs[] = {&first.tensor, &static_cast<const Tensor&>(rest)...};
      return stand_in().call(*stand_in().module, {inputs, 1 + sizeof...(rest)}, first.where);
    } else {
      throw_cannot_stand_in();
    }
  }
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

// Note [Calls]. `attn(x)` runs forward() inside a frame, so that errors name the module's path and the caller's line,
// and through `call_hook`, where a compiler plugs in. `attn.forward(x)` does neither. If a loss() needs more than
// forward() returns, it calls the module with another overload of forward (DDRNet), so that it is compiled, too.
//
// Note [What never changes]. A module never moves, because its parent and its members refer to it. A module that is a
// member of another one is made by child(): otherwise its constructor throws, since its parameters would never be
// trained. Children and parameters are listed in the order of declaration. A parameter keeps its identity for life:
// to() and load_state_dict() change what the handle points to, never the handle, so optimizers, tied parameters and
// user copies see the change.
//
// Note [Calls of a changed tree]. A finished model can be changed without changing its code:
//
//   model.replace("classifier", std::make_unique<nn::Linear>(768, 5));   // model.classifier(x) calls the new layer
//   model.attach("probe", std::make_unique<Probe>());                    // a further child, with parameters
//   nn::add_lora(model, {.rank = 8, .targets = {"c_attn"}});             // adapters (lora.h)
//
// A model's code calls its members: `c_attn(x)` always names the same object. So that object passes the call on. A
// member that was replaced passes it to the module in its place. A member that was not replaced runs its forward inside
// of its hooks. The outermost hook is call_hook, which a compiler sets. Inside of call_hook are the attached children
// that are CallHooks, such as adapters; the last one attached is outermost among them. So a region is outside of every
// adapter: it records the adapters' ops with the block's own, takes their parameters as inputs, and one region serves
// all layers. compile::disable() keeps adapters.
