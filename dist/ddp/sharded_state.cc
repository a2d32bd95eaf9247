#include "rondo/dist/ddp/sharded_state.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace rondo::dist {
namespace {

constexpr const char* kMaster = "master";
constexpr int64_t kMostText = 1 << 30;

std::string prefix_of(size_t slot) { return absl::StrCat("state.", slot, "."); }

// Calls fn for each entry "state.<slot>.<name>".
void visit(const nn::StateDict& state, size_t slot,
           absl::FunctionRef<void(std::string_view name, const Tensor& value)> fn) {
  const std::string prefix = prefix_of(slot);
  for (auto at = state.lower_bound(prefix); at != state.end() && at->first.starts_with(prefix); ++at)
    fn(std::string_view(at->first).substr(prefix.size()), at->second);
}

// Describes one state array of a piece, such as exp_avg, that a rank sends. A rank sends the bytes of all its arrays
// one after the other.
struct Entry {
  size_t parameter;
  bool is_cut;  // true: the array is a range of the whole array, starting at `begin`; false: it is the whole array
  int64_t begin;
  std::string name;
  DType dtype;
  Dims sizes;
  int64_t bytes() const { return sizes.numel() * static_cast<int64_t>(size_of(dtype)); }
};

std::string text_of(const Entry& e) {
  return absl::StrCat(e.parameter, " ", e.is_cut ? 1 : 0, " ", e.begin, " ", e.name, " ", static_cast<int>(e.dtype),
                      " ", absl::StrJoin(e.sizes, " "), "\n");
}
Entry entry_of(std::string_view line) {
  const std::vector<std::string> words = absl::StrSplit(absl::string_view(line.data(), line.size()), ' ',
                                                        absl::SkipEmpty());
  const auto number = [&](size_t i) {
    int64_t value = 0;
    invariant(i < words.size() && absl::SimpleAtoi(words[i], &value), "a rank describes its states in another way");
    return value;
  };
  Entry e{static_cast<size_t>(number(0)), number(1) != 0, number(2), words.at(3), static_cast<DType>(number(4)), {}};
  for (size_t i = 5; i < words.size(); ++i) e.sizes.push_back(number(i));
  return e;
}

// Copies the arrays that a rank has sent to their places in `out`.
void place(const std::string& text, const std::byte* data, const std::vector<Tensor>& parameters, nn::StateDict& out) {
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const Entry e = entry_of({line.data(), line.size()});
    Tensor& whole = out[prefix_of(e.parameter) + e.name];
    const Dims sizes = e.is_cut ? parameters.at(e.parameter).sizes() : e.sizes;
    if (!whole.defined()) whole = Tensor::zeros(sizes, {e.dtype, kCPU});
    invariant(whole.dtype() == e.dtype && e.begin + e.sizes.numel() <= whole.numel(), "the ranks' states do not fit");
    auto* to = static_cast<std::byte*>(whole.raw_mutable_data());
    if (e.bytes() > 0)
      std::memcpy(to + e.begin * static_cast<int64_t>(size_of(e.dtype)), data, static_cast<size_t>(e.bytes()));
    data += e.bytes();
  }
}

}  // namespace

