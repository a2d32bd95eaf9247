#include "rondo/dist/ddp/end_of_step.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "rondo/dist/groups/agreement.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {
namespace {

constexpr int64_t kMaxFacts = 1 << 24;

// Returns a hash of the updates, or 0 if there are none.
uint64_t hash_of(const std::vector<UpdateFacts>& updates) {
  if (updates.empty()) return 0;
  io::Checksum sum;
  for (const UpdateFacts& facts : updates) {
    const uint64_t hash = facts.hash();
    sum.update(&hash, sizeof hash);
  }
  return sum.digest();
}

// A collective. Adds a message to `troubles` for the first rank with updates that differ from rank 0's.
void note_other_updates(ProcessGroup& group, const std::vector<UpdateFacts>& updates,
                        std::vector<std::string>& troubles) {
  std::string mine;
  for (const UpdateFacts& facts : updates) mine += facts.text();
  const std::optional<TextDifference> found = first_difference(
      gather_texts(group, mine, kMaxFacts, "options of the optimizers"));
  invariant(found.has_value(), "updates with different hashes are equal");
  std::string& trouble = troubles[found->rank];
  if (!trouble.empty()) return;
  trouble = absl::StrCat(
      "its last update of the parameters was another one than that of rank 0: ", found->there, " there, and ",
      found->first,
      " on rank 0. Every rank must make the same optimizers, set the same options, load the same states "
      "and make the same steps");
}

}  // namespace

// Each rank sends one string. Its fields, in order: a hash of the updates; RowGather::report() of each gradient that
// travels in two parts; with allow_unused on a device, for each slot whether this rank has a gradient (four slots per
// character); an error message, or nothing.
std::vector<std::string> exchange_end_of_step(const StepState& step, std::vector<BucketReducer>& reducers,
                                              const std::vector<UpdateFacts>& updates) {
  std::vector<int> flags;  // for each group of four slots, 4 bits: whether this rank has the slot's gradient
  size_t slots = 0;
  const auto for_each_slot = [&](const auto& visit) {
    slots = 0;
    for (size_t b = 0; step.async_device && step.options.allow_unused && b < reducers.size(); ++b)
      for (size_t k = 0; k < reducers[b].parameters().size(); ++k, ++slots) visit(reducers[b], k);
  };
  for_each_slot([&](const BucketReducer& reducer, size_t k) {
    if (slots % 4 == 0) flags.push_back(0);
    if (reducer.has_gradient(k)) flags.back() |= 1 << slots % 4;
  });
  const uint64_t hash = hash_of(updates);
  std::string text(reinterpret_cast<const char*>(&hash), sizeof hash);
  for (const size_t i : step.in_two_parts) text += step.gradients[i].rows->report();
  const size_t flags_at = text.size();
  for (const int f : flags) text += static_cast<char>('A' + f);
  const size_t head = text.size();
  text += step.trouble.substr(0, kMaxErrorBytes);
  std::vector<std::string> texts = step.group.check_sequence(text, absl::StrCat("end of step ", step.number),
                                                             static_cast<int64_t>(head));
  for (size_t p = 0; p < step.in_two_parts.size(); ++p) {
    std::vector<std::string> reports;
    for (const std::string& other : texts)
      reports.push_back(other.substr(sizeof hash + p * RowGather::kReportBytes, RowGather::kReportBytes));
    step.gradients[step.in_two_parts[p]].rows->read_reports(reports);
  }
  for (const std::string& other : texts)
    for (size_t i = 0; i < flags.size(); ++i) flags[i] |= other.at(flags_at + i) - 'A';
  for_each_slot([&](BucketReducer& reducer, size_t k) {
    reducer.any_rank_has_gradient[k] = (flags[slots / 4] >> slots % 4 & 1) != 0;
  });
  const bool updates_differ = std::any_of(texts.begin(), texts.end(), [&](const std::string& other) {
    return other.compare(0, sizeof hash, texts[0], 0, sizeof hash) != 0;
  });
  for (std::string& other : texts) other.erase(0, head);
  if (updates_differ) note_other_updates(step.group, updates, texts);
  return texts;
}

}  // namespace rondo::dist
