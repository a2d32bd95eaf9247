#include "rondo/modules/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <unordered_set>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/autograd/accumulate_node.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/op/recorder.h"

namespace rondo::nn {
namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : absl::StrCat(prefix, ".", name);
}

// Returns the dtype and the device, for messages: "f32 on cpu".
std::string kind_of(const Tensor& tensor) {
  return absl::StrCat(std::string(name_of(tensor.dtype())), " on ", to_string(tensor.device()));
}

// Replaces the contents of `tensor` by `value`. All handles of the tensor see the new contents.
void replace_contents(Tensor& tensor, const Tensor& value) {
  TensorImpl& impl = *tensor.impl();
  before_write(tensor.storage());
  if (!(impl.device == value.device()) || impl.dtype != value.dtype())
    autograd::end_graphs_of_leaf(
        tensor, absl::StrCat("backward: a parameter has become ", kind_of(value), " and was ", kind_of(tensor),
                             " when this graph was made; call .to() before the forward, or after the backward"));
  // The new storage's version must be above the old one's, so that tensors saved for backward are seen to be stale.
  const uint32_t passed = tensor.version() + 1;
  while (value.storage().version() < passed) value.storage().bump_version();
  impl.dtype = value.dtype();
  impl.device = value.device();
  impl.sizes = value.sizes();
  impl.strides = value.strides();
  impl.offset = value.storage_offset();
  impl.storage = value.storage();
  impl.storage.set_purpose(Purpose::kParameters);
}

}  // namespace

ModuleBase::Place*& ModuleBase::next_place() {
  static thread_local Place* place = nullptr;
  return place;
}

ModuleBase::PlaceScope::PlaceScope(ModuleBase& parent, std::string_view name,
                                   std::span<const void* const> arguments) try
    : place_{&parent, std::string(name), arguments} {
  parent.check_name(name);
  next_place() = &place_;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("child");
}
ModuleBase::PlaceScope::~PlaceScope() { next_place() = nullptr; }

namespace {

// Live modules that are not members of other modules, by address. Finds the module that contains an address.
struct Registry {
  std::mutex mutex;
  std::map<const void*, ModuleBase*> modules;
};
Registry& registry() {
  static Registry& instance = *new Registry;  // outlives every module
  return instance;
}

std::string demangled(const std::type_info& type) {
  int status = 0;
  char* text = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
  std::string name = status == 0 ? text : type.name();
  std::free(text);
  if (name.ends_with('>')) {
    size_t at = name.size();
    for (int depth = 0; at > 0; --at)
      if ((depth += (name[at - 1] == '>') - (name[at - 1] == '<')) == 0) break;
    name.resize(at - 1);
  }
  const size_t scope = name.rfind("::");
  return scope == name.npos ? name : name.substr(scope + 2);
}

}  // namespace

bool ModuleBase::contains(const void* p) const {
  const auto* begin = reinterpret_cast<const std::byte*>(this);
  return !std::less<>()(p, static_cast<const void*>(begin)) &&
         std::less<>()(p, static_cast<const void*>(begin + size_));
}

ModuleBase* ModuleBase::enclosing(const void* p) {
  ModuleBase* found = nullptr;
  {
    const std::lock_guard lock(registry().mutex);
    auto after = registry().modules.upper_bound(p);
    if (after != registry().modules.begin()) found = std::prev(after)->second;
    // Still under the lock: a neighbour in memory that does not contain p may be destroyed by another thread.
    if (found == nullptr || !found->contains(p)) return nullptr;
  }
  for (bool deeper = true; deeper;) {
    deeper = false;
    for (ModuleBase* inner : found->children_)
      if (inner->contains(p)) found = inner, deeper = true;
  }
  return found;
}

void ModuleBase::check_initialised(const Place& place) const {
  for (const void* argument : place.arguments)
    if (place.parent->contains(argument) && std::less<>()(static_cast<const void*>(this), argument))
      throw Error(absl::StrCat(place.parent->type_name(), ": child(\"", place.name,
                               "\", ...): an argument is a member of ", place.parent->type_name(),
                               " that is declared after this child, so it has no value yet; declare it before"));
}

