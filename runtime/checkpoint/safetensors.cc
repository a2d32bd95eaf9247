#include "rondo/runtime/checkpoint/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/json.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/io/utf8.h"

namespace rondo::io {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors and token files are little-endian");

constexpr std::string_view kMetadataKey = "__metadata__";
// The format's names of the dtypes, in the order of DType.
constexpr std::string_view kDTypeNames[kNumDTypes] = {"F64", "F32", "BF16", "F16", "I64", "I32", "U8", "BOOL"};

DType parse_dtype(const JsonReader& json, std::string_view text, const std::string& tensor) {
  for (int i = 0; i < kNumDTypes; ++i)
    if (kDTypeNames[i] == text) return static_cast<DType>(i);
  json.fail(absl::StrCat("tensor ", shown(tensor), " has dtype ", shown(text),
                         "; supported are F64 F32 BF16 F16 I64 I32 U8 BOOL"));
}

// Reads {"dtype": .., "shape": [..], "data_offsets": [begin, end]}: each field exactly once, and no other field.
TensorEntry parse_entry(JsonReader& json, std::string name) {
  TensorEntry entry;
  entry.name = std::move(name);
  bool has_dtype = false, has_shape = false, has_offsets = false;
  // The product of the sizes, where a 0 counts as 1. A stride is a product of sizes, too, and must not overflow either.
  int64_t span = 1;
  bool empty = false;
  const auto once = [&](bool& seen, std::string_view key) {
    if (std::exchange(seen, true)) json.fail(absl::StrCat("tensor ", shown(entry.name), " has two ", shown(key)));
  };
  json.object([&](std::string& key) {
    if (key == "dtype") {
      once(has_dtype, key);
      entry.dtype = parse_dtype(json, json.string(), entry.name);
    } else if (key == "shape") {
      once(has_shape, key);
      json.array([&] {
        const uint64_t size = json.unsigned_integer();
        if (entry.shape.rank() == kMaxRank)
          json.fail(absl::StrCat("tensor ", shown(entry.name), " has more than ", kMaxRank, " dimensions"));
        if (size > INT64_MAX || __builtin_mul_overflow(span, std::max<int64_t>(static_cast<int64_t>(size), 1), &span))
          json.fail(absl::StrCat("the shape of tensor ", shown(entry.name), " overflows"));
        empty |= size == 0;
        entry.shape.push_back(static_cast<int64_t>(size));
      });
    } else if (key == "data_offsets") {
      once(has_offsets, key);
      int count = 0;
      json.array([&] {
        const uint64_t value = json.unsigned_integer();
        if (count == 0) entry.begin = value;
        else entry.end = value;
        ++count;
      });
      if (count != 2)
        json.fail(absl::StrCat("data_offsets of tensor ", shown(entry.name), " needs 2 numbers, not ", count));
    } else {
      json.fail(absl::StrCat("tensor ", shown(entry.name), " has an unknown field ", shown(key)));
    }
  });
  if (!has_dtype || !has_shape || !has_offsets)
    json.fail(absl::StrCat("tensor ", shown(entry.name), " lacks ",
                           !has_dtype   ? "dtype"
                           : !has_shape ? "shape"
                                        : "data_offsets"));
  int64_t bytes = 0;
  if (__builtin_mul_overflow(span, static_cast<int64_t>(size_of(entry.dtype)), &bytes))
    json.fail(absl::StrCat("the shape of tensor ", shown(entry.name), " overflows"));
  if (empty) bytes = 0;
  if (entry.begin > entry.end)
    json.fail(absl::StrCat("data_offsets of tensor ", shown(entry.name), " end before they begin"));
  if (entry.end - entry.begin != static_cast<uint64_t>(bytes))
    json.fail(absl::StrCat("data_offsets of tensor ", shown(entry.name), " span ", entry.end - entry.begin,
                           " bytes, its shape ", to_string(entry.shape), " needs ", bytes));
  return entry;
}

bool by_name(const TensorEntry& a, const TensorEntry& b) { return a.name < b.name; }

}  // namespace

std::string_view safetensors_name(DType dtype) { return kDTypeNames[static_cast<int>(dtype)]; }

SafetensorsFile::SafetensorsFile(const std::string& path, Reading reading) try
    : file_(std::make_shared<const OpenFile>(path)) {
  const uint64_t size = file_->size();
  if (size < 8) throw FileError(path, absl::StrCat("not a safetensors file: ", size, " bytes, the header needs 8"));
  uint64_t header = 0;
  file_->read(0, &header, 8);
  if (header > kMaxHeader)
    throw FileError(path, absl::StrCat("not a safetensors file: its first 8 bytes give a header length of ", header,
                                       ", above the limit of ", kMaxHeader));
  if (header > size - 8)
    throw FileError(
        path, absl::StrCat("the header length ", header, " is larger than the file (", size, " bytes): truncated?"));
  data_start_ = 8 + static_cast<size_t>(header);
  std::string text(static_cast<size_t>(header), '\0');
  file_->read(8, text.data(), text.size());
  parse_header(text);
  check_layout(size - data_start_);
  if (reading == Reading::kCopy) return;
  mapping_ = MappedFile::open(path, Mapping::kCopyOnWrite);
  if (mapping_->size() != size) throw FileError(path, "was replaced while it was opened");
} catch (const std::bad_alloc&) {
  throw_out_of_memory("SafetensorsFile");
}

