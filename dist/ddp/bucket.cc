#include "rondo/dist/ddp/bucket.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/dist/kernels/reduction.h"
#include "rondo/runtime/device/allocator.h"

namespace rondo::dist {
namespace {

// Returns the alignment of slots, in elements: each slot starts at a multiple of it. In bytes this is at least
// kAlignment, the alignment of memory blocks, which kernels expect.
constexpr int64_t alignment_of(DType dtype) { return std::max<int64_t>(16, kAlignment / size_of(dtype)); }

std::string describe(const Tensor& t) { return absl::StrCat(std::string(name_of(t.dtype())), to_string(t.sizes())); }

}  // namespace

DType travels_as(DType parameter, const BucketOptions& options) {
  const DType wire = wire_dtype(parameter);
  return options.dtype && wire == kF32 ? *options.dtype : wire;
}

BucketPlan plan_buckets(const nn::ModuleBase& model, const std::vector<optim::Seam>& seams,
                        const BucketOptions& options, TakerOf taker_of) {
  if (options.dtype && (!is_floating(*options.dtype) || *options.dtype == kF64))
    throw Error(absl::StrCat("BucketOptions::dtype: gradients travel in f32, bf16 or f16, not in ",
                             std::string(name_of(*options.dtype))));
  if (options.max_bytes <= 0 || options.min_bytes < 0 || options.min_bytes > options.max_bytes)
    throw Error(absl::StrCat("BucketOptions: min_bytes=", options.min_bytes, ", max_bytes=", options.max_bytes,
                             ": max_bytes must be positive, and min_bytes from 0 to max_bytes"));
  std::unordered_map<const TensorImpl*, std::string> names;
  for (const nn::NamedTensor& p : model.named_parameters()) names[p.tensor.impl()] = p.name;

  BucketPlan plan;
  std::map<std::pair<size_t, DType>, Bucket> open;
  const auto close = [&](Bucket& bucket, size_t seam) {
    if (bucket.slots.empty()) return;
    bucket.seam = seam;
    plan.buckets.push_back(std::move(bucket));
    bucket = {};
  };
  for (size_t s = 0; s < seams.size(); ++s) {
    for (const Tensor& p : seams[s].parameters) {
      const DType wire = travels_as(p.dtype(), options);
      const int64_t width = static_cast<int64_t>(size_of(wire)), align = alignment_of(wire);
      const int64_t room = std::max(options.max_bytes / width / align * align, align);
      const GradientTaker taker = taker_of(p);
      Bucket& bucket = open[{taker.index, wire}];
      int64_t begin = 0;
      do {
        const int64_t numel = taker.needs_whole ? p.numel() : std::min(p.numel() - begin, room);
        const int64_t taken = (numel + align - 1) / align * align;
        if (bucket.numel + taken > room) close(bucket, s);
        bucket.dtype = wire;
        bucket.taker = taker.index;
        bucket.slots.push_back({names.at(p.impl()), p, begin, numel, bucket.numel, taker.needs_whole});
        bucket.numel += taken;
        begin += numel;
      } while (begin < p.numel());
      // If the last piece of a parameter is large enough for a bucket, no other parameter joins it: on a device, a
      // bucket with one slot is reduced without a copy.
      if (!bucket.slots.back().whole() && bucket.numel * width >= options.min_bytes) close(bucket, s);
    }
    for (auto& [key, bucket] : open)
      if (bucket.numel * static_cast<int64_t>(size_of(key.second)) >= options.min_bytes || s + 1 == seams.size())
        close(bucket, s);
  }

  const auto path_of = [&](size_t seam) {
    return seams[seam].path.empty() ? "what is outside the blocks" : seams[seam].path;
  };
  for (size_t b = 0; b < plan.buckets.size(); ++b)
    for (const BucketSlot& slot : plan.buckets[b].slots) {
      absl::StrAppend(&plan.text, "bucket ", b, " after ", path_of(plan.buckets[b].seam), ": ", slot.name, " ",
                      describe(slot.parameter), " at ", slot.offset);
      if (plan.buckets[b].taker != 0) absl::StrAppend(&plan.text, ", taker ", plan.buckets[b].taker);
      if (!slot.whole()) absl::StrAppend(&plan.text, ", elements ", slot.begin, " to ", slot.begin + slot.numel);
      if (plan.buckets[b].dtype != wire_dtype(slot.parameter.dtype()))
        absl::StrAppend(&plan.text, ", as ", std::string(name_of(plan.buckets[b].dtype)));
      plan.text += "\n";
    }
  return plan;
}

std::string describe_state(const nn::ModuleBase& model) {
  std::string text;
  for (const nn::NamedTensor& p : model.named_parameters())
    if (!p.tensor.requires_grad()) absl::StrAppend(&text, "frozen: ", p.name, " ", describe(p.tensor), "\n");
  for (const nn::NamedTensor& b : model.named_buffers())
    absl::StrAppend(&text, "buffer: ", b.name, " ", describe(b.tensor), "\n");
  return text;
}

}  // namespace rondo::dist
