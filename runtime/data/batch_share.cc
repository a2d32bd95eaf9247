#include "rondo/runtime/data/batch_share.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rondo::data {

BatchShare::BatchShare(BatchSource& source, int rank, int n)
    : source_(source), rank_(rank), n_(n), at_(source.position()) {
  if (n < 1 || rank < 0 || rank >= n) throw Error(absl::StrCat("BatchShare: there is no rank ", rank, " of ", n));
  source_.read_every(n);
}

std::optional<Batch> BatchShare::next() {
  if (at_.batch >= size()) {
    at_ = {at_.epoch + 1, 0};
    return std::nullopt;
  }
  const Position mine{at_.epoch, std::min<int64_t>(at_.batch + rank_, size() - 1)};
  if (!(source_.position() == mine)) source_.seek(mine);
  at_.batch = std::min<int64_t>(at_.batch + n_, size());  // set before next(), which skips a batch that throws
  return source_.next();
}

void BatchShare::seek(Position position) {
  source_.seek(position);
  at_ = position;
}

}  // namespace rondo::data
