#include "rondo/tests/fake_nccl/rank_scenarios.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/cuda/device_state.h"
#include "rondo/runtime/tensor/tensor.h"
#include "rondo/tests/cuda/kernels.h"

namespace rondo::test {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr DataType kAll[] = {DataType::kInt8,    DataType::kUint8,   DataType::kInt32,   DataType::kUint32,
                             DataType::kInt64,   DataType::kUint64,  DataType::kFloat16, DataType::kFloat32,
                             DataType::kFloat64, DataType::kBfloat16};

bool is_unsigned(DataType dtype) {
  return dtype == DataType::kUint8 || dtype == DataType::kUint32 || dtype == DataType::kUint64;
}
bool is_float(DataType dtype) { return static_cast<int>(dtype) >= static_cast<int>(DataType::kFloat16); }

// ---- Elements of any type as doubles; the numbers of these tests are small.

template <class T> void put(std::vector<std::byte>& bytes, double value) {
  const T element = static_cast<T>(value);
  const auto* from = reinterpret_cast<const std::byte*>(&element);
  bytes.insert(bytes.end(), from, from + sizeof(T));
}
template <class T> double get(const std::byte* bytes, size_t i) {
  T element;
  std::memcpy(static_cast<void*>(&element), bytes + i * sizeof(T), sizeof(T));
  return static_cast<double>(element);
}
// f of the C++ type of `dtype`.
template <class F> auto with_type(DataType dtype, F f) {
  switch (dtype) {
    case DataType::kInt8: return f(int8_t{});
    case DataType::kUint8: return f(uint8_t{});
    case DataType::kInt32: return f(int32_t{});
    case DataType::kUint32: return f(uint32_t{});
    case DataType::kInt64: return f(int64_t{});
    case DataType::kUint64: return f(uint64_t{});
    case DataType::kFloat16: return f(Float16{});
    case DataType::kFloat64: return f(double{});
    case DataType::kBfloat16: return f(BFloat16{});
    default: return f(float{});
  }
}
size_t size_of_type(DataType dtype) {
  return with_type(dtype, [](auto type) { return sizeof type; });
}

double value_of(DataType dtype, int rank, size_t i) {
  const auto n = static_cast<int>((i * 7 + static_cast<size_t>(rank) * 3) % 5);
  return is_unsigned(dtype) ? n % 3 : n - 2;
}

// ---- The expected result, in f64 from the definition

double reduced(DataType dtype, Reduction reduction, int ranks, size_t i) {
  double total = value_of(dtype, 0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = value_of(dtype, rank, i);
    switch (reduction) {
      case Reduction::kProd: total *= value; break;
      case Reduction::kMax: total = std::max(total, value); break;
      case Reduction::kMin: total = std::min(total, value); break;
      default: total += value;
    }
  }
  if (reduction != Reduction::kAvg) return total;
  return is_float(dtype) ? total / ranks : std::trunc(total / ranks);
}
// How far an average may be off: its factor and its result are rounded to the type.
double tolerance(DataType dtype, Reduction reduction, int ranks) {
  if (reduction != Reduction::kAvg || !is_float(dtype) || (ranks & (ranks - 1)) == 0) return 0;
  switch (dtype) {
    case DataType::kBfloat16: return 2.0 * ranks * std::ldexp(1, -8);
    case DataType::kFloat16: return 2.0 * ranks * std::ldexp(1, -11);
    case DataType::kFloat32: return 2.0 * ranks * std::ldexp(1, -24);
    default: return 2.0 * ranks * std::ldexp(1, -53);
  }
}

// ---- Collectives on tensors of bytes

Tensor on_device(const std::vector<std::byte>& bytes, Device device) {
  std::vector<uint8_t> plain(bytes.size());
  std::memcpy(plain.data(), bytes.data(), bytes.size());
  return Tensor::from(plain, {static_cast<int64_t>(plain.size())}, device);
}
void* data(const Tensor& tensor, size_t offset = 0) {
  return static_cast<std::byte*>(tensor.storage().data()) + offset;
}

class Collectives {
 public:
  Collectives(Rank& self, NcclComm communicator) : self_(self), communicator_(communicator) {}
  uint64_t hash() const { return hash_; }
  bool right() const { return right_; }

