// NCCL's functions, as nccl.h declares them: START HERE for tests/fake_nccl/. The library is that of the fake driver
// (tests/fake_cuda/), found under a second name (a link), so that collectives are work of its streams.
//
//   RONDO_CUDA_PATH=build/release/fake_cuda RONDO_FAKE_CUDA=7:2:1024 RONDO_FAKE_NCCL=peers=error  program
//
// Ranks are processes of this machine, or communicators of one process on several fake devices. They meet through
// shared memory (clique.h). A collective is enqueued, and runs late: in the fake's random order, once all ranks have
// come to it (communicator.h). faults.h lists what can go wrong on demand.
//
// Each refusal names what it follows: [header] nccl.h; [manual] NCCL's user guide, by its page; [library] the real
// library's source. What the real library would let pass and do wrongly, or leaves undefined, is misuse, and ends the
// process. Calls of ranks that do not fit each other are no error in the real library, and none here: they wait for
// ever or compute garbage.
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "rondo/tests/fake_nccl/communicator.h"

using namespace rondo::fake_nccl;
using rondo::fake_cuda::context_stack;
using rondo::fake_cuda::fake;
using rondo::fake_cuda::Needs;
using rondo::fake_cuda::number;
using rondo::fake_cuda::StreamPtr;
using CudaResult = rondo::cuda::Result;

namespace {

Status misuse(const std::string& what) {
  static_cast<void>(fake().misuse(CudaResult::kInvalidValue, what));
  return Status::kInvalidArgument;
}

// [manual] "Group Calls": calls between start and end take effect at the end.
struct Group {
  int depth = 0;
  std::vector<std::pair<Communicator*, Communicator::Call>> calls;
  std::vector<Communicator*> coming_up;
};
Group& group() {
  thread_local Group group;
  return group;
}

#define NCCL_CALL(needs)                                     \
  const rondo::fake_cuda::Call call(__func__, Needs::needs); \
  if (call.result() != CudaResult::kSuccess) return Status::kUnhandledCudaError

#define NCCL_CHECK(expression) \
  if (const Status checked = expression; checked != Status::kSuccess) return checked

Status require_alive(const Communicator* communicator) {
  if (communicator == nullptr || !Communicators::instance().knows(communicator))
    return misuse("no communicator has this handle");
  if (communicator->life() == Communicator::Life::kAborted) return misuse("the communicator is used after its abort");
  if (communicator->life() == Communicator::Life::kDestroyed) return misuse("the communicator was destroyed");
  return Status::kSuccess;
}

// [library] ncclCommEnsureReady: a call in the meantime is an invalid argument; an error stays.
Status require_ready(const Communicator* communicator) {
  NCCL_CHECK(require_alive(communicator));
  const Status state = communicator->state_now();
  if (state == Status::kInProgress)
    return misuse(communicator->is_up() ? "the call before it has not returned ncclSuccess yet: nothing waited for that"
                                        : "the communicator is still being initialised");
  return state;
}
Status require_in_use(const Communicator* communicator) {
  NCCL_CHECK(require_alive(communicator));
  return communicator->life() == Communicator::Life::kInUse
             ? require_ready(communicator)
             : misuse("the communicator was finalized");  // [manual] ncclCommFinalize
}

// The host waits until a communicator has come up or failed.
Status wait_for(Communicator& communicator) {
  Status state = Status::kInProgress;
  fake().wait_for_others([&] {
    state = communicator.state();
    return state != Status::kInProgress || communicator.life() != Communicator::Life::kInUse;
  });
  return state;
}

Status come_up(rondo::fake_nccl::Communicator** result, Communicator* made) {
  *result = made;
  if (group().depth > 0) {
    group().coming_up.push_back(made);
    return Status::kSuccess;
  }
  if (!made->blocking()) return Status::kInProgress;
  const Status state = wait_for(*made);
  if (state == Status::kSuccess) return state;
  made->abort();
  *result = nullptr;
  return state;
}

// [manual] ncclCommInitRankConfig. Without a configuration: blocking.
Status read_config(const Config* config, bool* blocking) {
  *blocking = true;
  if (config == nullptr) return Status::kSuccess;
  if (config->magic != kConfigMagic || config->size < offsetof(Config, cga_cluster_size))
    return misuse("the configuration was not initialised with NCCL_CONFIG_INITIALIZER");
  if (config->blocking != kUndefined && config->blocking != 0 && config->blocking != 1)
    return misuse("blocking is 0 or 1, not " + number(config->blocking));
  *blocking = config->blocking != 0;
  return Status::kSuccess;
}

Status enqueue(const Collective& collective, const void* send, void* receive, Communicator* communicator,
               StreamPtr stream) {
  NCCL_CHECK(require_in_use(communicator));
  if (static_cast<int>(collective.dtype) < 0 || static_cast<int>(collective.dtype) >= kDataTypes)
    return misuse("unknown type " + number(static_cast<int>(collective.dtype)));
  if (static_cast<int>(collective.reduction) < 0 || static_cast<int>(collective.reduction) >= kReductions)
    return misuse("unknown reduction " + number(static_cast<int>(collective.reduction)));
  if (collective.kind == Kind::kBroadcast && (collective.root < 0 || collective.root >= communicator->ranks()))
    return misuse("the root is " + number(collective.root) + " of " + number(communicator->ranks()) + " ranks");
  if (stream == nullptr || !fake().handles.contains(stream) || !stream->alive)
    return misuse("no stream has this handle, or it was destroyed");
  if (collective.count == 0) return Status::kSuccess;  // [library] ncclEnqueueCheck: nothing is enqueued
  const Communicator::Call made{collective, send, receive, stream};
  if (const std::string wrong = communicator->misuse_of(made); !wrong.empty()) return misuse(wrong);
  Group& open = group();
  if (open.depth > 0) {
    for (const auto& [other, earlier] : open.calls)
      if (other == communicator && earlier.stream != stream)
        return misuse("one group uses a communicator on two streams, which the fake does not know");
    open.calls.emplace_back(communicator, made);
    return Status::kSuccess;
  }
  // [header] Collectives: "each call has to be done from a different thread or process, or need to use Group
  // Semantics".
  communicator->caller = std::this_thread::get_id();
  if (const Communicator* other = Communicators::instance().other_of_this_thread(*communicator); other != nullptr)
    return misuse("this thread calls for ranks " + number(other->rank()) + " and " + number(communicator->rank()) +
                  " of a communicator, outside of a group");
  return communicator->enqueue({made});
}

}  // namespace

