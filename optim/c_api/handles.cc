#include "rondo/optim/c_api/handles.h"

#include <map>

namespace rondo::optim::c_api {
namespace {

struct Table {
  std::mutex mutex;
  uintptr_t next = 1;
  std::map<uintptr_t, std::shared_ptr<Handle>> handles;
};
// Never destroyed: other threads may call while the process ends.
Table& table() {
  static auto* const table = new Table;
  return *table;
}

}  // namespace

Handle::Turn::Turn(std::shared_ptr<Handle> handle) : handle_(std::move(handle)) {
  handle_->enter();
  if (handle_->session_ != nullptr) return;
  handle_->leave();
  throw Error("the model was destroyed while this call waited for its turn");
}

Handle::Turn::~Turn() { handle_->leave(); }

void Handle::enter() {
  std::unique_lock lock(mutex_);
  if (inside_ == std::this_thread::get_id())
    throw BusyError("a callback may not call with the model that calls it: return first");
  const uint64_t ticket = next_ticket_++;
  changed_.wait(lock, [&] { return serving_ == ticket; });
  inside_ = std::this_thread::get_id();
}

void Handle::leave() {
  {
    std::lock_guard lock(mutex_);
    inside_ = {};
    ++serving_;
  }
  changed_.notify_all();
}

rondo_model* add_handle(std::unique_ptr<Session> session) {
  auto handle = std::make_shared<Handle>(std::move(session));
  Table& t = table();
  std::lock_guard lock(t.mutex);
  const uintptr_t number = t.next++;
  t.handles.emplace(number, std::move(handle));
  return reinterpret_cast<rondo_model*>(number);
}

std::shared_ptr<Handle> find_handle(const rondo_model* model) {
  if (model == nullptr) throw Error("the model is a null pointer");
  Table& t = table();
  std::lock_guard lock(t.mutex);
  const auto found = t.handles.find(reinterpret_cast<uintptr_t>(model));
  if (found == t.handles.end()) throw Error("no such model: it was destroyed, or never created");
  return found->second;
}

void remove_handle(const rondo_model* model) {
  Table& t = table();
  std::lock_guard lock(t.mutex);
  t.handles.erase(reinterpret_cast<uintptr_t>(model));
}

}  // namespace rondo::optim::c_api
