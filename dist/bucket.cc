#include "rondo/dist/bucket.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "rondo/dist/reduction.h"

namespace rondo::dist {
namespace {

// Slots start where a cache line does.
constexpr int64_t kAlign = 16;  // elements

std::string describe(const Tensor& t) { return absl::StrCat(std::string(name_of(t.dtype())), to_string(t.sizes())); }

}  // namespace

BucketPlan plan_buckets(const nn::ModuleBase& model, const std::vector<compile::Seam>& seams,
                        const BucketOptions& options) {
  std::unordered_map<const TensorImpl*, std::string> names;
  const std::vector<nn::NamedTensor> parameters = model.named_parameters();
  for (const nn::NamedTensor& p : parameters) names[p.tensor.impl()] = p.name;

  BucketPlan plan;
  std::map<DType, Bucket> open;
  const auto close = [&](Bucket& bucket, size_t seam) {
    if (bucket.slots.empty()) return;
    bucket.seam = seam;
    plan.buckets.push_back(std::move(bucket));
    bucket = {};
  };
  for (size_t s = 0; s < seams.size(); ++s) {
    for (const Tensor& p : seams[s].parameters) {
      const DType wire = wire_dtype(p.dtype());
      const int64_t taken = (p.numel() + kAlign - 1) / kAlign * kAlign, width = static_cast<int64_t>(size_of(wire));
      Bucket& bucket = open[wire];
      if ((bucket.numel + taken) * width > options.max_bytes) close(bucket, s);
      bucket.dtype = wire;
      bucket.slots.push_back({names.at(p.impl()), p, bucket.numel});
      bucket.numel += taken;
    }
    for (auto& [wire, bucket] : open)
      if (bucket.numel * static_cast<int64_t>(size_of(wire)) >= options.min_bytes || s + 1 == seams.size())
        close(bucket, s);
  }

  const auto path_of = [&](size_t seam) { return seams[seam].path.empty() ? "all blocks" : seams[seam].path; };
  for (size_t b = 0; b < plan.buckets.size(); ++b)
    for (const BucketSlot& slot : plan.buckets[b].slots)
      absl::StrAppend(&plan.text, "bucket ", b, " after ", path_of(plan.buckets[b].seam), ": ", slot.name, " ",
                      describe(slot.parameter), " at ", slot.offset, "\n");
  // What is sent once, at the start.
  for (const nn::NamedTensor& p : parameters)
    if (!p.tensor.requires_grad()) absl::StrAppend(&plan.text, "frozen: ", p.name, " ", describe(p.tensor), "\n");
  for (const nn::NamedTensor& b : model.named_buffers())
    absl::StrAppend(&plan.text, "buffer: ", b.name, " ", describe(b.tensor), "\n");
  return plan;
}

}  // namespace rondo::dist