ModuleBase::ModuleBase(const std::type_info& type, size_t size) try : size_(size) {
  Place* const given = std::exchange(next_place(), nullptr);
  Place place = given != nullptr ? std::move(*given) : Place{};
  ModuleBase* outer = enclosing(this);
  if (place.parent == nullptr && outer != nullptr) {
    const std::string made = demangled(type);
    std::string where = "its first member module";
    for (const ModuleBase* sibling : outer->children_)
      if (outer->contains(sibling)) where = absl::StrCat("the member module after \"", sibling->name_, "\"");
    throw Error(absl::StrCat(outer->type_name(), ": ", where, ", a ", made,
                             ", is not made by child(), so its parameters would not be trained or saved. Write: ", made,
                             " fc = child(\"fc\", ...) with the arguments of its constructor"));
  }
  // Everything that can throw comes first: if a constructor throws, no destructor undoes what it has done.
  if (place.parent != nullptr) {
    check_initialised(place);
    name_ = std::move(place.name);
    path_ = joined(place.parent->path_, name_);
    training_ = place.parent->training_;
    std::vector<ModuleBase*>& siblings = place.parent->children_;
    if (siblings.size() == siblings.capacity()) siblings.reserve(2 * siblings.size() + 4);
  }
  if (outer == nullptr) {
    const std::lock_guard lock(registry().mutex);
    registry().modules[this] = this;
    registered_ = true;
  }
  if (place.parent == nullptr) return;
  parent_ = place.parent;
  parent_->children_.push_back(this);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("a module");
}

ModuleBase::~ModuleBase() {
  if (registered_) {
    const std::lock_guard lock(registry().mutex);
    registry().modules.erase(this);
  }
  if (parent_ != nullptr) std::erase(parent_->children_, this);
}

void ModuleBase::check_name(std::string_view name) const {
  const auto fail = [&](const char* why) {
    throw Error(
        absl::StrCat(type_name(), path_.empty() ? "" : " " + path_, ": the name '", std::string(name), "' ", why));
  };
  if (name.empty()) fail("is empty");
  if (name.find('.') != name.npos) fail("contains a dot, which separates a child from its parent");
  for (const ModuleBase* module : children_)
    if (module->name_ == name) fail("is taken by a child");
  for (const auto& entry : entries_)
    if (entry->name == name) fail("is taken by a parameter or buffer");
}

Tensor& ModuleBase::add_entry(Entry entry) {
  check_name(entry.name);
  entries_.push_back(std::make_unique<Entry>(std::move(entry)));
  return entries_.back()->tensor;
}

Tensor& ModuleBase::parameter(std::string_view name, Tensor value) try {
  if (value.defined()) {
    if (!is_floating(value.dtype()))
      throw Error(absl::StrCat(type_name(), ": parameter(\"", std::string(name), "\") is ",
                               std::string(name_of(value.dtype())), to_string(value.sizes()),
                               ", and only floating-point tensors have gradients: use buffer(), or .to(kF32)"));
    value.requires_grad_();
  }
  return add_entry({std::string(name), std::move(value), true, true});
} catch (const std::bad_alloc&) {
  throw_out_of_memory("parameter");
}

Tensor& ModuleBase::buffer(std::string_view name, Tensor value, bool persistent) try {
  if (value.defined()) value.storage().set_purpose(Purpose::kParameters);
  return add_entry({std::string(name), std::move(value), false, persistent});
} catch (const std::bad_alloc&) {
  throw_out_of_memory("buffer");
}

Tensor& ModuleBase::running_statistic(std::string_view name, Tensor value) {
  Tensor& member = buffer(name, std::move(value));
  entries_.back()->keeps_f32 = true;
  return member;
}

void ModuleBase::ignore_in_state_dict(std::string_view name) try {
  ignored_.emplace_back(name);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("ignore_in_state_dict");
}

void ModuleBase::visit(const std::string& prefix, absl::FunctionRef<void(const std::string&, const Entry&)> fn) const {
  for (const auto& entry : entries_)
    if (entry->tensor.defined()) fn(joined(prefix, entry->name), *entry);
  for (const ModuleBase* module : children_) module->visit(joined(prefix, module->name_), fn);
}

std::vector<NamedTensor> ModuleBase::named_parameters() const try {
  std::vector<NamedTensor> result;
  std::unordered_set<const TensorImpl*> seen;
  visit("", [&](const std::string& name, const Entry& entry) {
    if (entry.is_parameter && seen.insert(entry.tensor.impl()).second) result.push_back({name, entry.tensor});
  });
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("named_parameters");
}

std::vector<Tensor> ModuleBase::parameters() const try {
  std::vector<Tensor> result;
  for (NamedTensor& named : named_parameters()) result.push_back(std::move(named.tensor));
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("parameters");
}

