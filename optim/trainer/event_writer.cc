#include "rondo/optim/trainer/event_writer.h"

#include <array>
#include <bit>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rondo/optim/trainer/append_file.h"
#include "rondo/runtime/base/format.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/io/atomic_file.h"

namespace rondo::optim {
namespace {

template <class T> void append_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

// Appends an integer in Protobuf's wire format (protobuf.dev/programming-guides/encoding). There, the key of a field is
// field number << 3 | wire type.
void append_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}
void append_bytes_field(std::string& out, uint32_t field, std::string_view bytes) {
  append_varint(out, field << 3 | 2);
  append_varint(out, bytes.size());
  out += bytes;
}

// Removes the files in `folder` whose names begin with `prefix`.
void remove_files(const std::string& folder, std::string_view prefix) {
  for (const std::string& name : io::list_folder(folder)) {
    if (!name.starts_with(prefix)) continue;
    const std::string path = folder + "/" + name;
    std::error_code error;
    if (!std::filesystem::remove(path, error) && error) throw FileError(path, "cannot remove: " + error.message());
  }
}

uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

void append_event(AppendFile& file, int64_t step, std::string_view payload) {
  const std::chrono::duration<double> wall_time = std::chrono::system_clock::now().time_since_epoch();
  std::string event;
  append_varint(event, 1 << 3 | 1);
  append_little_endian(event, std::bit_cast<uint64_t>(wall_time.count()));
  append_varint(event, 2 << 3 | 0);
  append_varint(event, static_cast<uint64_t>(step));
  event += payload;

  std::string record;
  append_little_endian(record, static_cast<uint64_t>(event.size()));
  append_little_endian(record, masked_crc(record));
  record += event;
  append_little_endian(record, masked_crc(event));
  file.append(record);
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static const std::array<uint32_t, 256> table = [] {
    std::array<uint32_t, 256> t;
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c >> 1 ^ (c & 1 ? 0x82F63B78u : 0);
      t[i] = c;
    }
    return t;
  }();
  uint32_t crc = ~0u;
  for (const char byte : bytes) crc = crc >> 8 ^ table[(crc ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~crc;
}

EventWriter::EventWriter(const std::string& folder, int64_t first_step) try {
  io::make_folders(folder);
  const std::string prefix = "events.out.tfevents.";
  if (first_step == 0) remove_files(folder, prefix);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const int64_t us = std::chrono::floor<std::chrono::microseconds>(now).count();
  // Readers take the files in the order of their names. So the name contains the time.
  const std::string path = formatted("%s/%s%010d.%06d", folder, prefix, us / 1000000, us % 1000000);
  file_ = std::make_unique<AppendFile>(path, AppendFile::kReplace);
  std::string payload;
  append_bytes_field(payload, 3, "brain.Event:2");  // file_version
  append_event(*file_, 0, payload);
  if (first_step > 0) {
    payload.clear();
    append_bytes_field(payload, 7, std::string_view("\x08\x01", 2));  // session_log { status: START }
    append_event(*file_, first_step + 1, payload);
  }
} catch (const std::bad_alloc&) {
  throw_out_of_memory("EventWriter");
}

EventWriter::~EventWriter() = default;

void EventWriter::write(int64_t step, std::span<const Scalar> scalars) try {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    append_bytes_field(value, 1, scalar.tag);
    append_varint(value, 2 << 3 | 5);  // simple_value
    append_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(scalar.value)));
    append_bytes_field(summary, 1, value);
  }
  std::string payload;
  append_bytes_field(payload, 5, summary);
  append_event(*file_, step, payload);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("EventWriter");
}

void EventWriter::write_image(int64_t step, const Image& image) try {
  std::string fields;  // the message Summary.Image (tensorflow/core/framework/summary.proto)
  append_varint(fields, 1 << 3 | 0);
  append_varint(fields, static_cast<uint64_t>(image.height));
  append_varint(fields, 2 << 3 | 0);
  append_varint(fields, static_cast<uint64_t>(image.width));
  append_varint(fields, 3 << 3 | 0);
  append_varint(fields, static_cast<uint64_t>(image.channels));
  append_bytes_field(fields, 4, image.png);
  std::string value, summary, payload;
  append_bytes_field(value, 1, image.tag);
  append_bytes_field(value, 4, fields);
  append_bytes_field(summary, 1, value);
  append_bytes_field(payload, 5, summary);
  append_event(*file_, step, payload);
} catch (const std::bad_alloc&) {
  throw_out_of_memory("EventWriter");
}

void TensorBoardLog::on_begin(const Progress& now) { events_.emplace(folder_, now.step); }

void TensorBoardLog::on_log(const Progress& now) {
  std::vector<EventWriter::Scalar> scalars = {
      {"train/loss", now.loss}, {"train/learning_rate", now.lr}, {"train/epoch", now.epoch}};
  if (!std::isnan(now.grad_norm)) scalars.push_back({"train/grad_norm", now.grad_norm});
  events_->write(now.step, scalars);
}

void TensorBoardLog::on_evaluate(const Progress& now) {
  const EventWriter::Scalar scalar{"eval/loss", *now.eval_loss};
  events_->write(now.step, {&scalar, 1});
}

}  // namespace rondo::optim