  void all(DataType dtype, size_t n, bool in_place) {
    for (const Reduction reduction :
         {Reduction::kSum, Reduction::kProd, Reduction::kMax, Reduction::kMin, Reduction::kAvg}) {
      all_reduce(dtype, reduction, n, in_place);
      reduce_scatter(dtype, reduction, n, in_place);
    }
    all_gather(dtype, n, in_place);
    for (int root = 0; root < self_.ranks; ++root) broadcast(dtype, root, n, in_place);
  }

 private:
  Tensor own(DataType dtype, size_t n) const {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < n; ++i)
      with_type(dtype, [&](auto type) { put<decltype(type)>(bytes, value_of(dtype, self_.rank, i)); });
    return on_device(bytes, self_.device);
  }
  Tensor zeros(DataType dtype, size_t n) const {
    return on_device(std::vector<std::byte>(n * size_of_type(dtype)), self_.device);
  }
  template <class Call> void enqueue(Call call_it) {
    join(self_.device, Stream::kCompute, Stream::kCommunication);
    call(self_.device, Stream::kCommunication, call_it);
    if (settled(communicator_) != Status::kSuccess) throw Error(nccl().last_error(communicator_));
    join(self_.device, Stream::kCommunication, Stream::kCompute);
  }
  template <class Expected> void expect(const char* what, DataType dtype, const Tensor& got, double off, Expected f) {
    const std::vector<uint8_t> bytes = got.to_vector<uint8_t>();
    for (const uint8_t byte : bytes) hash_ = (hash_ ^ byte) * 1099511628211u;
    for (size_t i = 0; i < bytes.size() / size_of_type(dtype); ++i) {
      const double element = with_type(
          dtype, [&](auto type) { return get<decltype(type)>(reinterpret_cast<const std::byte*>(bytes.data()), i); });
      if (std::abs(element - f(i)) <= off) continue;
      std::printf("%s of type %d: element %zu is %g, not %g\n", what, static_cast<int>(dtype), i, element, f(i));
      right_ = false;
      return;
    }
  }

  void all_reduce(DataType dtype, Reduction reduction, size_t n, bool in_place) {
    const Tensor x = own(dtype, n), y = in_place ? x : zeros(dtype, n);
    enqueue([&](cuda::StreamPtr stream) {
      return nccl().all_reduce(data(x), data(y), n, dtype, reduction, communicator_, stream);
    });
    expect("all_reduce", dtype, y, tolerance(dtype, reduction, self_.ranks),
           [&](size_t i) { return reduced(dtype, reduction, self_.ranks, i); });
  }
  void reduce_scatter(DataType dtype, Reduction reduction, size_t n, bool in_place) {
    const auto ranks = static_cast<size_t>(self_.ranks), first = static_cast<size_t>(self_.rank) * n;
    const Tensor x = own(dtype, n * ranks), part = zeros(dtype, n);
    void* const to = in_place ? data(x, first * size_of_type(dtype)) : data(part);
    enqueue([&](cuda::StreamPtr stream) {
      return nccl().reduce_scatter(data(x), to, n, dtype, reduction, communicator_, stream);
    });
    const auto bytes = static_cast<int64_t>(n * size_of_type(dtype));
    expect("reduce_scatter", dtype, in_place ? x.slice(0, {self_.rank * bytes, (self_.rank + 1) * bytes}) : part,
           tolerance(dtype, reduction, self_.ranks),
           [&](size_t i) { return reduced(dtype, reduction, self_.ranks, first + i); });
  }
  void all_gather(DataType dtype, size_t n, bool in_place) {
    const auto ranks = static_cast<size_t>(self_.ranks);
    const Tensor y = zeros(dtype, n * ranks), x = own(dtype, n);
    const auto bytes = static_cast<int64_t>(n * size_of_type(dtype));
    if (in_place) y.slice(0, {self_.rank * bytes, (self_.rank + 1) * bytes}).copy_(x);
    const void* const from = in_place ? data(y, static_cast<size_t>(self_.rank * bytes)) : data(x);
    enqueue([&](cuda::StreamPtr stream) { return nccl().all_gather(from, data(y), n, dtype, communicator_, stream); });
    expect("all_gather", dtype, y, 0, [&](size_t i) { return value_of(dtype, static_cast<int>(i / n), i % n); });
  }
  void broadcast(DataType dtype, int root, size_t n, bool in_place) {
    const Tensor x = own(dtype, n), y = in_place ? x : zeros(dtype, n);
    enqueue([&](cuda::StreamPtr stream) {
      return nccl().broadcast(self_.rank == root || in_place ? data(x) : nullptr, data(y), n, dtype, root,
                              communicator_, stream);
    });
    expect("broadcast", dtype, y, 0, [&](size_t i) { return value_of(dtype, root, i); });
  }

