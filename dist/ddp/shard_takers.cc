#include "rondo/dist/ddp/shard_takers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rondo::dist {

void ShardTakers::remove(GradientShards& shards, bool planned) {
  if (planned) std::replace(shards_.begin(), shards_.end(), &shards, static_cast<GradientShards*>(nullptr));
  else std::erase(shards_, &shards);
}

bool ShardTakers::any_removed() const { return std::find(shards_.begin(), shards_.end(), nullptr) != shards_.end(); }

GradientTaker ShardTakers::taker_of(const Tensor& parameter) const {
  for (size_t i = 0; i < shards_.size(); ++i)
    if (shards_[i] != nullptr && shards_[i]->takes(parameter)) return {i + 1, shards_[i]->needs_whole(parameter)};
  return {};
}

GradientShards* ShardTakers::shards_of(const BucketReducer& reducer) const {
  const size_t taker = reducer.bucket().taker;
  return taker == 0 ? nullptr : shards_[taker - 1];
}

std::string ShardTakers::describe() const {
  std::string text;
  for (const GradientShards* shards : shards_)
    if (shards != nullptr) absl::StrAppend(&text, "shards: ", shards->describe(), "\n");
  return text;
}

bool ShardTakers::take_early() const {
  return std::any_of(shards_.begin(), shards_.end(),
                     [](const GradientShards* shards) { return shards != nullptr && shards->takes_early(); });
}

void ShardTakers::begin(const std::vector<BucketReducer>& reducers) {
  if (std::exchange(begun_, true)) return;
  for (size_t i = 0; i < shards_.size(); ++i) {
    std::vector<ShardedBucket> buckets;
    for (size_t b = 0; b < reducers.size(); ++b)
      if (const BucketReducer& reducer = reducers[b]; reducer.bucket().taker == i + 1)
        buckets.push_back({b, reducer.bucket(), *reducer.layout(), reducer.sent(), reducer.averages()});
    shards_[i]->begin(std::move(buckets));
  }
}

void ShardTakers::before_send(size_t bucket, const BucketReducer& reducer) {
  if (GradientShards* const shards = shards_of(reducer); begun_ && shards != nullptr) shards->before_send(bucket);
}

void ShardTakers::deliver(size_t bucket, BucketReducer& reducer, bool early) {
  GradientShards* const shards = shards_of(reducer);
  if (shards == nullptr || reducer.is_taken || (early && !(begun_ && shards->takes_early()))) return;
  reducer.is_taken = true;
  shards->take(bucket, reducer.has_average);
}

}  // namespace rondo::dist
