#include "rondo/dist/groups/sequence.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/io/checksum.h"

namespace rondo::dist {

NamedCall::NamedCall(const Call& of, std::string_view text)
    : call(of), length(static_cast<uint8_t>(std::min(text.size(), kLongestName))) {
  std::memcpy(name, text.data(), length);
}

const NamedCall& SequenceRecord::add(Call call, std::string_view name) {
  call.number = ++count_;
  NamedCall named(call, name);
  named.call.name = hash_of_name({named.name, named.length});
  io::Checksum sum;
  sum.update(&hash_, sizeof hash_);
  static_assert(std::has_unique_object_representations_v<Call>, "all its bytes are hashed");
  sum.update(&named.call, sizeof named.call);
  hash_ = sum.digest();
  if (entries_.size() == kMost) entries_.pop_front();
  return entries_.emplace_back(Entry{named, hash_}).call;
}

void SequenceRecord::set_agreed(uint64_t number) {
  agreed_ = number;
  while (!entries_.empty() && first() <= number) entries_.pop_front();
}

std::string SequenceRecord::describe_at(uint64_t number) const {
  if (number > count_) return absl::StrCat("the end of its calls, after ", count_);
  if (number < first()) return absl::StrCat("call ", number, ", which it has forgotten");
  return entries_[number - first()].call.text();
}

}  // namespace rondo::dist
