#include "rondo/tests/fake_cuda/timeline.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "rondo/runtime/base/error.h"

namespace rondo::fake_cuda {
namespace {

enum class Engine { kCompute, kCollectives, kFromHost, kToHost };

Engine engine_of(const Enqueued& what) {
  if (what.kind == Enqueued::Kind::kCollective) return Engine::kCollectives;
  if (what.kind == Enqueued::Kind::kCopy && what.name == "host to device") return Engine::kFromHost;
  if (what.kind == Enqueued::Kind::kCopy && what.name == "device to host") return Engine::kToHost;
  return Engine::kCompute;
}

struct Queued {
  const TimedWork* work;
  double enqueued;
};
struct Queue {
  std::deque<Queued> items;
  double time = 0;            // when its last work has ended
  std::vector<size_t> order;  // its entries in the timeline
  size_t entered = 0;         // so many of them were enqueued
};
// A thread that enqueues and waits.
struct Host {
  std::vector<size_t> entries;
  size_t next = 0;
  double time = 0;
};

struct Process {
  explicit Process(const Timeline& entries) : timeline(entries) {
    for (size_t i = 0; i < entries.size(); ++i) {
      hosts[entries[i].thread].entries.push_back(i);
      if (entries[i].kind != TimedWork::Kind::kHostWait) streams[entries[i].stream].order.push_back(i);
      if (entries[i].kind == TimedWork::Kind::kRecord) recorded.insert(entries[i].event);
    }
  }
  const Timeline& timeline;
  std::map<int, Host> hosts;
  std::map<size_t, Queue> streams;
  std::set<uint64_t> recorded;
  std::map<uint64_t, double> events;  // by record: when it was reached
  std::map<std::pair<int, Engine>, double> busy_until, busy;
};

// A piece of work, or a collective with its counterparts, that could run next.
struct Candidate {
  double start = std::numeric_limits<double>::infinity();
  std::vector<std::pair<Process*, Queue*>> parts;
};

class Schedule {
 public:
  Schedule(const std::vector<Timeline>& timelines, const Rates& rates) : rates_(rates) {
    for (const Timeline& timeline : timelines) processes_.emplace_back(timeline);
    for (Process& process : processes_)
      for (const TimedWork& work : process.timeline)
        if (is_collective(work)) ++ranks_[key_of(work)];
  }

  Makespan run() {
    for (;;) {
      bool some = false;
      for (Process& process : processes_)
        for (auto& [thread, host] : process.hosts) some |= advance(process, host);
      if (pass_events() || some) continue;
      const Candidate next = best();
      if (next.parts.empty()) break;
      begin(next);
    }
    Makespan result;
    for (Process& process : processes_) {
      for (const auto& [thread, host] : process.hosts) {
        if (host.next < host.entries.size()) throw Error("makespan: a host waits for an event that never comes");
        result.seconds = std::max(result.seconds, host.time);
      }
      for (const auto& [number, queue] : process.streams) {
        if (!queue.items.empty()) throw Error("makespan: a stream waits for an event or a rank that never comes");
        result.seconds = std::max(result.seconds, queue.time);
      }
      for (const auto& [engine, seconds] : process.busy) {
        double& most = engine.second == Engine::kCollectives ? result.communicating : result.computing;
        if (engine.second == Engine::kCollectives || engine.second == Engine::kCompute) most = std::max(most, seconds);
      }
    }
    return result;
  }

 private:
  using Key = std::pair<uint64_t, uint64_t>;
  static Key key_of(const TimedWork& work) { return {work.what.communicator, work.what.sequence}; }
  static bool is_collective(const TimedWork& work) {
    return work.kind == TimedWork::Kind::kWork && work.what.kind == Enqueued::Kind::kCollective;
  }

