#include "rondo/modules/state_dict.h"

#include <cstring>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/runtime/autograd/autograd.h"

namespace rondo::nn {
namespace {

std::string message_of(std::string_view what, const StateDictReport& report) {
  constexpr size_t kShown = 8;
  std::string text = absl::StrCat(std::string(what), ": the state dict does not fit");
  auto list = [&](const char* title, const std::vector<std::string>& names) {
    if (names.empty()) return;
    const std::vector<std::string> first(names.begin(), names.begin() + std::min(kShown, names.size()));
    absl::StrAppend(&text, "\n  ", title, ": ", absl::StrJoin(first, ", "));
    if (names.size() > kShown) absl::StrAppend(&text, " and ", names.size() - kShown, " more");
  };
  list("missing", report.missing);
  list("unexpected", report.unexpected);
  list("mismatched", report.mismatched);
  return text;
}

std::string describe(const Tensor& t) { return absl::StrCat(std::string(name_of(t.dtype())), to_string(t.sizes())); }

bool same_bytes(const Tensor& a, const Tensor& b) {
  if (a.is_same(b)) return true;
  if (a.dtype() != b.dtype()) return false;
  const Tensor x = a.detach().contiguous().to(kCPU), y = b.detach().contiguous().to(kCPU);
  return std::memcmp(x.raw_data(), y.raw_data(), static_cast<size_t>(x.nbytes())) == 0;
}

}  // namespace

StateDictError::StateDictError(std::string_view what, StateDictReport report)
    : Error(message_of(what, report)), report_(std::move(report)) {}

StateDictReport load_tensors(std::span<const NamedTensor> targets, const StateDict& source, bool strict,
                             std::string_view what) {
  return load_tensors(targets, source, strict, what, [](Tensor& target, const Tensor& value) {
    if (!target.is_same(value)) target.copy_(value);
  });
}

StateDictReport load_tensors(std::span<const NamedTensor> targets, const StateDict& source, bool strict,
                             std::string_view what, absl::FunctionRef<void(Tensor&, const Tensor&)> store) {
  StateDictReport report;
  std::unordered_map<const TensorImpl*, const std::pair<const std::string, Tensor>*>
      given;  // first value of each target
  std::vector<std::pair<Tensor, Tensor>> copies;
  size_t used = 0;
  for (const auto& [name, target] : targets) {
    const auto found = source.find(name);
    if (found == source.end()) continue;
    ++used;
    const Tensor& value = found->second;
    if (!value.defined()) {
      report.mismatched.push_back(absl::StrCat(name, ": undefined"));
      continue;
    }
    const bool converts = is_floating(target.dtype()) && is_floating(value.dtype());
    if (!(value.sizes() == target.sizes()) || (value.dtype() != target.dtype() && !converts)) {
      report.mismatched.push_back(absl::StrCat(name, ": ", describe(target), " wanted, ", describe(value), " given"));
      continue;
    }
    const auto [first, is_new] = given.try_emplace(target.impl(), &*found);
    if (is_new) copies.emplace_back(target, value);
    else if (!same_bytes(first->second->second, value))
      report.mismatched.push_back(absl::StrCat(name, ": tied to ", first->second->first, ", but the values differ"));
  }
  std::unordered_map<const TensorImpl*, bool> reported;
  for (const auto& [name, target] : targets)
    if (!given.contains(target.impl()) && !source.contains(name) && reported.try_emplace(target.impl(), true).second)
      report.missing.push_back(name);
  if (used < source.size()) {
    std::unordered_map<std::string_view, bool> wanted;
    for (const auto& [name, target] : targets) wanted[name] = true;
    for (const auto& [name, value] : source)
      if (!wanted.contains(name)) report.unexpected.push_back(name);
  }
  if (!report.mismatched.empty() || (strict && !report.empty())) throw StateDictError(what, report);
  const NoGrad off;
  for (auto& [target, value] : copies) store(target, value);
  return report;
}

}  // namespace rondo::nn
