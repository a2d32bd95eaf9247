// LaunchQueue: launches that take effect together or not at all. The queue collects the launches, does all that may
// fail (device memory for their tables, loading their code), and only then enqueues them. A step that runs out of
// memory on the way has changed nothing.
//
//   queue.start(device);
//   ForeachTable& table = queue.table();       // filled in by the caller
//   queue.add(pass);                           // a launch of it
//   queue.make_ready();                        // throws OutOfMemoryError: nothing has run
//   queue.submit();
//
// Note [Steps change nothing before they are ready]. Before submit(), work may run at once only if all that it writes
//   was made for this step: decisions, scalars, the second place of a step count, transient states. All memory that
//   queued launches point to must live until submit().
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
  // Empties the queue; later launches are for this device. Tables keep their memory.
  void start(Device device);
  // With `kept` = false, add() launches at once: for work that changes nothing that lasts. start() sets it to true.
  void keep(bool kept) { keeps_ = kept; }

  // Returns an empty table for the next add(). It is valid until start().
  ForeachTable& table();
  // Adds a launch of `pass` on the last table(). It runs if `when` holds at its turn.
  void add(std::shared_ptr<const Foreach> pass, const compile::Condition& when = {}, bool eager = false);
  // For a step that may be skipped: adds `pass`, and the pass that replaces it in a skipped step (Foreach::if_skipped).
  void add(const std::shared_ptr<const Foreach>& pass, const Decision* decision, bool eager = false);
  // Adds a function that submit() calls between the launches, in order of addition. It may not need memory or load
  // code.
  void add(absl::AnyInvocable<void()> work);
  // Keeps memory alive that launches point to, until submit() has enqueued them.
  void hold(Storage memory) { held_.push_back(std::move(memory)); }

  void make_ready();
  // Enqueues all launches in order, and empties the queue. REQUIRES: make_ready().
  void submit();

 private:
  struct Entry {
    std::shared_ptr<const Foreach> pass;  // null: the entry is only `work`
    size_t table = 0;
    compile::Condition when;
    bool eager = false;
    absl::AnyInvocable<void()> work;  // enqueues the pass that is ready; null: submit() launches it
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