std::vector<NamedTensor> ModuleBase::named_buffers() const try {
  std::vector<NamedTensor> result;
  std::unordered_set<const TensorImpl*> seen;
  visit("", [&](const std::string& name, const Entry& entry) {
    if (!entry.is_parameter && seen.insert(entry.tensor.impl()).second) result.push_back({name, entry.tensor});
  });
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("named_buffers");
}

std::vector<NamedModule> ModuleBase::named_modules() try {
  std::vector<NamedModule> result;
  collect_modules("", result);
  return result;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("named_modules");
}

std::vector<ModuleBase*> ModuleBase::repeated_blocks() const {
  std::vector<ModuleBase*> blocks;
  for (ModuleBase* module : children_) {
    if (is_block_list() && !module->is_block_list()) {
      blocks.push_back(module);
    } else {
      const std::vector<ModuleBase*> inner = module->repeated_blocks();
      blocks.insert(blocks.end(), inner.begin(), inner.end());
    }
  }
  return blocks;
}

void ModuleBase::collect_modules(const std::string& prefix, std::vector<NamedModule>& out) {
  out.push_back({prefix, *this});
  for (ModuleBase* module : children_) module->collect_modules(joined(prefix, module->name_), out);
}

std::string ModuleBase::type_name() const try { return demangled(typeid(*this)); } catch (const std::bad_alloc&) {
  throw_out_of_memory("type_name");
}

int64_t ModuleBase::num_parameters() const {
  int64_t total = 0;
  for (const Tensor& p : parameters()) total += p.numel();
  return total;
}

StateDict ModuleBase::state_dict() const try {
  StateDict state;
  std::unordered_set<const TensorImpl*> seen;
  visit("", [&](const std::string& name, const Entry& entry) {
    if (entry.persistent && seen.insert(entry.tensor.impl()).second) state[name] = entry.tensor.detach();
  });
  return state;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("state_dict");
}

StateDictReport ModuleBase::load_state_dict(const StateDict& state, bool strict, bool assign) try {
  std::vector<NamedTensor> targets;
  visit("", [&](const std::string& name, const Entry& entry) {
    if (entry.persistent) targets.push_back({name, entry.tensor});
  });
  std::set<std::string> ignored;
  collect_ignored("", ignored);
  StateDict wanted = state;
  for (const std::string& name : ignored) wanted.erase(name);
  if (!assign) return load_tensors(targets, wanted, strict, type_name());
  return load_tensors(targets, wanted, strict, type_name(), [](Tensor& target, const Tensor& value) {
    if (!target.is_same(value)) replace_contents(target, value.detach());
  });
} catch (const std::bad_alloc&) {
  throw_out_of_memory("load_state_dict");
}

void ModuleBase::collect_ignored(const std::string& prefix, std::set<std::string>& out) const {
  for (const std::string& name : ignored_) out.insert(joined(prefix, name));
  for (const ModuleBase* module : children_) module->collect_ignored(joined(prefix, module->name_), out);
}

void ModuleBase::train(bool on) {
  apply([on](ModuleBase& module) { module.training_ = on; });
}

void ModuleBase::to(DType dtype) try {
  if (!is_floating(dtype))
    throw Error(absl::StrCat(type_name(), ".to: ", std::string(name_of(dtype)), " is not floating"));
  const NoGrad off;
  std::unordered_set<const TensorImpl*> seen;
  visit("", [&](const std::string&, const Entry& entry) {
    Tensor tensor = entry.tensor;
    const DType wanted = entry.keeps_f32 ? compute_dtype(dtype) : dtype;
    if (!is_floating(tensor.dtype()) || tensor.dtype() == wanted || !seen.insert(tensor.impl()).second) return;
    const Tensor grad = tensor.grad();
    replace_contents(tensor, tensor.detach().to(wanted));
    if (grad.defined()) tensor.set_grad(grad.to(wanted));
  });
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Module::to");
}

