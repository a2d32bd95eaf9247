// EventWriter: writes scalars and images for TensorBoard, without TensorFlow or protobuf.
//
//   optim::TensorBoardLog log("out/tensorboard");                 // tensorboard --logdir out/tensorboard
//   trainer.add_callback(log);
//
//   optim::EventWriter events("out/tensorboard", /*first_step=*/0);   // in a loop of your own
//   events.write(step, {{"loss/train", 1.9}, {"lr", 1e-3}});
//
// A file is a sequence of TFRecords (tensorflow/core/lib/io/record_writer.h): u64 length, masked CRC-32C of it, the
// bytes, masked CRC-32C of them; each holds one Event message (tensorflow/core/util/event.proto).
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "rondo/optim/trainer/callback.h"

#pragma GCC visibility push(default)
namespace rondo::optim {

class AppendFile;

class EventWriter {
 public:
  struct Scalar {
    std::string_view tag;
    double value;
  };

  // Starts a new file in `folder`, which it makes. If first_step is 0, the event files of an earlier run are deleted;
  // otherwise readers are told to forget what they have after first_step. Throws FileError.
  EventWriter(const std::string& folder, int64_t first_step);
  ~EventWriter();
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // Writes one event with these scalars. Throws FileError; the file then ends with the previous event.
  void write(int64_t step, std::span<const Scalar> scalars);
  void write(int64_t step, std::initializer_list<Scalar> scalars) {
    write(step, std::span<const Scalar>(scalars.begin(), scalars.size()));
  }
  struct Image {
    std::string_view tag;
    std::string_view png;  // the file's bytes (io::encode_image)
    int64_t height = 0, width = 0;
    int channels = 3;
  };
  // Writes one event with this image. Throws FileError as write() does.
  void write_image(int64_t step, const Image& image);

 private:
  std::unique_ptr<AppendFile> file_;
};

// Writes train/loss, train/learning_rate, train/grad_norm, train/epoch and eval/loss, as transformers does.
class TensorBoardLog : public Callback {
 public:
  explicit TensorBoardLog(std::string folder) : folder_(std::move(folder)) {}
  void on_begin(const Progress& now) override;
  void on_log(const Progress& now) override;
  void on_evaluate(const Progress& now) override;

 private:
  const std::string folder_;
  std::optional<EventWriter> events_;
};

// Returns Castagnoli's CRC-32 (RFC 3720, appendix B.4).
uint32_t crc32c(std::string_view bytes);

}  // namespace rondo::optim
#pragma GCC visibility pop
