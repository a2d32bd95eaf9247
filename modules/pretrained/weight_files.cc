#include "rondo/modules/pretrained/weight_files.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rondo/modules/pretrained/config_fields.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/op/recorder.h"
#include "rondo/runtime/random/random.h"

namespace rondo::nn {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWeights = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
// Bytes of the buffer for tensors that change their dtype or layout.
constexpr int64_t kBuffer = 4 << 20;

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// True for names such as "model-00001-of-00003.safetensors".
bool is_shard(std::string_view name) {
  constexpr std::string_view kPattern = "model-#####-of-#####.safetensors";
  return name.size() == kPattern.size() && std::equal(name.begin(), name.end(), kPattern.begin(), [](char c, char p) {
           return p == '#' ? c >= '0' && c <= '9' : c == p;
         });
}

bool begins_with_any(std::string_view name, const std::vector<std::string>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const std::string& p) { return name.starts_with(p); });
}
bool ends_with_any(std::string_view name, const std::vector<std::string>& ends) {
  return std::any_of(ends.begin(), ends.end(), [&](const std::string& end) { return name.ends_with(end); });
}

// True if dtype, shape and bytes are the same.
bool same_values(const WeightFiles::Place& a, const WeightFiles::Place& b) {
  if (a.entry->dtype != b.entry->dtype || !(a.entry->shape == b.entry->shape)) return false;
  const uint64_t bytes = a.entry->end - a.entry->begin;
  std::vector<std::byte> x(static_cast<size_t>(std::min<uint64_t>(bytes, kBuffer))), y(x.size());
  for (uint64_t at = 0; at < bytes; at += x.size()) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(x.size(), bytes - at));
    a.file->read(*a.entry, at, x.data(), n);
    b.file->read(*b.entry, at, y.data(), n);
    if (std::memcmp(x.data(), y.data(), n) != 0) return false;
  }
  return true;
}

std::string described(DType dtype, const Dims& sizes) {
  return absl::StrCat(std::string(name_of(dtype)), to_string(sizes));
}

}  // namespace

WeightFiles::WeightFiles(const std::string& folder, io::Reading reading) {
  std::error_code unreadable;
  const bool is_file = fs::is_regular_file(folder, unreadable);
  const fs::path root = is_file ? fs::path(folder).parent_path() : fs::path(folder);
  const std::string whole = is_file ? fs::path(folder).filename().string() : kWeights;
  const auto open = [&](const std::string& name) -> const io::SafetensorsFile& {
    auto& file = files_[name];
    if (!file) file = std::make_unique<io::SafetensorsFile>((root / name).string(), reading);
    return *file;
  };
  if (is_file || is_there(root / whole)) {
    const io::SafetensorsFile& file = open(whole);
    for (const io::TensorEntry& entry : file.entries()) places_[entry.name] = {&file, &entry};
    return;
  }
  if (!is_there(root / kIndex))
    throw FileError(folder, absl::StrCat("has neither ", kWeights, " nor ", kIndex,
                                         is_there(root / "pytorch_model.bin")
                                             ? "; pytorch_model.bin is a pickle, which is not read: convert it with "
                                               "transformers' save_pretrained"
                                             : ""));
  const std::string index = (root / kIndex).string();
  for (const auto& [name, file] : io::read_safetensors_index(index)) {
    const io::SafetensorsFile& shard = open(file);
    const io::TensorEntry* entry = shard.find(name);
    if (entry == nullptr)
      throw FileError(index, absl::StrCat("says that ", file, " holds ", io::shown(name), ", which it does not"));
    places_[name] = {&shard, entry};
  }
  for (const auto& [name, shard] : files_)
    for (const io::TensorEntry& entry : shard->entries()) {
      const auto at = places_.find(entry.name);
      if (at == places_.end())
        throw FileError(index, absl::StrCat("does not name ", io::shown(entry.name), ", which ", name, " holds"));
      // Programs that read all shards take the value that they read last.
      if (at->second.entry != &entry && !same_values(at->second, {shard.get(), &entry}))
        throw FileError(index, absl::StrCat("has two shards with values of ", io::shown(entry.name),
                                            " that differ: ", name, " and the one that it names"));
    }
}