// ---- Version, errors

FAKE_EXPORT Status ncclGetVersion(int* version) {
  NCCL_CALL(kNothing);
  if (version == nullptr) return misuse("version is null");
  *version = Communicators::instance().behaviour().version;
  return Status::kSuccess;
}
FAKE_EXPORT const char* ncclGetErrorString(Status status) {
  switch (status) {
    case Status::kSuccess: return "no error";
    case Status::kUnhandledCudaError: return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case Status::kSystemError: return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case Status::kInternalError: return "internal error - please report this issue to the NCCL developers";
    case Status::kInvalidArgument: return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case Status::kInvalidUsage: return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case Status::kRemoteError: return "remote process exited or there was a network error";
    case Status::kInProgress: return "NCCL operation in progress";
  }
  return "unknown result code";
}
// [manual] ncclGetLastError: the argument may be null.
FAKE_EXPORT const char* ncclGetLastError(Communicator* communicator) {
  const rondo::fake_cuda::Call call(__func__, Needs::kNothing);
  static std::string text;
  text = Communicators::instance().knows(communicator) ? communicator->last_error() : "";
  return text.c_str();
}

// ---- Communicators

FAKE_EXPORT Status ncclGetUniqueId(UniqueId* id) {
  NCCL_CALL(kNothing);
  if (id == nullptr) return misuse("the id is null");
  *id = Clique::make_place().id();
  return Status::kSuccess;
}

FAKE_EXPORT Status ncclCommInitRankConfig(Communicator** communicator, int ranks, UniqueId id, int rank,
                                          Config* config) {
  NCCL_CALL(kInit);
  bool blocking = true;
  NCCL_CHECK(read_config(config, &blocking));
  if (communicator == nullptr) return misuse("the communicator is null");
  if (ranks < 1 || ranks > kMostRanks || rank < 0 || rank >= ranks)
    return misuse("rank " + number(rank) + " of " + number(ranks));
  if (context_stack().empty() || context_stack().back() == nullptr) return misuse("no context is current");
  const MeetingPlace place = MeetingPlace::of(id);
  if (!place.is_one()) return misuse("the unique id is none of ncclGetUniqueId()");
  Communicator* made = Communicators::instance().make(context_stack().back(), ranks, rank, blocking);
  made->join(place);
  return come_up(communicator, made);
}
FAKE_EXPORT Status ncclCommInitRank(Communicator** communicator, int ranks, UniqueId id, int rank) {
  return ncclCommInitRankConfig(communicator, ranks, id, rank, nullptr);
}

// The new communicator has its parent's device. Whether the parent may be used before it is up, is not said: it may
// not.
FAKE_EXPORT Status ncclCommSplit(Communicator* communicator, int color, int key, Communicator** made, Config* config) {
  NCCL_CALL(kInit);
  NCCL_CHECK(require_in_use(communicator));
  if (made == nullptr) return misuse("the new communicator is null");
  if (color < kNoColor) return misuse("the color is " + number(color));  // [manual] ncclCommSplit
  bool blocking = communicator->blocking();
  if (config != nullptr && config->blocking != kUndefined) NCCL_CHECK(read_config(config, &blocking));
  const uint64_t split = communicator->say_color(color, key);
  *made = nullptr;
  if (color == kNoColor) return Status::kSuccess;
  Communicator* child = Communicators::instance().make(&communicator->context(), communicator->ranks(),
                                                       communicator->rank(), blocking);
  child->join_split(*communicator, split, color);
  return come_up(made, child);
}