void ModuleBase::to(Device device) try {
  const NoGrad off;
  struct Move {
    Tensor tensor, value, grad;
  };
  std::vector<Move> moves;
  std::unordered_set<const TensorImpl*> seen;
  visit("", [&](const std::string&, const Entry& entry) {
    const Tensor& tensor = entry.tensor;
    if (!tensor.defined() || tensor.device() == device || !seen.insert(tensor.impl()).second) return;
    const Tensor grad = tensor.grad();
    moves.push_back({tensor, tensor.detach().to(device), grad.defined() ? grad.to(device) : Tensor()});
  });
  // Nothing has changed so far, and nothing throws from here on.
  for (Move& move : moves) {
    replace_contents(move.tensor, move.value);
    if (move.grad.defined()) move.tensor.set_grad(move.grad);
  }
} catch (const std::bad_alloc&) {
  throw_out_of_memory("Module::to");
}

void ModuleBase::requires_grad_(bool on) {
  for (const auto& entry : entries_)
    if (entry->is_parameter && entry->tensor.defined()) entry->tensor.requires_grad_(on);
  for (ModuleBase* module : children_) module->requires_grad_(on);
}

void ModuleBase::zero_grad(bool set_to_none) {
  for (const auto& entry : entries_)
    if (entry->is_parameter && entry->tensor.defined()) entry->tensor.zero_grad(set_to_none);
  for (ModuleBase* module : children_) module->zero_grad(set_to_none);
}

std::vector<const Tensor*> ModuleBase::tensor_slots() const try {
  std::vector<const Tensor*> slots;
  for (const auto& entry : entries_) slots.push_back(&entry->tensor);
  for (const ModuleBase* module : children_)
    for (const Tensor* slot : module->tensor_slots()) slots.push_back(slot);
  return slots;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("tensor_slots");
}

std::vector<ModuleBase::Slot> ModuleBase::own_slots() try {
  std::vector<Slot> slots;
  for (const auto& entry : entries_)
    if (entry->persistent) slots.push_back({entry->name, &entry->tensor, entry->is_parameter});
  return slots;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("own_slots");
}

// ---- Changing the tree

void ModuleBase::require_root(const ModuleBase* module) {
  if (module == nullptr) throw Error("attach and replace: the module is null");
  if (module->parent_ != nullptr)
    throw Error(absl::StrCat("attach and replace: this ", module->type_name(), " is already ", module->path_, " of a ",
                             module->parent_->type_name()));
}

void ModuleBase::note_change() {
  for (ModuleBase* module = this; module != nullptr; module = module->parent_) ++module->tree_version_;
}

void ModuleBase::settle(ModuleBase* parent, std::string name) {
  parent_ = parent;
  name_ = std::move(name);
  update_paths();
  if (parent != nullptr) train(parent->training_);
}

void ModuleBase::update_paths() {
  path_ = parent_ == nullptr ? "" : joined(parent_->path_, name_);
  for (ModuleBase* module : children_) module->update_paths();
}

ModuleBase& ModuleBase::child_named(std::string_view name) const {
  for (ModuleBase* module : children_)
    if (module->name_ == name) return *module;
  std::string names;
  for (const ModuleBase* module : children_) absl::StrAppend(&names, names.empty() ? "" : ", ", module->name_);
  throw Error(absl::StrCat(type_name(), path_.empty() ? "" : " " + path_, ": there is no child '", std::string(name),
                           "'; there is ", names.empty() ? "none at all" : names));
}

namespace {
// Reserves memory, so that each list can take one more element without throwing.
template <class... List> void make_room(List&... lists) { (lists.reserve(lists.size() + 1), ...); }
}  // namespace

void ModuleBase::attach_child(std::string name, std::unique_ptr<ModuleBase> module) try {
  check_name(name);
  make_room(children_, attached_, attached_hooks_, replaced_);
  module->settle(this, std::move(name));
  // Nothing below throws.
  children_.push_back(module.get());
  if (auto* hook = dynamic_cast<CallHook*>(module.get())) attached_hooks_.push_back(hook);
  attached_.push_back(std::move(module));
  note_change();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("attach");
}

// Needs no memory unless it throws: it is also called to undo an addition after memory ran out.
std::unique_ptr<ModuleBase> ModuleBase::detach(std::string_view name) try {
  ModuleBase& module = child_named(name);
  const auto at = std::find_if(attached_.begin(), attached_.end(), [&](const auto& a) { return a.get() == &module; });
  const bool replaces = std::any_of(replaced_.begin(), replaced_.end(),
                                    [&](const ModuleBase* m) { return m->stand_in_.module == &module; });
  if (at == attached_.end() || replaces)
    throw Error(absl::StrCat(type_name(), "::detach: ", module.path_,
                             " was not attached: the model's own code calls it. Use replace()"));
  std::unique_ptr<ModuleBase> taken = std::move(*at);
  attached_.erase(at);
  std::erase(attached_hooks_, dynamic_cast<CallHook*>(taken.get()));
  std::erase(children_, taken.get());
  note_change();
  const auto cut_paths = [length = taken->path_.size() + 1](const auto& self, ModuleBase& below) -> void {
    below.path_.erase(0, length);
    for (ModuleBase* inner : below.children_) self(self, *inner);
  };
  cut_paths(cut_paths, *taken);
  taken->parent_ = nullptr;
  taken->name_.clear();
  return taken;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("detach");
}