  Rank& self_;
  NcclComm communicator_;
  uint64_t hash_ = 1469598103934665603u;
  bool right_ = true;
};

// ---- Communicators

NcclComm connect(Rank& self, bool blocking = false) {
  const cuda::ContextScope scope(cuda::device_state(self.device.index));
  NcclComm communicator = nullptr;
  Config config;
  config.blocking = blocking ? 1 : 0;
  check(nccl().init_rank_config(&communicator, self.ranks, self.id, self.rank, &config));
  if (!blocking)
    if (const Status state = settled(communicator); state != Status::kSuccess) {
      const std::string why = nccl().last_error(communicator);
      nccl().abort(communicator);
      throw Error(std::string(nccl().error_string(state)) + "; " + why);
    }
  return communicator;
}
void finish(NcclComm communicator) {
  check(nccl().finalize(communicator));
  if (settled(communicator) != Status::kSuccess) throw Error("finalize");
  check(nccl().destroy(communicator));
}

bool collectives(Rank& self, bool blocking) {
  const NcclComm communicator = connect(self, blocking);
  Collectives tested(self, communicator);
  for (const DataType dtype : kAll)
    for (const bool in_place : {false, true}) tested.all(dtype, in_place ? 5 : 33, in_place);
  tested.all(DataType::kFloat32, 3000, true);  // beyond a page
  finish(communicator);
  std::printf("hash %016llx\n", static_cast<unsigned long long>(tested.hash()));
  return tested.right();
}

// ---- A training step: each rank's gradients, their average, an update on another stream. All ranks have the same
// parameters afterwards, whatever the orders.
bool steps(Rank& self) {
  const NcclComm communicator = connect(self);
  const cuda::Kernel kernel = self.cuda.kernel("axpy", axpy(), self.device.index);
  const Tensor parameters = Tensor::zeros({700}, {kF32, self.device});
  for (int step = 0; step < 10; ++step) {
    const Tensor gradients = Tensor::full({700}, 0.5f, {kF32, self.device});
    const Tensor seen = Tensor::full({700}, 1.0f + static_cast<float>(self.rank + step), {kF32, self.device});
    launch_axpy(kernel, gradients, seen, 0.75f);
    launch_axpy(kernel, gradients, parameters, 0.125f);
    for (int64_t first = 0; first < 700; first += 350) {  // two buckets
      join(self.device, Stream::kCompute, Stream::kCommunication);
      call(self.device, Stream::kCommunication, [&](cuda::StreamPtr stream) {
        void* const bucket = data(gradients, static_cast<size_t>(first) * 4);
        return nccl().all_reduce(bucket, bucket, 350, DataType::kFloat32, Reduction::kAvg, communicator, stream);
      });
      if (settled(communicator) != Status::kSuccess) return false;
    }
    join(self.device, Stream::kCommunication, Stream::kCompute);
    launch_axpy(kernel, parameters, gradients, -0.1f);
  }
  double expected = 0;
  for (int step = 0; step < 10; ++step)
    expected -= 0.1 * (0.5 + 0.75 * (1 + (self.ranks - 1) / 2.0 + step) + 0.125 * expected);
  const std::vector<float> values = parameters.to_vector<float>();
  uint64_t hash = 1469598103934665603u;
  for (const float value : values) {
    if (std::abs(value - expected) > 1e-4 * std::abs(expected))
      return std::printf("%g, not %g\n", value, expected), false;
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    hash = (hash ^ bits) * 1099511628211u;
  }
  finish(communicator);
  std::printf("hash %016llx\n", static_cast<unsigned long long>(hash));
  return true;
}

