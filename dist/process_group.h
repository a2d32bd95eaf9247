// ProcessGroup: the processes of a job, and what they compute together.
//
//   const auto group = dist::ProcessGroup::connect(dist::Environment::from_process());
//   dist::Work sum = group->all_reduce(gradients, dist::ReduceOp::kAverage, "gradients of step 3");
//   ...                                     // runs meanwhile, on the communication thread
//   sum.wait();                             // gradients is now the average, with the same bits on every rank
//
// Every rank calls the same collectives in the same order; they run in that order. Before a byte of a tensor moves, the
// ranks compare what they are about to do. If they do not agree, that collective throws MismatchError on every rank: it
// names the first rank that differs and what that rank calls. TimeoutError names a rank that does not come in time,
// ConnectionError a rank that has ended. After an error the group cannot be used any more: every later collective fails
// at once and repeats the first error's message.
//
// Destruction is bounded. Collectives that have not begun fail. The destructor waits up to 2 s for a collective that
// moves data already, not at all while an exception unwinds, and up to 5 s in the rank that keeps the store (no
// launcher), so that the others can ask the store what went wrong.
//
// Thread safety: one thread issues collectives; Work may be waited for anywhere. A tensor in flight belongs to its
// collective, which keeps it alive: neither read nor write it before wait().
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/dist/environment.h"
#include "rondo/dist/errors.h"
#include "rondo/dist/socket.h"
#include "rondo/runtime/tensor.h"

#pragma GCC visibility push(default)
namespace rondo::dist {

enum class ReduceOp : uint8_t { kSum, kAverage };

// A collective that was issued. Copies refer to the same collective. Destroying a Work does not stop it.
class Work {
 public:
  enum class Outcome : uint8_t { kPending, kDone, kLate, kLost, kMismatch };
  struct State {
    std::mutex mutex;
    std::condition_variable done_changed;
    Outcome outcome = Outcome::kPending;
    std::string error;
    void finish(Outcome with, std::string error);
  };
  Work() = default;  // refers to no collective: is_done() is true
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}
  // Returns when the collective is done. Throws its error: TimeoutError, ConnectionError or MismatchError.
  void wait() const;
  bool is_done() const;

 private:
  std::shared_ptr<State> state_;
};

struct GroupOptions {
  // How long a rank may be behind the others, in connecting and in every collective.
  Milliseconds timeout{300'000};
};

// True if this Rondo was built with Gloo: without it a group has one process.
bool gloo_available();

class ProcessGroup {
 public:
  // Meets the other processes of the job. Throws DistError; TimeoutError names the ranks that did not come.
  static std::shared_ptr<ProcessGroup> connect(const Environment& environment, GroupOptions options = {});
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  // Whose tensors this group takes, beside those in host memory. Nothing: only those.
  virtual std::optional<Device> device() const { return {}; }

  // Collectives. Tensors are dense, on the CPU, and have the same shape and dtype on every rank. `name` is for
  // messages, and the ranks compare it (its first 80 bytes). A tensor that does not fit throws Error here.

  // In place. dtypes: f64, f32, bf16, f16; i64 and i32 for kSum only. bf16 and f16 are added and divided in f32, and
  // rounded once.
  virtual Work all_reduce(const Tensor& tensor, ReduceOp op, std::string_view name) = 0;
  // Overwrites `tensor` with the tensor of rank `root`. Any dtype.
  virtual Work broadcast(const Tensor& tensor, int root, std::string_view name) = 0;
  // out (world_size, ...) receives `in` (...) of every rank. Any dtype.
  virtual Work all_gather(const Tensor& out, const Tensor& in, std::string_view name) = 0;
  // out (...) receives the sum or average over the ranks of row `rank` of `in` (world_size, ...). dtypes and rounding
  // as all_reduce. Sums are made in an order of their own: bits may differ from all_reduce's, not from run to run.
  virtual Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op, std::string_view name) = 0;
  // Done when every rank has called it.
  virtual Work barrier(std::string_view name) = 0;
  std::vector<std::string> check_sequence(std::string_view text, std::string_view name, int64_t reserved = 0);

 protected:
  ProcessGroup() = default;
};

// Returns the `text` of every rank, in the order of the ranks. Waits. Each text is cut to `max_bytes`.
std::vector<std::string> gather_texts(ProcessGroup& group, std::string_view text, int64_t max_bytes,
                                      std::string_view name);

// The checks that every group makes before it takes a tensor. They throw Error.
void check_reducible(const Tensor& tensor, ReduceOp op, std::string_view name,
                     std::string_view collective = "all_reduce");
void check_dense(const Tensor& tensor, std::string_view collective, std::string_view name);
void check_gather(const Tensor& out, const Tensor& in, int world_size, std::string_view name);
void check_scatter(const Tensor& out, const Tensor& in, int world_size, ReduceOp op, std::string_view name);

}  // namespace rondo::dist
#pragma GCC visibility pop