namespace {

// A published tensor, and the place that it is read from; no place: it is initialised.
struct Source {
  const PublishedTensor* tensor;
  WeightFiles::Place place;
};

class Loader {
 public:
  Loader(ModuleBase& module, const Published& published, const WeightFiles& files, const PretrainedOptions& options)
      : module_(module), published_(published), files_(files), options_(options), targets_(module.state_dict()) {}

  void run() {
    match();
    if (!report_.empty()) throw StateDictError(what(), report_);
    std::map<std::string, std::vector<Source>> parts;  // the parts of each module tensor
    for (const Source& source : sources_) parts[source.tensor->name].push_back(source);
    StateDict state;
    for (const auto& [name, sources] : parts) state[name] = make(name, sources).to(default_device());
    check_aliases();
    module_.load_state_dict(state, /*strict=*/true, /*assign=*/true);
  }

 private:
  // Returns the sizes of a tensor's part in the file.
  Dims file_sizes(const PublishedTensor& tensor) const {
    Dims sizes = targets_.at(tensor.name).sizes();
    if (tensor.rows > 0) sizes[0] = tensor.rows;
    if (tensor.transposed) std::swap(sizes[0], sizes[1]);
    return sizes;
  }

  // Finds a tensor in the files. Files of the bare model lack the prefix, those of a model with a head have it. BERT's
  // first files call a LayerNorm's weight and bias gamma and beta.
  const std::pair<const std::string, WeightFiles::Place>* find(const std::string& name) const {
    const std::string& prefix = published_.prefix;
    for (const std::string& candidate : {name, name.starts_with(prefix) ? name.substr(prefix.size()) : prefix + name})
      for (const std::string& spelled : {candidate, in_first_files(candidate)}) {
        const auto at = files_.places().find(spelled);
        if (at != files_.places().end()) return &*at;
      }
    return nullptr;
  }
  static std::string in_first_files(const std::string& name) {
    for (const auto& [now, then] :
         {std::pair("LayerNorm.weight", "LayerNorm.gamma"), {"LayerNorm.bias", "LayerNorm.beta"}})
      if (name.ends_with(now)) return name.substr(0, name.size() - std::string_view(now).size()) + then;
    return name;
  }

  std::string what() const { return absl::StrCat(published_.architecture, ".from_pretrained"); }

  // Finds every tensor in the files, and lists what does not fit.
  void match() {
    std::set<std::string_view> used;
    for (const PublishedTensor& tensor : published_.tensors) {
      const auto* found = find(tensor.file_name);
      for (const auto& [name, tied_to] : published_.aliases)  // a file may hold the tensor under its second name only
        if (found == nullptr && tied_to == tensor.file_name) found = find(name);
      const bool may_start_fresh = begins_with_any(tensor.file_name, options_.fresh);
      // Tensors that are not floating are counters (num_batches_tracked), which files from before PyTorch 0.4.1 lack.
      const DType target = targets_.at(tensor.name).dtype();
      if (found == nullptr) {
        if (may_start_fresh || !is_floating(target)) sources_.push_back({&tensor, {}});
        else report_.missing.push_back(tensor.file_name);
        continue;
      }
      used.insert(found->first);
      const io::TensorEntry& entry = *found->second.entry;
      const Dims wanted = file_sizes(tensor);
      if (entry.shape == wanted && (is_floating(target) ? is_floating(entry.dtype) : entry.dtype == target)) {
        sources_.push_back({&tensor, found->second});
      } else if (may_start_fresh && is_floating(entry.dtype)) {
        sources_.push_back({&tensor, {}});
      } else {
        report_.mismatched.push_back(
            absl::StrCat(found->first, ": a ", is_floating(target) ? "float" : std::string(name_of(target)),
                         to_string(wanted), " wanted, ", described(entry.dtype, entry.shape), " given"));
      }
    }
    for (const auto& [name, tied_to] : published_.aliases)
      if (const auto* found = find(name)) used.insert(found->first);
    for (const auto& [name, place] : files_.places())
      if (!used.contains(name) && !ends_with_any("." + name, dotted(published_.computed)) &&
          !begins_with_any(name, options_.ignore))
        report_.unexpected.push_back(name);
  }
  static std::vector<std::string> dotted(std::vector<std::string> ends) {
    for (std::string& end : ends)
      if (!end.starts_with('.')) end.insert(0, ".");
    return ends;
  }