// ---- Several communicators: halves of the ranks by color, in reverse order, beside the parent.
bool splits(Rank& self) {
  const NcclComm parent = connect(self);
  NcclComm half = nullptr, none = nullptr;
  const int color = self.rank % 2;
  check(nccl().split(parent, color, -self.rank, &half, nullptr));
  if (settled(half) != Status::kSuccess || settled(parent) != Status::kSuccess) return false;
  int ranks = 0, rank = -1, device = -1;
  check(nccl().count(half, &ranks));
  check(nccl().user_rank(half, &rank));
  check(nccl().device(half, &device));
  const int expected_ranks = (self.ranks + 1 - color) / 2, behind = (self.ranks - 1 - self.rank) / 2;
  if (ranks != expected_ranks || rank != behind || device != self.device.index)
    return std::printf("rank %d of %d on device %d, not %d of %d\n", rank, ranks, device, behind, expected_ranks),
           false;
  const Tensor x = Tensor::full({100}, static_cast<float>(self.rank + 1), {kF32, self.device}),
               y = Tensor::full({100}, 1, {kF32, self.device});
  join(self.device, Stream::kCompute, Stream::kCommunication);
  for (const auto& [communicator, tensor] : {std::pair(half, x), std::pair(parent, y)}) {
    call(self.device, Stream::kCommunication, [&](cuda::StreamPtr stream) {
      return nccl().all_reduce(data(tensor), data(tensor), 100, DataType::kFloat32, Reduction::kSum, communicator,
                               stream);
    });
    if (settled(communicator) != Status::kSuccess) return false;
  }
  join(self.device, Stream::kCommunication, Stream::kCompute);
  float sum = 0;
  for (int other = color; other < self.ranks; other += 2) sum += static_cast<float>(other + 1);
  const float halves = x.to_vector<float>()[99], all = y.to_vector<float>()[99];
  if (halves != sum || all != static_cast<float>(self.ranks))
    return std::printf("%g and %g, not %g and %d\n", halves, all, sum, self.ranks), false;
  // A rank of no color, and one that is alone.
  check(nccl().split(parent, self.rank == 0 ? 0 : fake_nccl::kNoColor, 0, &none, nullptr));
  if (settled(parent) != Status::kSuccess || (none != nullptr) != (self.rank == 0)) return false;
  if (none != nullptr && settled(none) != Status::kSuccess) return false;
  if (none != nullptr) finish(none);
  finish(half);
  finish(parent);
  return true;
}

// ---- Things that go wrong. Prints what the rank sees; a collective that is not over after patience() is aborted.

Milliseconds patience() {
  const char* const text = std::getenv("RONDO_TEST_PATIENCE");  // milliseconds
  return Milliseconds(text == nullptr ? 60000 : std::atoi(text));
}

// all_reduces of ones; the first one that is `odd` is called otherwise by rank 1.
void all_reduces(Rank& self, const std::string& odd) {
  const NcclComm communicator = connect(self);
  const BackendTable& table = backend_of(self.device);
  const float n = static_cast<float>(self.ranks);
  for (int step = 0; step < 4; ++step) {
    const Tensor x = Tensor::full({64}, 1, {kF32, self.device}), y = Tensor::full({256}, 1, {kF32, self.device});
    join(self.device, Stream::kCompute, Stream::kCommunication);
    const bool other = step == 2 && self.rank == 1;
    const auto reduce = [&](cuda::StreamPtr stream) {
      const size_t count = other && odd == "count" ? 48 : 64;
      const DataType dtype = other && odd == "dtype" ? DataType::kInt32 : DataType::kFloat32;
      const Reduction reduction = other && odd == "reduction" ? Reduction::kMax : Reduction::kSum;
      if (other && odd == "kind") return nccl().all_gather(data(x), data(y), 16, dtype, communicator, stream);
      if (other && odd == "skipped") return Status::kSuccess;
      if (odd == "root") return nccl().broadcast(data(x), data(x), 64, dtype, other ? 1 : 0, communicator, stream);
      return nccl().all_reduce(data(x), data(x), count, dtype, reduction, communicator, stream);
    };
    // If the device comes to it at once, the call itself says what fails; so does the question below.
    call(self.device, Stream::kCommunication, [&](cuda::StreamPtr stream) {
      static_cast<void>(reduce(stream));
      return Status::kSuccess;
    });
    settled(communicator);
    const EventHandle end = table.record(self.device.index, Stream::kCommunication);
    const auto deadline = std::chrono::steady_clock::now() + patience();
    Status state = Status::kSuccess;
    while (!table.reached(self.device.index, end) && state == Status::kSuccess &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(Milliseconds(1));
      check(nccl().async_error(communicator, &state));
    }
    const bool over = table.reached(self.device.index, end);
    if (!over) {
      std::printf("step %d: %s\n", step, state == Status::kSuccess ? "hangs" : nccl().error_string(state));
      check(nccl().abort(communicator));
    }
    table.wait(self.device.index, Stream::kCompute, end);
    table.release(self.device.index, end);
    const std::vector<float> values = x.to_vector<float>();
    if (!over) return;
    const float expected = odd == "root" ? 1 : n;
    const auto right = std::count(values.begin(), values.end(), expected);
    std::printf("step %d: %lld of 64 right\n", step, static_cast<long long>(right));
  }
  check(nccl().abort(communicator));
}

