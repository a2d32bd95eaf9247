#include "rondo/optim/foreach.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <utility>

#include "rondo/compile/exec/table_launch.h"
#include "rondo/compile/jit/targets.h"
#include "rondo/optim/block8.h"
#include "rondo/optim/foreach_kernel.h"
#include "rondo/optim/host_code.h"
#include "rondo/optim/step_report.h"
#include "rondo/runtime/base/error.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/ops/reduction_order.h"

namespace rondo::optim {
namespace {

// The number of elements that eager runs work on at a time: their buffers then stay in the first-level cache.
constexpr int64_t kStrip = 1024;
static_assert(kStrip % kLanes == 0 && kStrip % kBlock8 == 0 && kRow % kLanes == 0 && kRowBlock % kStrip == 0);

template <class C>
void load_strip(const ArraySpec& spec, const void* data, int64_t at, int64_t n, float scale, C* __restrict out) {
  const auto decode = [&](auto is_signed) {
    const uint8_t* __restrict codes = static_cast<const uint8_t*>(data) + at;
    for (int64_t i = 0; i < n; ++i) out[i] = decode8<is_signed()>(static_cast<float>(codes[i]), scale);
  };
  if (spec.format == Format::kSigned8) return decode(std::true_type{});
  if (spec.format == Format::kUnsigned8) return decode(std::false_type{});
  visit_floating(spec.dtype, [&](auto tag) {
    using P = typename decltype(tag)::type;
    const P* __restrict from = static_cast<const P*>(data) + at;
    for (int64_t i = 0; i < n; ++i) out[i] = static_cast<C>(from[i]);
  });
}

template <class C> void store_strip(DType dtype, void* data, int64_t at, int64_t n, const C* __restrict values) {
  visit_floating(dtype, [&](auto tag) {
    using P = typename decltype(tag)::type;
    P* __restrict to = static_cast<P*>(data) + at;
    for (int64_t i = 0; i < n; ++i) to[i] = static_cast<P>(values[i]);
  });
}

// Encodes values as 8-bit codes, and computes their scale. The values of 8-bit arrays are always f32.
void store_codes(Format format, uint8_t* __restrict codes, float& scale, int64_t n, const float* __restrict values) {
  float largest[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) largest[i % kLanes] = scalar::maximum(largest[i % kLanes], scalar::abs(values[i]));
  scale = combine_lanes(largest, [](float a, float b) { return scalar::maximum(a, b); });
  const float inverse = inverse8(scale);
  const auto encode = [&](auto is_signed) {
    for (int64_t i = 0; i < n; ++i) codes[i] = low_byte(encode8<is_signed()>(values[i], inverse));
  };
  if (format == Format::kSigned8) encode(std::true_type{});
  else encode(std::false_type{});
}

std::byte* at(void* data, DType dtype, int64_t index) {
  return static_cast<std::byte*>(data) + index * static_cast<int64_t>(size_of(dtype));
}

// The function of a body that leaves every value as it is.
template <class C> void keep_values(const void*, C* const*, const C*, int64_t) {}
void build_nothing(const void*, LoopValue*, const LoopValue*) {}

// Makes the pass that a skipped step runs instead of a pass over `arrays`. It has the same operands, but only writes
// fresh copies and zeroes arrays. Null if there is nothing to do.
std::shared_ptr<Foreach> make_if_skipped(std::vector<ArraySpec> arrays) {
  bool any = false;
  Body body{.name = "if_skipped",
            .f32 = &keep_values<float>,
            .f64 = &keep_values<double>,
            .build = &build_nothing,
            .keeps = ~0u};
  for (ArraySpec& a : arrays) {
    if (a.role == Role::kCopy && a.fresh) {
      any = true;
      continue;
    }
    invariant(body.n_values == &a - arrays.data(), "foreach: a fresh copy before other arrays");
    ++body.n_values;
    a.zero = a.zero || (a.fresh && a.layout == Layout::kFull);
    any = any || a.zero;
    if (a.role == Role::kSum) a.dtype = kF32, a.layout = Layout::kPerRow;  // a sum is not touched
    a.role = Role::kValue;
  }
  return any ? std::make_shared<Foreach>(body, std::move(arrays)) : nullptr;
}

}  // namespace

Foreach::Foreach(const Body& body, std::vector<ArraySpec> arrays) : body_(body), arrays_(std::move(arrays)) {
  n_operands_ = static_cast<int>(arrays_.size());
  scale_operand_.assign(arrays_.size(), -1);
  bool sums = false;
  for (size_t i = 0; i < arrays_.size(); ++i) {
    const ArraySpec& a = arrays_[i];
    if (a.format != Format::kPlain) {
      scale_operand_[i] = n_operands_++;
      row_width_ = kBlock8;
    } else if (a.dtype == kF64 && a.role != Role::kSum && a.role != Role::kCopy) {
      compute_ = kF64;
    }
    sums = sums || a.role == Role::kSum;
    by_rows_ = by_rows_ || a.layout != Layout::kFull;
  }
  if (body_.wide) compute_ = kF64;
  if (sums && row_width_ == 0) row_width_ = kRow;
  by_rows_ = by_rows_ || row_width_ > 0;
  invariant(body_.n_values + body_.n_sums <= kMaxValues && body_.n_scalars <= kMaxScalars, "foreach: too many values");
  invariant(compute_ == kF32 || row_width_ != kBlock8, "foreach: 8-bit arrays beside f64");
  compile::LoopKernel kernel = make_kernel(body_, arrays_, scale_operand_, compute_, by_rows_, row_width_, written_);
  launch_ = std::make_shared<compile::TableLaunch>(std::move(kernel));
  if (body_.build != &build_nothing) if_skipped_ = make_if_skipped(arrays_);
}
Foreach::~Foreach() = default;

bool Foreach::is(const Body& body, std::span<const ArraySpec> arrays) const {
  return body_.build == body.build && body_.context == body.context &&
         std::equal(arrays_.begin(), arrays_.end(), arrays.begin(), arrays.end());
}

ForeachItem Foreach::item(int64_t numel, int64_t width, const double* scalars) const {
  if (!by_rows_) width = numel;
  return {width == 0 ? 0 : numel / width, width, numel, scalars};
}

int Foreach::compile(Device device) {
  if (if_skipped_ != nullptr && !runs_host_code(device)) if_skipped_->compile(device);
  return launch_->compile(device);
}
bool Foreach::compiled() const { return launch_->compiled(); }
const compile::LoopKernel& Foreach::kernel() const { return launch_->kernel(); }

void Foreach::run_compiled(const ForeachTable& table, const compile::Condition& when) const {
  launch_->run(table, when);
}
absl::AnyInvocable<void()> Foreach::ready(const ForeachTable& table, const compile::Condition& when) const {
  return launch_->ready(table, when);
}
struct Foreach::Eager {
  template <class C>
  static void run_piece(const Foreach& pass, const ForeachItem& item, void* const* operands, int64_t begin,
                        int64_t end) {
    alignas(64) C buffers[kMaxValues][kStrip];
    C scalars[kMaxScalars];
    for (int k = 0; k < pass.body_.n_scalars; ++k) scalars[k] = static_cast<C>(item.scalars[k]);
    const int64_t width = item.width, strip = pass.row_width_ == kBlock8 ? kBlock8 : kStrip;
    const int n_values = pass.body_.n_values, n_all = n_values + pass.body_.n_sums;
    C* values[kMaxValues];
    for (int64_t row = begin / width; row * width < end; ++row) {
      const int64_t first = std::max(begin - row * width, int64_t{0}), last = std::min(end - row * width, width);
      // Note [Row order] of ops/reduction_order.h.
      double lanes[kMaxValues][kLanes], totals[kMaxValues][kLanes];
      std::fill(&lanes[n_values][0], &lanes[n_all][0], 0.0);
      std::fill(&totals[n_values][0], &totals[n_all][0], 0.0);
      const auto end_block = [&] {
        for (int k = n_values; k < n_all; ++k)
          for (int lane = 0; lane < kLanes; ++lane) totals[k][lane] += std::exchange(lanes[k][lane], 0.0);
      };
      for (int64_t c = first; c < last; c += strip) {
        const int64_t n = std::min(strip, last - c), element = row * width + c;
        if ((c - first) % kRowBlock == 0) end_block();
        for (int k = 0; k < n_all; ++k) {
          const ArraySpec& a = pass.arrays_[static_cast<size_t>(k)];
          values[k] = buffers[k];
          if (a.role == Role::kSum) continue;
          const bool direct = a.format == Format::kPlain && a.dtype == pass.compute_ && a.layout != Layout::kPerRow &&
                              ((pass.written_ | pass.body_.keeps) >> k & 1) != 0;
          const int64_t index = a.layout == Layout::kPerColumn ? c : element;
          if (direct) {
            values[k] = static_cast<C*>(operands[k]) + index;
          } else if (a.layout == Layout::kPerRow) {
            C value;
            load_strip(a, operands[k], row, 1, 0, &value);
            std::fill_n(buffers[k], n, value);
          } else {
            const int scale = pass.scale_operand_[static_cast<size_t>(k)];
            load_strip(a, operands[k], index, n, scale < 0 ? 0 : static_cast<const float*>(operands[scale])[row],
                       buffers[k]);
          }
        }
        if constexpr (sizeof(C) == 8) pass.body_.f64(pass.body_.context, values, scalars, n);
        else pass.body_.f32(pass.body_.context, values, scalars, n);
        for (size_t k = 0; k < pass.arrays_.size(); ++k) {
          const ArraySpec& a = pass.arrays_[k];
          if (a.role == Role::kSum) {
            for (int64_t i = 0; i < n; ++i) lanes[k][i % kLanes] += static_cast<double>(values[k][i]);
          } else if (a.role == Role::kAverage) {
            C* __restrict average = static_cast<C*>(operands[k]) + element;
            const C* __restrict value = values[0];
            for (int64_t i = 0; i < n; ++i) average[i] = scalar::fma(scalars[1], value[i] - average[i], average[i]);
          } else if (a.role == Role::kCopy) {
            store_strip(a.dtype, operands[k], element, n, values[0]);
          } else if (a.zero) {
            std::memset(at(operands[k], a.dtype, element), 0, static_cast<size_t>(n) * size_of(a.dtype));
          } else if (((pass.written_ >> k) & 1) == 0) {
            continue;
          } else if (a.format != Format::kPlain) {
            if constexpr (sizeof(C) == sizeof(float))
              store_codes(a.format, static_cast<uint8_t*>(operands[k]) + element,
                          static_cast<float*>(operands[pass.scale_operand_[k]])[row], n, values[k]);
          } else if (values[k] == buffers[k]) {
            store_strip(a.dtype, operands[k], element, n, values[k]);
          }
        }
      }
      end_block();
      for (int k = n_values; k < n_all; ++k)
        static_cast<double*>(operands[k])[row] = combine_lanes(totals[k], [](double a, double b) { return a + b; });
    }
  }
};

void Foreach::run_eager(const ForeachTable& table) const {
  compile::for_each_piece(table.rows(), by_rows_, [&](size_t i, int64_t begin, int64_t end) {
    void* const* operands = table.operands.data() + i * static_cast<size_t>(n_operands_);
    if (compute_ == kF64) Eager::run_piece<double>(*this, table.items[i], operands, begin, end);
    else Eager::run_piece<float>(*this, table.items[i], operands, begin, end);
  });
}

void launch(Device device, const std::shared_ptr<const Foreach>& pass, const ForeachTable& table,
            const compile::Condition& when, bool eager) {
  if (pass->compiled() && !(eager && runs_host_code(device))) return pass->run_compiled(table, when);
  const auto run = [device, when](const Foreach& pass, const ForeachTable& table) {
    if (when.value == nullptr ? !backend_of(device).failed(device.index) : *when.value == when.equals)
      pass.run_eager(table);
  };
  if (runs_at_once(device)) return run(*pass, table);
  enqueue_host_code(device, [run, pass, table] { run(*pass, table); });
}

std::shared_ptr<Foreach> shared_pass(Device device, const Body& body, std::vector<ArraySpec> arrays) {
  struct Known {
    Device device;
    const compile::Target* target;  // a device that was closed may come back as one of another architecture
    std::shared_ptr<Foreach> pass;
  };
  // Never destroyed: tensors with static lifetime may have work waiting.
  static auto* const mutex = new std::mutex;
  static auto* const passes = new std::vector<Known>;
  invariant(body.context == nullptr, "a shared pass of a body with a context");
  const std::lock_guard lock(*mutex);
  const compile::Target* const target = compile::find_target(device);
  auto found = std::find_if(passes->begin(), passes->end(), [&](const Known& known) {
    return known.device == device && known.target == target && known.pass->is(body, arrays);
  });
  if (found == passes->end())
    found = passes->insert(found, {device, target, std::make_shared<Foreach>(body, std::move(arrays))});
  if (!runs_host_code(device)) found->pass->compile(device);
  return found->pass;
}

}  // namespace rondo::optim