FAKE_EXPORT Status ncclCommGetAsyncError(Communicator* communicator, Status* error) {
  NCCL_CALL(kInit);
  NCCL_CHECK(require_alive(communicator));
  if (error == nullptr) return misuse("the error is null");
  *error = communicator->state();
  return Status::kSuccess;
}

FAKE_EXPORT Status ncclCommFinalize(Communicator* communicator) {
  NCCL_CALL(kInit);
  NCCL_CHECK(require_in_use(communicator));
  communicator->finalize();
  if (!communicator->blocking()) return communicator->state_now();
  fake().wait_for_others(
      [&] { return communicator->is_quiet() || communicator->life() == Communicator::Life::kAborted; });
  return Status::kSuccess;
}

// [manual] ncclCommDestroy: what was not finalized is finalized first, "as an intra-node collective call": it waits for
// the other ranks' processes.
FAKE_EXPORT Status ncclCommDestroy(Communicator* communicator) {
  NCCL_CALL(kInit);
  if (communicator == nullptr) return Status::kSuccess;
  NCCL_CHECK(require_alive(communicator));
  if (communicator->life() == Communicator::Life::kInUse) {
    NCCL_CHECK(require_ready(communicator));
    communicator->finalize();
  }
  fake().wait_for_others(
      [&] { return communicator->is_quiet() || communicator->life() == Communicator::Life::kAborted; });
  communicator->destroy();
  return Status::kSuccess;
}
FAKE_EXPORT Status ncclCommAbort(Communicator* communicator) {
  NCCL_CALL(kInit);
  if (communicator == nullptr) return Status::kSuccess;
  NCCL_CHECK(require_alive(communicator));
  communicator->abort();
  return Status::kSuccess;
}

FAKE_EXPORT Status ncclCommCount(const Communicator* communicator, int* count) {
  NCCL_CALL(kInit);
  NCCL_CHECK(require_ready(communicator));
  *count = communicator->ranks();
  return Status::kSuccess;
}
FAKE_EXPORT Status ncclCommCuDevice(const Communicator* communicator, int* device) {
  NCCL_CALL(kInit);
  NCCL_CHECK(require_ready(communicator));
  *device = communicator->device();
  return Status::kSuccess;
}
FAKE_EXPORT Status ncclCommUserRank(const Communicator* communicator, int* rank) {
  NCCL_CALL(kInit);
  NCCL_CHECK(require_ready(communicator));
  *rank = communicator->rank();
  return Status::kSuccess;
}

// ---- Groups

FAKE_EXPORT Status ncclGroupStart() {
  NCCL_CALL(kNothing);
  ++group().depth;
  return Status::kSuccess;
}
FAKE_EXPORT Status ncclGroupEnd() {
  NCCL_CALL(kNothing);
  if (group().depth == 0) return misuse("there is no ncclGroupStart() to this end");
  if (--group().depth > 0) return Status::kSuccess;
  Group ended = std::exchange(group(), {});
  Status result = Status::kSuccess;
  const auto note = [&](Status status) {
    if (result == Status::kSuccess || result == Status::kInProgress)
      result = status == Status::kSuccess ? result : status;
  };
  for (Communicator* communicator : ended.coming_up)
    note(communicator->blocking() ? wait_for(*communicator) : Status::kInProgress);
  while (!ended.calls.empty()) {  // by communicator, in its order
    Communicator* const communicator = ended.calls.front().first;
    std::vector<Communicator::Call> calls;
    std::erase_if(ended.calls, [&](const auto& entry) {
      if (entry.first == communicator) calls.push_back(entry.second);
      return entry.first == communicator;
    });
    NCCL_CHECK(require_in_use(communicator));
    note(communicator->enqueue(calls));
  }
  return result;
}

// ---- Collectives

FAKE_EXPORT Status ncclAllReduce(const void* send, void* receive, size_t count, DataType dtype, Reduction reduction,
                                 Communicator* communicator, StreamPtr stream) {
  NCCL_CALL(kInit);
  return enqueue({.kind = Kind::kAllReduce, .dtype = dtype, .reduction = reduction, .count = count}, send, receive,
                 communicator, stream);
}
FAKE_EXPORT Status ncclReduceScatter(const void* send, void* receive, size_t count, DataType dtype, Reduction reduction,
                                     Communicator* communicator, StreamPtr stream) {
  NCCL_CALL(kInit);
  return enqueue({.kind = Kind::kReduceScatter, .dtype = dtype, .reduction = reduction, .count = count}, send, receive,
                 communicator, stream);
}
FAKE_EXPORT Status ncclAllGather(const void* send, void* receive, size_t count, DataType dtype,
                                 Communicator* communicator, StreamPtr stream) {
  NCCL_CALL(kInit);
  return enqueue({.kind = Kind::kAllGather, .dtype = dtype, .count = count}, send, receive, communicator, stream);
}
FAKE_EXPORT Status ncclBroadcast(const void* send, void* receive, size_t count, DataType dtype, int root,
                                 Communicator* communicator, StreamPtr stream) {
  NCCL_CALL(kInit);
  return enqueue({.kind = Kind::kBroadcast, .dtype = dtype, .root = root, .count = count}, send, receive, communicator,
                 stream);
}