  Tensor make(const std::string& name, const std::vector<Source>& sources) {
    const Dims& sizes = targets_.at(name).sizes();
    const Source& first = sources.front();
    const DType target = targets_.at(name).dtype();
    const DType dtype = !is_floating(target) ? target
                        : options_.dtype     ? *options_.dtype
                        : first.place.entry  ? first.place.entry->dtype
                                             : kF32;
    const bool whole = sources.size() == 1 && first.tensor->rows == 0 && first.place.entry != nullptr;
    if (whole && options_.map && !first.tensor->transposed && first.place.entry->dtype == dtype)
      return first.place.file->tensor(*first.place.entry);
    Tensor out = Tensor::empty(sizes, {dtype, kCPU});
    for (const Source& source : sources) {
      const PublishedTensor& tensor = *source.tensor;
      Tensor part = tensor.rows > 0 ? out.slice(0, {tensor.row, tensor.row + tensor.rows}) : out;
      if (source.place.entry == nullptr) start(part, name);
      else read(source.place, tensor.transposed, part);
    }
    return out;
  }

  // Initialises a tensor that the file does not have.
  void start(Tensor& part, const std::string& name) {
    if (!is_floating(part.dtype())) part.zero_();
    else if (part.rank() >= 2) part.copy_(Tensor::randn(part.sizes(), part.device(), &generator_).mul_(0.02));
    else part.fill_(name.ends_with("bias") ? 0.0 : 1.0);
  }

  // Reads a tensor into `part`, a dense range of memory that nothing else refers to yet.
  void read(const WeightFiles::Place& place, bool transposed, Tensor& part) const {
    const io::TensorEntry& entry = *place.entry;
    if (part.numel() == 0) return;
    if (entry.dtype == part.dtype() && !transposed) {
      std::byte* to = part.storage().data() + part.storage_offset() * static_cast<int64_t>(size_of(part.dtype()));
      const int64_t bytes = part.nbytes();
      parallel_for((bytes + kBuffer - 1) / kBuffer, 1, [&](int64_t first, int64_t last) {
        const int64_t begin = first * kBuffer, end = std::min(last * kBuffer, bytes);
        place.file->read(entry, static_cast<uint64_t>(begin), to + begin, static_cast<size_t>(end - begin));
      });
      return;
    }
    // Reads rows of the file through a buffer.
    Tensor seen = transposed ? part.transpose(0, 1) : part;
    if (seen.rank() == 0) seen = seen.view({1});
    const int64_t rows = seen.size(0);
    const int64_t row_bytes = static_cast<int64_t>(entry.end - entry.begin) / rows;
    const int64_t step = std::clamp<int64_t>(kBuffer / row_bytes, 1, rows);
    Dims chunk = seen.sizes();
    chunk[0] = step;
    const Tensor buffer = Tensor::empty(chunk, {entry.dtype, kCPU});
    for (int64_t row = 0; row < rows; row += step) {
      const int64_t n = std::min(step, rows - row);
      place.file->read(entry, static_cast<uint64_t>(row * row_bytes), buffer.storage().data(),
                       static_cast<size_t>(n * row_bytes));
      seen.slice(0, {row, row + n}).copy_(buffer.slice(0, {0, n}));
    }
  }

  // Checks that a tied tensor that the file holds twice has the same values both times.
  void check_aliases() {
    for (const auto& [name, tied_to] : published_.aliases) {
      const auto *alias = find(name), *original = find(tied_to);
      if (alias == nullptr || original == nullptr) continue;
      if (!same_values(alias->second, original->second))
        report_.mismatched.push_back(
            absl::StrCat(alias->first, ": config.json ties it to ", original->first, ", but the values differ"));
    }
    if (!report_.empty()) throw StateDictError(what(), report_);
  }

