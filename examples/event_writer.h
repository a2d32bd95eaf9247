// EventWriter: scalars for TensorBoard, without TensorFlow or protobuf.
//
//   EventWriter events("out/tensorboard", /*first_step=*/0);
//   events.write(step, {{"loss/train", 1.9}, {"lr", 1e-3}});      // tensorboard --logdir out/tensorboard
//
// A file is a sequence of TFRecords (tensorflow/core/lib/io/record_writer.h): u64 length, masked CRC-32C of it, the
// bytes, masked CRC-32C of them; each holds one Event message (tensorflow/core/util/event.proto).
#pragma once

#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

namespace rondo::examples {

class EventWriter {
 public:
  struct Scalar {
    std::string_view tag;
    double value;
  };

  // Starts a file of its own in `folder`. Where first_step is 0 the events of an earlier run go; else readers are told
  // to forget what they have after first_step. Throws FileError.
  EventWriter(const std::string& folder, int64_t first_step);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  void write(int64_t step, std::span<const Scalar> scalars);

 private:
  void append_event(int64_t step, std::string_view payload);
  std::string path_;
  std::FILE* file_;
};

// Castagnoli's CRC-32 (RFC 3720, appendix B.4).
uint32_t crc32c(std::string_view bytes);

}  // namespace rondo::examples
