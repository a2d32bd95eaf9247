#include "rondo/dist/groups/process_group.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rondo/dist/groups/sequence.h"

namespace rondo::dist {

void ProcessGroup::check_usable(std::string_view what) {
  if (const std::string why = failure(); !why.empty())
    throw ConnectionError(absl::StrCat(std::string(what), " cannot run: ", why));
}

std::shared_ptr<ProcessGroup> ProcessGroup::subgroup(const std::vector<int>&, std::string_view name) {
  throw Error(absl::StrCat("subgroup (", std::string(name), "): a group of this kind has none"));
}

std::vector<std::string> gather_texts(ProcessGroup& group, std::string_view text, int64_t max_bytes,
                                      std::string_view name) {
  const auto n = static_cast<size_t>(group.world_size());
  text = text.substr(0, static_cast<size_t>(max_bytes));
  // These tensors are on the CPU, whatever default_device() is. The lengths are sent first. So rows are as long as the
  // longest text only, and no row is sent if all texts are empty.
  const Tensor length = Tensor::from<int64_t>({static_cast<int64_t>(text.size())}, {1}, kCPU);
  Tensor lengths = Tensor::zeros({group.world_size(), 1}, {kI64, kCPU});
  group.all_gather(lengths, length, name).wait();
  const std::vector<int64_t> sizes = lengths.to_vector<int64_t>();
  const int64_t row = *std::max_element(sizes.begin(), sizes.end());
  std::vector<std::string> texts(n);
  if (row == 0) return texts;
  Tensor mine = Tensor::zeros({row}, {kU8, kCPU}), all = Tensor::zeros({group.world_size(), row}, {kU8, kCPU});
  std::memcpy(mine.mutable_data<uint8_t>(), text.data(), text.size());
  group.all_gather(all, mine, name).wait();
  for (size_t r = 0; r < n; ++r) {
    const char* from = reinterpret_cast<const char*>(all.data<uint8_t>()) + static_cast<int64_t>(r) * row;
    texts[r].assign(from, static_cast<size_t>(sizes[r]));
  }
  return texts;
}

// ---- The comparison of device collectives

namespace {

constexpr int64_t kLongestText = 4096;

// What a rank sends for the comparison. `reserved` bytes of text follow it.
struct CheckHeader {
  uint64_t count = 0, hash = 0;
  uint32_t text_bytes = 0, has_more = 0;  // has_more: the text is longer than `reserved`
};
static_assert(sizeof(CheckHeader) == 24);

// Where two sequences differ first: the collective's number, and the first rank that differs from rank 0 there.
struct Difference {
  uint64_t number = 0;
  size_t rank = 0;
};

// Finds where the records of the ranks differ first. Returns nullopt if the difference is in a call that some rank has
// no record of any more. A collective.
std::optional<Difference> find_difference(ProcessGroup& group, const SequenceRecord& record, uint64_t count,
                                          const std::string& name) {
  const auto n = static_cast<size_t>(group.world_size());
  const Tensor mine = Tensor::from<int64_t>({static_cast<int64_t>(record.first()), static_cast<int64_t>(count)}, {2},
                                            kCPU);
  Tensor all = Tensor::zeros({group.world_size(), 2}, {kI64, kCPU});
  group.all_gather(all, mine, name).wait();
  const std::vector<int64_t> ranges = all.to_vector<int64_t>();
  int64_t from = 1, to = 0;
  for (size_t r = 0; r < n; ++r) from = std::max(from, ranges[2 * r]), to = std::max(to, ranges[2 * r + 1]);
  const int64_t length = std::min<int64_t>(std::max<int64_t>(to - from + 1, 0), SequenceRecord::kMost);
  if (length == 0) return std::nullopt;
  Tensor hashes = Tensor::zeros({length}, {kI64, kCPU}),
         every = Tensor::zeros({group.world_size(), length}, {kI64, kCPU});
  for (int64_t i = 0; i < length && static_cast<uint64_t>(from + i) <= count; ++i)
    hashes.mutable_data<int64_t>()[i] = static_cast<int64_t>(record.hash_at(static_cast<uint64_t>(from + i)));
  group.all_gather(every, hashes, name).wait();
  const int64_t* at = every.data<int64_t>();
  const auto has = [&](size_t r, int64_t i) { return from + i <= ranges[2 * r + 1]; };
  for (int64_t i = 0; i < length; ++i)
    for (size_t r = 1; r < n; ++r)
      if (has(r, i) != has(0, i) || at[static_cast<int64_t>(r) * length + i] != at[i])
        // A hash covers all calls so far. So if the first kept hash differs, the cause may be a call that was dropped.
        return i == 0 && static_cast<uint64_t>(from) != record.agreed() + 1
                   ? std::nullopt
                   : std::optional(Difference{static_cast<uint64_t>(from + i), r});
  return std::nullopt;
}

}  // namespace

SequenceCheck ProcessGroup::begin_check(std::string_view text, std::string_view name, int64_t reserved) {
  if (reserved < 0 || reserved > kLongestText)
    throw Error(absl::StrCat("check_sequence (", std::string(name), "): ", reserved, " bytes cannot be reserved; the ",
                             "most is ", kLongestText));
  SequenceCheck check;
  check.group_ = this;
  check.text_ = text.substr(0, static_cast<size_t>(kLongestText));
  check.name_ = name;
  check.reserved_ = std::max<int64_t>(reserved, 8);
  CheckHeader header{.text_bytes = static_cast<uint32_t>(check.text_.size()),
                     .has_more = static_cast<int64_t>(check.text_.size()) > check.reserved_};
  if (const SequenceRecord* record = sequence()) {
    header.count = check.count_ = record->count();
    header.hash = record->hash();
  }
  const int64_t row = static_cast<int64_t>(sizeof header) + check.reserved_;
  check.mine_ = Tensor::zeros({row}, {kU8, kCPU});
  check.all_ = Tensor::zeros({world_size(), row}, {kU8, kCPU});
  auto* const to = check.mine_.mutable_data<uint8_t>();
  std::memcpy(to, &header, sizeof header);
  std::memcpy(to + sizeof header, check.text_.data(),
              std::min(check.text_.size(), static_cast<size_t>(check.reserved_)));
  check.work_ = all_gather(check.all_, check.mine_, name);
  return check;
}

std::vector<std::string> SequenceCheck::wait() {
  if (group_ == nullptr) throw Error("SequenceCheck::wait: there is no exchange, or it was waited for before");
  ProcessGroup& group = *std::exchange(group_, nullptr);
  work_.synchronize();
  const auto n = static_cast<size_t>(group.world_size());
  std::vector<CheckHeader> headers(n);
  std::vector<std::string> texts(n);
  bool more = false;
  const size_t row = sizeof(CheckHeader) + static_cast<size_t>(reserved_);
  for (size_t r = 0; r < n; ++r) {
    const auto* from = reinterpret_cast<const char*>(all_.data<uint8_t>()) + r * row;
    std::memcpy(&headers[r], from, sizeof(CheckHeader));
    more = more || headers[r].has_more != 0;
    texts[r].assign(from + sizeof(CheckHeader),
                    std::min<size_t>(headers[r].text_bytes, static_cast<size_t>(reserved_)));
  }
  if (more) texts = gather_texts(group, text_, kLongestText, name_);
  SequenceRecord* const record = group.sequence();
  if (record == nullptr) return texts;
  const auto differs = [&](const CheckHeader& h) { return h.count != headers[0].count || h.hash != headers[0].hash; };
  if (std::none_of(headers.begin(), headers.end(), differs)) {
    record->set_agreed(count_);
    return texts;
  }
  const std::optional<Difference> found = find_difference(group, *record, count_, name_);
  std::string sentence = "the ranks do not call the same collectives on their devices: ";
  if (found) {
    const std::vector<std::string> calls = gather_texts(group,
                                                        found->number > count_
                                                            ? absl::StrCat("the end of its calls, after ", count_)
                                                            : record->describe_at(found->number),
                                                        kLongestText, name_);
    absl::StrAppend(&sentence, "rank ", group.rank_in_job(0), " is at ", calls[0], ", rank ",
                    group.rank_in_job(static_cast<int>(found->rank)), " at ", calls[found->rank]);
  } else {
    absl::StrAppend(&sentence, "the first that differs is older than the last ", SequenceRecord::kMost,
                    ", which are kept; call check_sequence() more often");
  }
  for (size_t r = 0; r < n; ++r)
    if (!texts[r].empty())
      absl::StrAppend(&sentence, "; rank ", group.rank_in_job(static_cast<int>(r)), " says: ", texts[r]);
  group.fail_mismatched(sentence);
  throw MismatchError(sentence);
}

std::vector<std::string> ProcessGroup::check_sequence(std::string_view text, std::string_view name, int64_t reserved) {
  return begin_check(text, name, reserved).wait();
}

}  // namespace rondo::dist