void ModuleBase::redirect_to(ModuleBase& module, TensorCall call) {
  stand_in_ = {&module, call};
  for (const auto& entry : entries_) {
    const auto same = std::find_if(module.entries_.begin(), module.entries_.end(),
                                   [&](const auto& other) { return other->name == entry->name; });
    entry->tensor = same == module.entries_.end() ? Tensor() : (*same)->tensor;
  }
  // Members of the member are redirected, too, but only to the same class: no TensorCall is known for them.
  for (ModuleBase* inner : children_)
    for (ModuleBase* other : module.children_)
      if (other->name_ == inner->name_) inner->redirect_to(*other, nullptr);
}

void ModuleBase::replace_child(std::string_view name, Replacement replacement) try {
  ModuleBase& old = child_named(name);
  ModuleBase& placed = *replacement.module;
  const auto owned = std::find_if(attached_.begin(), attached_.end(), [&](const auto& a) { return a.get() == &old; });
  // The members that the model's code calls: `old`, or those that `old` has replaced.
  std::vector<ModuleBase*> members;
  for (ModuleBase* member : replaced_)
    if (member->stand_in_.module == &old) members.push_back(member);
  const bool was_attached = owned != attached_.end();
  if (!was_attached) members.push_back(&old);
  // The model's code loops over the items of its own list, so the new list must have as many items.
  for (const ModuleBase* member : members)
    if (member->is_block_list() && member->children_.size() != placed.children_.size())
      throw Error(absl::StrCat(type_name(), "::replace: ", old.path_, " has ", member->children_.size(),
                               " items, and the model's code calls so many; a ", placed.type_name(), " of ",
                               placed.children_.size(), " cannot take its place. Build the model with that many"));
  make_room(children_, attached_, attached_hooks_, replaced_);
  placed.settle(this, std::string(name));
  // Nothing below throws.
  if (!was_attached) replaced_.push_back(&old);
  *std::find(children_.begin(), children_.end(), &old) = &placed;
  if (placed.call_hook == nullptr) placed.call_hook = std::exchange(old.call_hook, nullptr);
  std::erase(attached_hooks_, dynamic_cast<CallHook*>(&old));
  const bool is_member = !members.empty();
  if (auto* hook = dynamic_cast<CallHook*>(&placed); hook != nullptr && !is_member) attached_hooks_.push_back(hook);
  for (ModuleBase* member : members) member->redirect_to(placed, replacement.call);
  attached_.push_back(std::move(replacement.module));
  note_change();
  if (was_attached) std::erase_if(attached_, [&](const auto& a) { return a.get() == &old; });
} catch (const std::bad_alloc&) {
  throw_out_of_memory("replace");
}

void ModuleBase::throw_cannot_stand_in() const {
  throw Error(absl::StrCat(
      path_, ": this ", type_name(), " was replaced by a ", stand_in_.module->type_name(),
      ", which can stand in only for calls that take tensors and return one tensor; replace it by a ", type_name()));
}

void ModuleBase::call_through_hooks(const ModuleCall& call, absl::FunctionRef<void()> forward) try {
  const auto inside = [&](const auto& self, size_t hooks) -> void {
    if (hooks == 0) return forward();
    attached_hooks_[hooks - 1]->around(call, [&] { self(self, hooks - 1); });
  };
  const std::shared_ptr<CallHook> outermost = call_hook;  // may be replaced by the call itself
  if (outermost == nullptr) return inside(inside, attached_hooks_.size());
  outermost->around(call, [&] { inside(inside, attached_hooks_.size()); });
} catch (const std::bad_alloc&) {
  throw_out_of_memory("call of a module");
}

void ModuleBase::apply(absl::FunctionRef<void(ModuleBase&)> fn) {
  for (ModuleBase* module : children_) module->apply(fn);
  fn(*this);
}

}  // namespace rondo::nn