  // The host enqueues until it has to wait. True if it did something.
  bool advance(Process& process, Host& host) const {
    const size_t began = host.next;
    for (; host.next < host.entries.size(); ++host.next) {
      const size_t entry = host.entries[host.next];
      const TimedWork& work = process.timeline[entry];
      Queue& queue = process.streams[work.stream];
      if (work.kind != TimedWork::Kind::kHostWait) {
        if (queue.order[queue.entered] != entry) break;  // another thread's work comes before it
        ++queue.entered;
        host.time += rates_.enqueue;
        queue.items.push_back({&work, host.time});
      } else if (work.event == 0) {
        if (!queue.items.empty()) break;
        host.time = std::max(host.time, queue.time);
      } else if (const std::optional<double> reached = reached_at(process, work.event)) {
        host.time = std::max(host.time, *reached);
      } else {
        break;
      }
    }
    return host.next > began;
  }
  // Nothing: it is yet to come. What was recorded before the timeline began was reached then.
  static std::optional<double> reached_at(const Process& process, uint64_t event) {
    if (!process.recorded.contains(event)) return 0;
    const auto found = process.events.find(event);
    return found == process.events.end() ? std::nullopt : std::optional(found->second);
  }

  // Events at the heads of streams. True if there were some.
  bool pass_events() {
    bool some = false;
    for (Process& process : processes_)
      for (auto& [number, queue] : process.streams)
        while (!queue.items.empty()) {
          const auto [work, enqueued] = queue.items.front();
          if (work->kind == TimedWork::Kind::kRecord) {
            queue.time = std::max(queue.time, enqueued);
            process.events[work->event] = queue.time;
          } else if (work->kind == TimedWork::Kind::kWait) {
            const std::optional<double> reached = reached_at(process, work->event);
            if (!reached) break;
            queue.time = std::max(queue.time, *reached);
          } else {
            break;
          }
          queue.items.pop_front();
          some = true;
        }
    return some;
  }

  static double ready_at(Process& process, const Queue& queue) {
    const auto [work, enqueued] = queue.items.front();
    return std::max({queue.time, enqueued, process.busy_until[{work->device, engine_of(work->what)}]});
  }

  // What can begin first; of two, what was enqueued first.
  Candidate best() {
    Candidate best;
    std::map<Key, Candidate> collectives;
    for (Process& process : processes_)
      for (auto& [number, queue] : process.streams) {
        if (queue.items.empty() || queue.items.front().work->kind != TimedWork::Kind::kWork) continue;
        const TimedWork& work = *queue.items.front().work;
        const double start = ready_at(process, queue);
        if (!is_collective(work)) {
          if (start < best.start) best = {start, {{&process, &queue}}};
          continue;
        }
        Candidate& together = collectives[key_of(work)];
        together.start = together.parts.empty() ? start : std::max(together.start, start);
        together.parts.emplace_back(&process, &queue);
      }
    for (auto& [key, together] : collectives)
      if (static_cast<int>(together.parts.size()) == ranks_.at(key) && together.start < best.start)
        best = std::move(together);
    return best;
  }

  void begin(const Candidate& candidate) {
    double seconds = 0;
    for (const auto& [process, queue] : candidate.parts)
      seconds = std::max(seconds, seconds_of(*queue->items.front().work, rates_));
    for (const auto& [process, queue] : candidate.parts) {
      const TimedWork& work = *queue->items.front().work;
      const std::pair<int, Engine> engine{work.device, engine_of(work.what)};
      process->busy_until[engine] = queue->time = candidate.start + seconds;
      process->busy[engine] += seconds;
      queue->items.pop_front();
    }
  }

  const Rates& rates_;
  std::deque<Process> processes_;
  std::map<Key, int> ranks_;
};

}  // namespace

double seconds_of(const TimedWork& work, const Rates& rates) {
  const Enqueued& what = work.what;
  const auto declared = static_cast<double>(work.declared);
  switch (what.kind) {
    case Enqueued::Kind::kCollective: return rates.collective + static_cast<double>(what.bytes) / rates.link;
    case Enqueued::Kind::kProduct:
      return std::max({rates.launch, what.flops / rates.products, declared / rates.memory});
    case Enqueued::Kind::kKernel: {
      const auto measured = rates.kernel_bytes.find(what.name);
      const double bytes = measured != rates.kernel_bytes.end() ? measured->second
                           : work.declared > 0                  ? declared
                                               : rates.thread_bytes * static_cast<double>(what.threads);
      return std::max(rates.launch, bytes / rates.memory);
    }
    default: {
      const bool local = engine_of(what) == Engine::kCompute;
      return std::max(rates.launch, (local ? declared / rates.memory : static_cast<double>(what.bytes) / rates.host));
    }
  }
}

Makespan makespan(const std::vector<Timeline>& processes, const Rates& rates) {
  return Schedule(processes, rates).run();
}

}  // namespace rondo::fake_cuda