const std::string& SafetensorsFile::path() const { return file_->path(); }

void SafetensorsFile::parse_header(std::string_view header) {
  JsonReader json(path(), header);
  if (!header.starts_with('{')) json.fail("the header must start with '{'");
  bool has_metadata = false;
  json.object([&](std::string& name) {
    if (name != kMetadataKey) {
      entries_.push_back(parse_entry(json, std::move(name)));
      return;
    }
    if (std::exchange(has_metadata, true)) json.fail("two __metadata__ objects");
    json.object([&](std::string& key) {
      if (json.peek() != '"') json.fail(absl::StrCat("__metadata__ ", shown(key), " must be a string"));
      std::string value = json.string();
      const auto [at, inserted] = metadata_.try_emplace(std::move(key), std::move(value));
      if (!inserted) json.fail(absl::StrCat("two __metadata__ entries ", shown(at->first)));
    });
  });
  json.finish();
  entries_.shrink_to_fit();
  std::sort(entries_.begin(), entries_.end(), by_name);
  const auto twin = std::adjacent_find(entries_.begin(), entries_.end(),
                                       [](const TensorEntry& a, const TensorEntry& b) { return a.name == b.name; });
  if (twin != entries_.end()) throw FileError(path(), "two tensors named " + shown(twin->name));
}

// Checks that the tensors cover the data exactly: after sorting by offset, one pass finds every overlap and every gap.
void SafetensorsFile::check_layout(uint64_t data_bytes) const {
  std::vector<uint32_t> order(entries_.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(entries_[a].begin, entries_[a].end) < std::pair(entries_[b].begin, entries_[b].end);
  });
  uint64_t expected = 0;
  for (const uint32_t i : order) {
    const TensorEntry& entry = entries_[i];
    if (entry.begin != expected)
      throw FileError(path(), absl::StrCat("tensor ", shown(entry.name), " begins at byte ", entry.begin,
                                           entry.begin < expected ? ", which overlaps the one before it, ending at "
                                                                  : ", which leaves a hole after byte ",
                                           expected));
    if (entry.end > data_bytes)
      throw FileError(path(), absl::StrCat("tensor ", shown(entry.name), " ends at byte ", entry.end,
                                           " but the file has ", data_bytes, " bytes of data: truncated?"));
    expected = entry.end;
  }
  if (expected != data_bytes)
    throw FileError(path(), absl::StrCat(data_bytes - expected, " bytes after the last tensor belong to none"));
}

const TensorEntry* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                                   [](const TensorEntry& entry, std::string_view n) { return entry.name < n; });
  return at != entries_.end() && at->name == name ? &*at : nullptr;
}

Tensor SafetensorsFile::tensor(std::string_view name) const try {
  const TensorEntry* entry = find(name);
  if (entry == nullptr) throw FileError(path(), "has no tensor " + shown(name));
  return tensor(*entry);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("SafetensorsFile::tensor");
}

void SafetensorsFile::read(const TensorEntry& entry, uint64_t begin, void* out, size_t bytes) const {
  if (bytes == 0) return;
  file_->read(data_start_ + entry.begin + begin, out, bytes);
}

Tensor SafetensorsFile::tensor(const TensorEntry& entry) const try {
  const size_t bytes = static_cast<size_t>(entry.end - entry.begin);
  std::byte* data = mapping_ ? mapping_->mutable_data() + data_start_ + entry.begin : nullptr;
  Tensor copy;
  if (data == nullptr || (bytes > 0 && reinterpret_cast<uintptr_t>(data) % size_of(entry.dtype) != 0)) {
    copy = Tensor::empty(entry.shape, {entry.dtype, kCPU});
    data = copy.storage().data();
    read(entry, 0, data, bytes);
  }
  // A byte of a bool that is neither 0 nor 1 is undefined behaviour in C++.
  if (entry.dtype == kBool && !std::all_of(data, data + bytes, [](std::byte b) { return b <= std::byte{1}; }))
    throw FileError(path(), "BOOL tensor " + shown(entry.name) + " holds a byte that is neither 0 nor 1");
  if (copy.defined()) return copy;
  return Tensor::from_storage(Storage::borrow(data, bytes, mapping_), 0, entry.shape, contiguous_strides(entry.shape),
                              entry.dtype);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("SafetensorsFile::tensor");
}

LoadedTensors SafetensorsFile::load_all() && try {
  LoadedTensors loaded;
  for (TensorEntry& entry : entries_) {
    Tensor made = tensor(entry);
    loaded.tensors.emplace_hint(loaded.tensors.end(), std::move(entry.name), std::move(made));
  }
  loaded.metadata = std::move(metadata_);
  return loaded;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("SafetensorsFile::load_all");
}

