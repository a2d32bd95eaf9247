#include "rondo/runtime/io/host_key.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace rondo::io {
namespace {

std::vector<std::string> words_missing(const std::vector<std::string>& from, const std::vector<std::string>& in) {
  std::vector<std::string> result;
  for (const std::string& word : from)
    if (std::find(in.begin(), in.end(), word) == in.end()) result.push_back(word);
  return result;
}

std::string some_of(const std::vector<std::string>& words) {
  constexpr size_t kMost = 12;
  if (words.empty()) return "nothing more";
  const std::vector<std::string> first(words.begin(),
                                       words.begin() + static_cast<std::ptrdiff_t>(std::min(words.size(), kMost)));
  return absl::StrJoin(first, " ") + (words.size() > kMost ? " ..." : "");
}

}  // namespace

bool HostKey::complete() const {
  return std::none_of(components.begin(), components.end(), [](const Component& c) { return c.value.empty(); });
}

std::string HostKey::text() const {
  std::string result;
  for (const Component& c : components) absl::StrAppend(&result, c.name, ": ", c.value, "\n");
  return result;
}

HostKey HostKey::parse(std::string_view text) {
  HostKey key;
  for (const std::string& line : std::vector<std::string>(absl::StrSplit(std::string(text), '\n', absl::SkipEmpty()))) {
    const size_t colon = line.find(": ");
    if (colon == std::string::npos) key.components.push_back({line, ""});
    else key.components.push_back({line.substr(0, colon), line.substr(colon + 2)});
  }
  return key;
}

HostDifference compare(const HostKey& there, const HostKey& here) {
  HostDifference result;
  const auto value_in = [](const HostKey& key, const std::string& name) {
    for (const HostKey::Component& c : key.components)
      if (c.name == name) return c.value;
    return std::string();
  };
  const auto add = [&](const std::string& name) {
    const std::vector<std::string> a = absl::StrSplit(value_in(there, name), ' ', absl::SkipEmpty()),
                                   b = absl::StrSplit(value_in(here, name), ' ', absl::SkipEmpty());
    if (a == b) return;
    absl::StrAppend(&result.components, result.components.empty() ? "" : ", ", name);
    absl::StrAppend(&result.text, result.text.empty() ? "" : "; ", name, ": there ", some_of(words_missing(a, b)),
                    ", here ", some_of(words_missing(b, a)));
  };
  for (const HostKey::Component& c : here.components) add(c.name);
  for (const HostKey::Component& c : there.components)
    if (std::none_of(here.components.begin(), here.components.end(), [&](const auto& h) { return h.name == c.name; }))
      add(c.name);
  return result;
}

absl::Status accepts(const HostKey& here, std::string_view there) {
  HostKey made_for = HostKey::parse(there);
  for (HostKey::Component& made : made_for.components)
    for (const HostKey::Component& c : here.components)
      if (c.name == made.name && c.value.empty()) made.value.clear();
  const HostDifference difference = compare(made_for, here);
  if (difference.components.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("made for another host: ", difference.text, "; make the file where these are as they are here"));
}

}  // namespace rondo::io