  ModuleBase& module_;
  const Published& published_;
  const WeightFiles& files_;
  const PretrainedOptions& options_;
  const StateDict targets_;
  Generator generator_{options_.seed};
  std::vector<Source> sources_;
  StateDictReport report_;
};

}  // namespace

void load_weights(ModuleBase& module, const Published& published, const WeightFiles& files,
                  const PretrainedOptions& options) {
  const NoGrad off;
  const RecorderScope run(nullptr);
  Loader(module, published, files, options).run();
}

io::TensorMap published_tensors(const ModuleBase& module, const Published& published) {
  const NoGrad off;
  const StateDict state = module.state_dict();
  io::TensorMap tensors;
  std::set<std::string_view> used;
  for (const PublishedTensor& tensor : published.tensors) {
    const auto at = state.find(tensor.name);
    if (at == state.end()) throw Error(absl::StrCat("save_pretrained: the model has no tensor ", tensor.name));
    used.insert(at->first);
    Tensor value = at->second;
    if (tensor.rows > 0) value = value.slice(0, {tensor.row, tensor.row + tensor.rows});
    if (tensor.transposed) value = value.transpose(0, 1);
    tensors[tensor.file_name] = value;
  }
  std::vector<std::string> others;
  for (const auto& [name, tensor] : state)
    if (!used.contains(name)) others.push_back(name);
  if (!others.empty())
    throw Error(absl::StrCat("save_pretrained: ", published.architecture, " has no place for ",
                             absl::StrJoin(others, ", "), "; merge or remove adapters first"));
  return tensors;
}

void save_weights(const io::TensorMap& tensors, const std::string& folder, const SaveOptions& options) {
  if (options.max_shard_bytes <= 0)
    throw Error(absl::StrCat("SaveOptions::max_shard_bytes must be positive, got ", options.max_shard_bytes));
  const fs::path root(folder);
  const io::Metadata metadata = {{"format", "pt"}};  // transformers refuses a file without it
  std::vector<io::TensorMap> shards(1);
  int64_t total = 0, filled = 0, elements = 0;
  for (const auto& [name, tensor] : tensors) {
    const int64_t bytes = tensor.nbytes();
    if (filled > 0 && filled + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back()[name] = tensor;
    filled += bytes;
    total += bytes;
    elements += tensor.numel();
  }
  std::set<std::string> written;
  if (shards.size() == 1) {
    io::save_safetensors((root / kWeights).string(), tensors, metadata);
    written.insert(kWeights);
  } else {
    std::string map;
    for (size_t i = 0; i < shards.size(); ++i) {
      const std::string file = formatted("model-%05d-of-%05d.safetensors", i + 1, shards.size());
      io::save_safetensors((root / file).string(), shards[i], metadata);
      written.insert(file);
      for (const auto& [name, tensor] : shards[i])
        absl::StrAppend(&map, map.empty() ? "" : ",\n", "    ", json_text(name), ": ", json_text(file));
    }
    io::write_file_atomic((root / kIndex).string(), absl::StrCat("{\n  \"metadata\": {\n    \"total_parameters\": ",
                                                                 elements, ",\n    \"total_size\": ", total,
                                                                 "\n  },\n  \"weight_map\": {\n", map, "\n  }\n}\n"));
    written.insert(kIndex);
  }
  // Removes the weights of an older save. Loaders look for model.safetensors first, then for the index, so an old
  // model.safetensors would hide new shards.
  for (const std::string& name : io::list_folder(folder)) {
    if ((name != kWeights && name != kIndex && !is_shard(name)) || written.contains(name)) continue;
    std::error_code error;
    fs::remove(root / name, error);
    if (error)
      throw FileError((root / name).string(), "cannot remove the weights of an older save: " + error.message());
  }
}

}  // namespace rondo::nn
