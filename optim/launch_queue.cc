#include "rondo/optim/launch_queue.h"

#include <utility>

#include "rondo/optim/host_code.h"
#include "rondo/optim/step_report.h"

namespace rondo::optim {

void LaunchQueue::start(Device device) {
  device_ = device;
  keeps_ = true;
  entries_.clear();
  held_.clear();
  n_tables_ = 0;
}

ForeachTable& LaunchQueue::table() {
  if (n_tables_ == tables_.size()) tables_.emplace_back();
  ForeachTable& table = tables_[n_tables_++];
  table.clear();
  return table;
}

void LaunchQueue::add(std::shared_ptr<const Foreach> pass, const compile::Condition& when, bool eager) {
  if (keeps_) entries_.push_back({std::move(pass), n_tables_ - 1, when, eager, nullptr});
  else launch(device_, pass, tables_[n_tables_ - 1], when, eager);
}

void LaunchQueue::add(const std::shared_ptr<const Foreach>& pass, const Decision* decision, bool eager) {
  if (const std::shared_ptr<Foreach>& rest = pass->if_skipped(); rest != nullptr)
    add(rest, compile::Condition{&decision->updates, 0}, eager);
  add(pass, compile::Condition{&decision->updates, 1}, eager);
}

void LaunchQueue::add(absl::AnyInvocable<void()> work) {
  if (keeps_) entries_.push_back({nullptr, 0, {}, false, std::move(work)});
  else work();
}

void LaunchQueue::make_ready() {
  if (runs_host_code(device_)) return;  // launches of host code need no preparation
  for (Entry& entry : entries_)
    if (entry.pass != nullptr) entry.work = entry.pass->ready(tables_[entry.table], entry.when);
}

void LaunchQueue::submit() {
  for (Entry& entry : entries_) {
    if (entry.work != nullptr) entry.work();
    else launch(device_, entry.pass, tables_[entry.table], entry.when, entry.eager);
  }
  start(device_);
}

}  // namespace rondo::optim
