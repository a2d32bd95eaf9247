#include "rondo/runtime/checkpoint/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/checksum.h"
#include "rondo/runtime/io/json.h"

namespace rondo::io {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFormat = "rondo.checkpoint.1";
constexpr std::string_view kPrefix = "ckpt-", kSuffix = ".safetensors";
constexpr std::string_view kModel = "model.", kOptimizer = "optimizer.", kExtra = "extra.";

// Returns the name of a checkpoint's file. It has a fixed width up to step 99,999,999 and is longer beyond, so
// checkpoints are ordered by step, not by name.
std::string name_of_step(int64_t step) {
  return absl::StrCat(std::string(kPrefix), absl::Dec(step, absl::kZeroPad8), std::string(kSuffix));
}

// Returns the step in a file's name, or -1 if it is not a checkpoint's name.
int64_t step_of_name(std::string_view name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix) || name.size() <= kPrefix.size() + kSuffix.size())
    return -1;
  const std::string_view digits = name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size());
  int64_t step = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), step);
  return step >= 0 && name == name_of_step(step) ? step : -1;
}

bool is_leftover(std::string_view name) {
  return name.starts_with(std::string(AtomicFile::kTempPrefix) + std::string(kPrefix));
}

// Returns the checkpoint files in `folder`: (step, path), newest first. Temporary files of killed writers have step -1.
std::vector<std::pair<int64_t, std::string>> scan(const std::string& folder) {
  std::vector<std::pair<int64_t, std::string>> found;
  for (const std::string& name : list_folder(folder)) {
    const int64_t step = step_of_name(name);
    if (step >= 0 || is_leftover(name)) found.emplace_back(step, (fs::path(folder) / name).string());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

// ---- Scalars as JSON. Finite doubles have the shortest form that reads back to the same bits, always with a '.' or an
// exponent, so that they stay doubles. Other doubles are {"f64": "bits in hexadecimal"}.

std::string to_json(const std::string& path, const Scalars& state) {
  std::string out = "{";
  for (const auto& [name, scalar] : state) {
    if (out.size() > 1) out += ',';
    append_json_string(out, name);
    out += ':';
    if (const bool* flag = std::get_if<bool>(&scalar)) {
      out += *flag ? "true" : "false";
    } else if (const int64_t* integer = std::get_if<int64_t>(&scalar)) {
      absl::StrAppend(&out, *integer);
    } else if (const double* number = std::get_if<double>(&scalar)) {
      if (std::isfinite(*number)) {
        char text[32];
        const auto end = std::to_chars(text, text + sizeof text, *number).ptr;
        const std::string digits(text, end);
        out += digits;
        if (digits.find_first_of(".e") == digits.npos) out += ".0";
      } else {
        absl::StrAppend(&out, "{\"f64\":\"", absl::Hex(std::bit_cast<uint64_t>(*number), absl::kZeroPad16), "\"}");
      }
    } else {
      append_json_string(out, std::get<std::string>(scalar));
    }
  }
  out += '}';
  // Reads the text back, so that invalid UTF-8 is an error now and not at the resume.
  JsonReader(path, out).skip();
  return out;
}

template <class T> T parse_number(const JsonReader& json, std::string_view text, auto... base) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  if (error != std::errc() || end != text.data() + text.size()) json.fail("cannot represent " + shown(text));
  return value;
}

Scalars parse_state(const std::string& path, std::string_view text) {
  Scalars state;
  JsonReader json(path, text);
  json.object([&](std::string& name) {
    Scalar scalar;
    switch (json.peek()) {
      case 't':
      case 'f': scalar = json.boolean(); break;
      case '"': scalar = json.string(); break;
      case '{':
        json.object([&](std::string& key) {
          if (key != "f64") json.fail("expected \"f64\"");
          scalar = std::bit_cast<double>(parse_number<uint64_t>(json, json.string(), 16));
        });
        break;
      default: {
        const std::string_view number = json.number();
        if (number.find_first_of(".eE") == number.npos) scalar = parse_number<int64_t>(json, number);
        else scalar = parse_number<double>(json, number);
      }
    }
    if (!state.try_emplace(std::move(name), std::move(scalar)).second) json.fail("a name appears twice in the state");
  });
  json.finish();
  return state;
}

// Returns the checksum over the metadata and all tensors. Each part is preceded by its length, so that moving bytes
// from one part to the next changes the checksum.
std::string checksum_of(const Metadata& metadata, const TensorMap& tensors) {
  Checksum sum;
  const auto part = [&](std::string_view text) {
    const uint64_t length = text.size();
    sum.update(&length, sizeof length);
    sum.update(text);
  };
  for (const auto& [key, value] : metadata) {
    if (key == "checksum") continue;
    part(key);
    part(value);
  }
  for (const auto& [name, tensor] : tensors) {
    const Tensor dense = tensor.detach().contiguous().to(kCPU);
    part(name);
    part(safetensors_name(dense.dtype()));
    part(to_string(dense.sizes()));
    if (dense.numel() > 0) part({static_cast<const char*>(dense.raw_data()), static_cast<size_t>(dense.nbytes())});
  }
  return absl::StrCat(absl::Hex(sum.digest(), absl::kZeroPad16));
}

// Counts the values of a dense tensor that are not finite: in every floating-point format, values whose exponent bits
// are all 1. `exponent`: a mask of these bits.
template <class Bits> int64_t count_nonfinite(const Tensor& tensor, Bits exponent) {
  const std::byte* values = static_cast<const std::byte*>(tensor.raw_data());
  std::atomic<int64_t> total = 0;
  parallel_for(tensor.numel(), 1 << 16, [&](int64_t begin, int64_t end) {
    int64_t count = 0;
    for (int64_t i = begin; i < end; ++i) {
      Bits bits;
      std::memcpy(&bits, values + static_cast<size_t>(i) * sizeof bits, sizeof bits);
      count += (bits & exponent) == exponent;
    }
    total += count;
  });
  return total;
}

void check_finite(const std::string& path, const TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) {
    if (!is_floating(tensor.dtype())) continue;
    const Tensor dense = tensor.detach().contiguous().to(kCPU);
    int64_t count = 0;
    switch (dense.dtype()) {
      case kF64: count = count_nonfinite<uint64_t>(dense, 0x7FF0'0000'0000'0000); break;
      case kF32: count = count_nonfinite<uint32_t>(dense, 0x7F80'0000); break;
      case kBF16: count = count_nonfinite<uint16_t>(dense, 0x7F80); break;
      case kF16: count = count_nonfinite<uint16_t>(dense, 0x7C00); break;
      default: break;
    }
    if (count > 0)
      throw NonFiniteError(name, absl::StrCat("save_checkpoint: ", path, " is not written: ", count, " of the ",
                                              dense.numel(), " values of ", name,
                                              " are NaN or infinite; earlier checkpoints are kept. "
                                              "CheckpointOptions::allow_nonfinite saves them all the same"));
  }
}

}  // namespace

std::string save_checkpoint(const std::string& folder, const Checkpoint& checkpoint, CheckpointOptions options) try {
  const std::string path = (fs::path(folder) / name_of_step(checkpoint.step)).string();
  if (checkpoint.step < 0) throw Error(absl::StrCat("save_checkpoint: negative step ", checkpoint.step));
  if (options.keep < 1) throw Error(absl::StrCat("save_checkpoint: keep is ", options.keep, ", at least 1 must stay"));
  TensorMap tensors;
  const auto add = [&](std::string_view prefix, const TensorMap& from) {
    for (const auto& [name, tensor] : from) {
      if (!tensor.defined()) throw FileError(path, "cannot save: tensor " + shown(name) + " is undefined");
      tensors.emplace(std::string(prefix) + name, tensor);
    }
  };
  add(kModel, checkpoint.model);
  add(kOptimizer, checkpoint.optimizer);
  add(kExtra, checkpoint.extra);
  if (!options.allow_nonfinite) check_finite(path, tensors);
  Metadata metadata = {{"format", std::string(kFormat)},
                       {"step", absl::StrCat(checkpoint.step)},
                       {"state", to_json(path, checkpoint.state)}};
  metadata["checksum"] = checksum_of(metadata, tensors);
  make_folders(folder);
  save_safetensors(path, tensors, metadata);

  // Prunes old checkpoints. A file that cannot be removed is left for the next save; the new checkpoint is safe
  // already.
  int kept = 0;
  for (const auto& [step, file] : scan(folder)) {
    if (step > checkpoint.step) continue;  // from a run that went further before this run was resumed
    if (step >= 0 && kept++ < options.keep) continue;
    ::unlink(file.c_str());
  }
  fsync_folder(folder);
  return path;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("save_checkpoint");
}

Checkpoint load_checkpoint(const std::string& path) try {
  LoadedTensors loaded = load_safetensors(path);
  Metadata& metadata = loaded.metadata;
  for (const char* key : {"format", "step", "state", "checksum"})
    if (!metadata.contains(key)) throw FileError(path, absl::StrCat("not a checkpoint: the metadata lacks ", key));
  if (metadata["format"] != kFormat)
    throw FileError(path, absl::StrCat("format ", shown(metadata["format"]), " is not ", std::string(kFormat)));
  if (checksum_of(metadata, loaded.tensors) != metadata["checksum"])
    throw FileError(path, "the checksum does not match: the file is damaged");

  Checkpoint checkpoint;
  const JsonReader json(path, {});
  checkpoint.step = parse_number<int64_t>(json, metadata["step"]);
  checkpoint.state = parse_state(path, metadata["state"]);
  for (auto& [name, tensor] : loaded.tensors) {
    if (name.starts_with(kModel)) checkpoint.model.emplace(name.substr(kModel.size()), std::move(tensor));
    else if (name.starts_with(kOptimizer))
      checkpoint.optimizer.emplace(name.substr(kOptimizer.size()), std::move(tensor));
    else if (name.starts_with(kExtra)) checkpoint.extra.emplace(name.substr(kExtra.size()), std::move(tensor));
    else throw FileError(path, "tensor " + shown(name) + " is of no known kind");
  }
  return checkpoint;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("load_checkpoint");
}

LatestCheckpoint load_latest_checkpoint(const std::string& folder) try {
  LatestCheckpoint latest;
  for (const std::string& path : list_checkpoints(folder)) {
    try {
      latest.checkpoint = load_checkpoint(path);
      latest.path = path;
      break;
    } catch (const FileError& error) {
      std::string_view reason = error.what();
      if (reason.starts_with(path + ": ")) reason.remove_prefix(path.size() + 2);
      latest.skipped.push_back({path, std::string(reason)});
    }
  }
  return latest;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("load_latest_checkpoint");
}

std::vector<std::string> list_checkpoints(const std::string& folder) try {
  std::vector<std::string> paths;
  for (auto& [step, path] : scan(folder))
    if (step >= 0) paths.push_back(std::move(path));
  return paths;
} catch (const std::bad_alloc&) {
  throw_out_of_memory("list_checkpoints");
}

void remove_checkpoints(const std::string& folder) try {
  const auto found = scan(folder);
  for (const auto& [step, path] : found)
    if (::unlink(path.c_str()) != 0 && errno != ENOENT)
      throw FileError(path, "cannot remove: " + std::generic_category().message(errno));
  if (!found.empty()) fsync_folder(folder);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("remove_checkpoints");
}

}  // namespace rondo::io