// While the main thread waits in the driver, another one aborts.
void abort_from_another_thread(Rank& self) {
  const NcclComm communicator = connect(self);
  const Tensor x = Tensor::full({64}, 1, {kF32, self.device});
  join(self.device, Stream::kCompute, Stream::kCommunication);
  if (self.rank == 0) {
    call(self.device, Stream::kCommunication, [&](cuda::StreamPtr stream) {
      return nccl().all_reduce(data(x), data(x), 64, DataType::kFloat32, Reduction::kSum, communicator, stream);
    });
    settled(communicator);
  }
  std::thread watchdog([&] {
    std::this_thread::sleep_for(Milliseconds(150));
    check(nccl().abort(communicator));
  });
  join(self.device, Stream::kCommunication, Stream::kCompute);
  const float value = x.to_vector<float>()[0];  // waits
  watchdog.join();
  std::printf("went on with %s\n", std::isnan(value) ? "poison" : value == 1 ? "its own" : "a result");
}

// A host that does something else than calling CUDA holds up no other rank.
bool idle_host(Rank& self) {
  const NcclComm communicator = connect(self);
  const Tensor x = Tensor::full({64}, 1, {kF32, self.device});
  join(self.device, Stream::kCompute, Stream::kCommunication);
  call(self.device, Stream::kCommunication, [&](cuda::StreamPtr stream) {
    return nccl().all_reduce(data(x), data(x), 64, DataType::kFloat32, Reduction::kSum, communicator, stream);
  });
  settled(communicator);
  const auto began = std::chrono::steady_clock::now();
  if (self.rank == 1) std::this_thread::sleep_for(Milliseconds(6000));
  join(self.device, Stream::kCommunication, Stream::kCompute);
  if (x.to_vector<float>()[0] != static_cast<float>(self.ranks)) return false;
  const bool waited = std::chrono::steady_clock::now() - began > Milliseconds(5500);
  std::printf("%s\n", waited ? "waited" : "went on");
  finish(communicator);
  return waited == (self.rank == 1);
}

// exit() while the device is at work, as after an error.
void leave_busy(Rank& self) {
  connect(self);
  const Tensor x = Tensor::ones({64, 64}, {kF32, self.device});
  for (int i = 0; i < 500; ++i) {
    static_cast<void>(x.sum());      // runs on fibers
    static_cast<void>(x.matmul(x));  // calls oneDNN
  }
  std::exit(5);
}

}  // namespace

bool run_scenario(const std::string& name, Rank& rank) {
  if (name == "collectives") return collectives(rank, false);
  if (name == "blocking") return collectives(rank, true);
  if (name == "steps") return steps(rank);
  if (name == "splits") return splits(rank);
  if (name == "idle_host") return idle_host(rank);
  if (name == "busy_exit") return leave_busy(rank), false;
  if (name == "abort") return abort_from_another_thread(rank), true;
  if (name == "connect" || name == "same_device") return finish(connect(rank)), true;
  if (name.starts_with("odd_")) return all_reduces(rank, name.substr(4)), true;
  throw Error("no scenario is called " + name);
}

}  // namespace rondo::test