LoadedTensors load_safetensors(const std::string& path) try {
  LoadedTensors loaded = path.ends_with(".index.json") ? load_sharded_safetensors(path)
                                                       : SafetensorsFile(path).load_all();
  for (auto& [name, tensor] : loaded.tensors) tensor = tensor.to(default_device());
  return loaded;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("load_safetensors");
}

std::map<std::string, std::string> read_safetensors_index(const std::string& index_path) try {
  const std::string text = read_text(index_path, SafetensorsFile::kMaxHeader);
  JsonReader json(index_path, text);
  std::map<std::string, std::string> weight_map;
  bool has_map = false;
  json.object([&](std::string& key) {
    if (key != "weight_map") return json.skip();
    if (std::exchange(has_map, true)) json.fail("two weight_map objects");
    json.object([&](std::string& name) {
      if (json.peek() != '"') json.fail(absl::StrCat("weight_map ", shown(name), " must be a file name"));
      std::string file = json.string();
      if (file.empty() || file == "." || file == ".." || file.find('/') != file.npos || file.find('\\') != file.npos ||
          file.find('\0') != file.npos)
        json.fail(absl::StrCat("weight_map names ", shown(file), ", which is not a plain file name in this folder"));
      const auto [at, inserted] = weight_map.try_emplace(std::move(name), std::move(file));
      if (!inserted) json.fail(absl::StrCat("weight_map has two entries ", shown(at->first)));
    });
  });
  json.finish();
  if (!has_map) throw FileError(index_path, "has no weight_map");
  return weight_map;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("read_safetensors_index");
}

LoadedTensors load_sharded_safetensors(const std::string& index_path) try {
  const std::filesystem::path folder = std::filesystem::path(index_path).parent_path();
  std::map<std::string, SafetensorsFile> shards;
  LoadedTensors loaded;
  for (const auto& [name, file] : read_safetensors_index(index_path)) {
    auto shard = shards.find(file);
    if (shard == shards.end()) shard = shards.try_emplace(file, (folder / file).string()).first;
    loaded.tensors.emplace_hint(loaded.tensors.end(), name, shard->second.tensor(name));
  }
  if (!shards.empty()) loaded.metadata = shards.begin()->second.metadata();
  return loaded;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("load_sharded_safetensors");
}

std::vector<TensorMap::const_iterator> file_order(const TensorMap& tensors) {
  std::vector<TensorMap::const_iterator> order;
  for (auto it = tensors.begin(); it != tensors.end(); ++it) order.push_back(it);
  // Orders the tensors by descending size of their dtype. Dtypes of equal size are in the order of the reference
  // implementation.
  constexpr int kRank[kNumDTypes] = {1, 2, 4, 5, 0, 3, 6, 7};  // I64 F64 F32 I32 BF16 F16 U8 BOOL
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) {
    return kRank[static_cast<int>(a->second.dtype())] < kRank[static_cast<int>(b->second.dtype())];
  });
  return order;
}

void save_safetensors(const std::string& path, const TensorMap& tensors, const Metadata& metadata) try {
  const auto check_name = [&](const std::string& name) {
    if (!is_valid_utf8(name)) throw FileError(path, "cannot save: a name or a metadata value is not valid UTF-8");
  };
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      check_name(key);
      check_name(value);
      append_json_string(header, key);
      header += ':';
      append_json_string(header, value);
      header += ',';
    }
    header.back() = '}';
    header += ',';
  }
  for (const auto& [name, tensor] : tensors) {
    check_name(name);
    if (name == kMetadataKey) throw FileError(path, "cannot save: __metadata__ cannot be a tensor's name");
    if (!tensor.defined()) throw FileError(path, "cannot save: tensor " + shown(name) + " is undefined");
  }
  const auto order = file_order(tensors);
  int64_t offset = 0;
  for (const auto& it : order) {
    const auto& [name, tensor] = *it;
    append_json_string(header, name);
    absl::StrAppend(&header, ":{\"dtype\":\"", std::string(safetensors_name(tensor.dtype())), "\",\"shape\":[");
    for (int i = 0; i < tensor.rank(); ++i) absl::StrAppend(&header, i ? "," : "", tensor.sizes()[i]);
    absl::StrAppend(&header, "],\"data_offsets\":[", offset, ",", offset + tensor.nbytes(), "]},");
    offset += tensor.nbytes();
  }
  if (header.size() > 1) header.pop_back();
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t length = header.size();
  if (length > SafetensorsFile::kMaxHeader)
    throw FileError(path, absl::StrCat("cannot save: the header would have ", length, " bytes, the limit is ",
                                       SafetensorsFile::kMaxHeader));
  AtomicFile file(path);
  file.write(&length, 8);
  file.write(header);
  for (const auto& it : order) {
    const Tensor dense = it->second.detach().contiguous().to(kCPU);
    if (dense.numel() > 0) file.write(dense.raw_data(), static_cast<size_t>(dense.nbytes()));
  }
  file.commit();
} catch (const std::bad_alloc&) {
  throw_out_of_memory("save_safetensors");
}

}  // namespace rondo::io