nn::StateDict gather_state(ProcessGroup& group, const std::vector<Tensor>& parameters,
                           const std::vector<ShardPiece>& pieces, const nn::StateDict& local,
                           std::optional<int> only_on, absl::FunctionRef<bool(std::string_view name)> wanted) {
  const bool keeps = !only_on || *only_on == group.rank();
  nn::StateDict out;
  size_t n_buckets = 0;
  for (size_t slot = 0; slot < pieces.size(); ++slot) {
    if (pieces[slot].bucket) n_buckets = std::max(n_buckets, *pieces[slot].bucket + 1);
    else
      visit(local, slot, [&](std::string_view name, const Tensor& value) {
        if (wanted(name)) out[prefix_of(pieces[slot].parameter) + std::string(name)] = value.to(kCPU).clone();
      });
  }
  for (const auto& [name, value] : local)
    if (!name.starts_with("state.")) out[name] = value;
  // Sends the states bucket by bucket, so that the ranks that keep nothing need little memory.
  for (size_t b = 0; b < n_buckets; ++b) {
    std::string text;
    std::vector<Tensor> values;
    int64_t bytes = 0;
    for (size_t slot = 0; slot < pieces.size(); ++slot) {
      const ShardPiece& piece = pieces[slot];
      if (piece.bucket != b || !piece.is_mine) continue;
      visit(local, slot, [&](std::string_view name, const Tensor& value) {
        if (!wanted(name)) return;
        const bool is_cut = piece.is_cut && name != "step";
        const Entry entry{piece.parameter,   is_cut,        is_cut ? piece.begin : 0,
                          std::string(name), value.dtype(), value.sizes()};
        text += text_of(entry);
        values.push_back(value.detach().contiguous().to(kCPU));
        bytes += entry.bytes();
      });
    }
    const std::string what = absl::StrCat("states of bucket ", b);
    const std::vector<std::string> texts = gather_texts(group, text, kMostText, what);
    const Tensor size = Tensor::from<int64_t>({bytes}, {1}, kCPU);
    Tensor sizes = Tensor::zeros({group.world_size(), 1}, {kI64, kCPU});
    group.all_gather(sizes, size, what).synchronize();
    const std::vector<int64_t> list = sizes.to_vector<int64_t>();
    const int64_t row = *std::max_element(list.begin(), list.end());
    if (row == 0) continue;
    Tensor mine = Tensor::zeros({row}, {kU8, kCPU}), all = Tensor::empty({group.world_size(), row}, {kU8, kCPU});
    auto* to = static_cast<std::byte*>(mine.raw_mutable_data());
    for (const Tensor& value : values) {
      if (value.nbytes() > 0) std::memcpy(to, value.raw_data(), static_cast<size_t>(value.nbytes()));
      to += value.nbytes();
    }
    group.all_gather(all, mine, what).synchronize();
    if (!keeps) continue;
    const auto* from = static_cast<const std::byte*>(all.raw_data());
    for (size_t r = 0; r < texts.size(); ++r) place(texts[r], from + static_cast<int64_t>(r) * row, parameters, out);
  }
  if (!keeps) out.clear();
  return out;
}

namespace {

// Reports the entries of a parameter that are missing, unexpected, or (if it is cut) not of its shape.
void check_entries(size_t i, const Tensor& parameter, bool is_cut, const optim::UpdatePlan& plan,
                   const nn::StateDict& whole, nn::StateDictReport& report) {
  std::set<std::string, std::less<>> names = {"step"};
  for (const optim::StateSpec& spec : plan.states)
    if (!spec.transient) names.insert(spec.name);
  std::set<std::string, std::less<>> allowed = names, given;
  allowed.insert({"average", kMaster});
  for (const optim::StateSpec& spec : plan.states) allowed.insert(absl::StrCat(spec.name, ".scale"));
  visit(whole, i, [&](std::string_view name, const Tensor& value) {
    given.insert(std::string(name));
    const std::string full = prefix_of(i) + std::string(name);
    if (!allowed.contains(name)) report.unexpected.push_back(full);
    else if (name != "step" && (is_cut || name == kMaster) && !(value.sizes() == parameter.sizes()))
      report.mismatched.push_back(
          absl::StrCat(full, ": ", to_string(parameter.sizes()), " wanted, ", to_string(value.sizes()), " given"));
  });
  if (given.empty() || (given.size() == 1 && given.contains("average"))) return;
  for (const std::string& name : names)
    if (!given.contains(name)) report.missing.push_back(prefix_of(i) + name);
}

}  // namespace

nn::StateDict cut_state(const char* what, const std::vector<Tensor>& parameters, const std::vector<ShardPiece>& pieces,
                        const std::vector<optim::ParamSlot>& slots, const nn::StateDict& whole) {
  nn::StateDictReport report;
  nn::StateDict cut;
  for (size_t slot = 0; slot < pieces.size(); ++slot) {
    const ShardPiece& piece = pieces[slot];
    const size_t i = piece.parameter;
    if (slot == 0 || pieces[slot - 1].parameter != i)
      check_entries(i, parameters[i], piece.is_cut, *slots[slot].plan, whole, report);
    if (!report.empty() || (!piece.is_cut && !piece.is_mine)) continue;
    visit(whole, i, [&](std::string_view name, const Tensor& value) {
      const std::string key = prefix_of(slot) + std::string(name);
      if (!piece.is_cut || name == "step") cut[key] = value;
      else
        cut[key] = value.detach().contiguous().view({value.numel()}).slice(0, {piece.begin, piece.begin + piece.numel});
    });
  }
  for (const auto& [name, value] : whole) {
    if (!name.starts_with("state.")) {
      cut[name] = value;
      continue;
    }
    size_t i = 0;
    const std::string_view rest = std::string_view(name).substr(6);
    const size_t dot = rest.find('.');
    if (dot == std::string_view::npos || !absl::SimpleAtoi(absl::string_view(rest.data(), dot), &i) ||
        i >= parameters.size())
      report.unexpected.push_back(name);
  }
  if (!report.empty()) throw nn::StateDictError(what, report);
  return cut;
}

}  // namespace rondo::dist
