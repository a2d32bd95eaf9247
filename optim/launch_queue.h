// LaunchQueue: launches that change something together or not at all. It keeps them until they are all known, does what
// may fail of each (memory of the device for its table, loading of its code), and only then enqueues them. A step that
// runs out of memory on the way has changed nothing.
//
//   queue.start(device);
//   ForeachTable& table = queue.table();       // filled in by the caller
//   queue.add(pass);                           // a launch of it
//   queue.make_ready();                        // throws OutOfMemoryError: nothing has run
//   queue.submit();
//
// Note [Steps change nothing before they are ready]. Until submit(), work may run at once if it writes only what the
//   step has made for itself: decisions, scalars, the second place of a step count, transient states. What it points to
//   must live until submit().
//
// Thread safety: one thread at a time.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "rondo/compile/target/table.h"
#include "rondo/optim/foreach.h"
#include "rondo/runtime/device/device.h"
#include "rondo/runtime/device/storage.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

struct Decision;

class LaunchQueue {
 public:
  // Empties it; what comes is for this device. Tables keep their memory.
  void start(Device device);
  // False: add() launches at once, which is for work that changes nothing. True after start().
  void keep(bool kept) { keeps_ = kept; }

  // An empty table, for the next add(); valid until start().
  ForeachTable& table();
  // A launch of the last table(), if `when` holds at its turn.
  void add(std::shared_ptr<const Foreach> pass, const compile::Condition& when = {}, bool eager = false);
  // The pass of a step that may be skipped, and what is left of it then (Foreach::if_skipped).
  void add(const std::shared_ptr<const Foreach>& pass, const Decision* decision, bool eager = false);
  // Work that is enqueued at its place. It needs no memory and loads no code.
  void add(absl::AnyInvocable<void()> work);
  // Memory that launches point to.
  void hold(Storage memory) { held_.push_back(std::move(memory)); }

  void make_ready();
  // Enqueues all, in order, and is empty then. REQUIRES: make_ready().
  void submit();

 private:
  struct Entry {
    std::shared_ptr<const Foreach> pass;  // null: `work` is all
    size_t table = 0;
    compile::Condition when;
    bool eager = false;
    absl::AnyInvocable<void()> work;  // what is left to do when the pass is ready; null: all
  };
  Device device_;
  bool keeps_ = true;
  std::deque<ForeachTable> tables_;  // the first n_tables_ are in use
  size_t n_tables_ = 0;
  std::vector<Entry> entries_;
  std::vector<Storage> held_;
};

}  // namespace rondo::optim
#pragma GCC visibility pop
