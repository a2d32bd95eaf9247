// Images and masks: files of every kind against Pillow's values, round trips, and files that mean harm.
#include "rondo/runtime/image/image.h"

#include <filesystem>
#include <random>
#include <set>

#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/open_file.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::io {
namespace {

using rondo::test::error_of;

std::string reference(const std::string& name) { return std::string(tests::kReferenceDir) + "/images/" + name; }

std::vector<std::string> reference_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(reference("")))
    if (entry.path().extension() != ".safetensors") names.insert(entry.path().filename());
  return {names.begin(), names.end()};
}

std::vector<int64_t> numbers(const Tensor& t) { return t.to_vector<int64_t>(); }

// An image whose channels all differ.
Tensor sample(int64_t channels, int64_t height, int64_t width) {
  std::vector<uint8_t> values(static_cast<size_t>(channels * height * width));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<uint8_t>(i * 37 % 251);
  return Tensor::from(values, {channels, height, width}, kCPU);
}

TEST(Image, EveryKindOfFileAsPillowReadsIt) {
  const auto expected = load_safetensors(reference("images.safetensors")).tensors;
  const std::vector<std::string> files = reference_files();
  ASSERT_EQ(files.size(), 21u);
  for (const std::string& name : files) {
    SCOPED_TRACE(name);
    const std::pair<ImageMode, const char*> modes[] = {{ImageMode::kAsStored, ".stored"},
                                                       {ImageMode::kGray, ".gray"},
                                                       {ImageMode::kRgb, ".rgb"},
                                                       {ImageMode::kRgba, ".rgba"}};
    for (const auto& [mode, suffix] : modes) {
      SCOPED_TRACE(suffix);
      const Tensor read = read_image(reference(name), {.mode = mode, .round_16_bits = true});
      const Tensor& wanted = expected.at(name + suffix);
      EXPECT_EQ(read.dtype(), kU8);
      EXPECT_EQ(read.sizes(), wanted.sizes());
      EXPECT_EQ(numbers(read), numbers(wanted));
      EXPECT_TRUE(read.permute({1, 2, 0}).is_contiguous());
    }
    const ImageInfo info = image_info(reference(name));
    EXPECT_EQ(info.channels, expected.at(name + ".stored").size(0));
    EXPECT_EQ(info.height, 7);
    EXPECT_EQ(info.width, 13);
    EXPECT_EQ(info.palette, name.starts_with("palette"));
    EXPECT_EQ(info.format, name.ends_with(".png") ? ImageFormat::kPng : ImageFormat::kJpeg);

    const auto mask = expected.find(name + ".mask");
    if (mask == expected.end()) {
      EXPECT_NE(error_of<FileError>([&] { read_mask(reference(name)); }), "");
    } else {
      EXPECT_EQ(numbers(read_mask(reference(name))), numbers(mask->second));
      EXPECT_EQ(read_mask(reference(name)).dtype(), kI32);
    }
  }
}

TEST(Image, PngKeepsEveryBitOfEveryLayout) {
  const TempFolder folder;
  for (int64_t channels = 1; channels <= 4; ++channels) {
    const Tensor image = sample(channels, 5, 9);
    const Tensor layouts[] = {image, image.permute({1, 2, 0}).contiguous().permute({2, 0, 1}),
                              sample(channels, 10, 9).slice(1, {.begin = 1, .step = 2})};
    for (const Tensor& layout : layouts) {
      write_image(folder / "x.PNG", layout, {.png_compression = static_cast<int>(channels)});
      EXPECT_EQ(numbers(read_image(folder / "x.PNG")), numbers(layout));
    }
  }
  write_image(folder / "flat.png", sample(1, 4, 3)[0]);
  EXPECT_EQ(read_image(folder / "flat.png").sizes(), (Dims{1, 4, 3}));
}

TEST(Image, JpegIsCloseAndQualityMatters) {
  const TempFolder folder;
  const Tensor ramp = Tensor::arange(64, kCPU).expand({48, 64});
  const Tensor image = (ramp.view({1, 48, 64}).expand({3, 48, 64}) * 3).to(kU8);
  write_image(folder / "good.jpg", image, {.jpeg_quality = 95});
  write_image(folder / "poor.jpeg", image, {.jpeg_quality = 5});
  const auto distance = [&](const std::string& file) {
    return (read_image(file).to(kF64) - image.to(kF64)).abs().mean().item();
  };
  EXPECT_LT(distance(folder / "good.jpg"), 1.0);
  EXPECT_GT(distance(folder / "poor.jpeg"), distance(folder / "good.jpg"));
  EXPECT_LT(std::filesystem::file_size(folder / "poor.jpeg"), std::filesystem::file_size(folder / "good.jpg"));
  write_image(folder / "gray.jpg", image[0]);
  EXPECT_EQ(image_info(folder / "gray.jpg").channels, 1);
  EXPECT_EQ(encode_image(image, ImageFormat::kJpeg),
            read_text((write_image(folder / "again.jpg", image), folder / "again.jpg"), 1 << 20));
}

TEST(Image, MasksKeepTheirNumbersAndShowColours) {
  const TempFolder folder;
  const Tensor classes = Tensor::from<int64_t>({0, 1, 2, 2, 1, 0}, {2, 3}, kCPU);
  const std::vector<Color> palette = {{0, 0, 0}, {128, 64, 128}, {244, 35, 232}};
  write_mask(folder / "shown.png", classes, palette);
  EXPECT_EQ(numbers(read_mask(folder / "shown.png")), numbers(classes));
  EXPECT_TRUE(image_info(folder / "shown.png").palette);
  EXPECT_EQ(numbers(read_image(folder / "shown.png").select(0, 0)), (std::vector<int64_t>{0, 128, 244, 244, 128, 0}));
  write_mask(folder / "plain.png", classes.to(kU8).t());
  EXPECT_EQ(numbers(read_mask(folder / "plain.png")), numbers(classes.t()));
  write_mask(folder / "bits.png", classes == 2);
  EXPECT_EQ(numbers(read_mask(folder / "bits.png")), (std::vector<int64_t>{0, 0, 1, 1, 0, 0}));

  EXPECT_NE(error_of([&] { write_mask(folder / "no.png", classes + 1, palette); }).find("3 is outside of [0, 2]"),
            std::string::npos);
  EXPECT_NE(error_of([&] { write_mask(folder / "no.png", classes - 1); }).find("-1 is outside"), std::string::npos);
  EXPECT_NE(error_of([&] { write_mask(folder / "no.png", classes.to(kF32)); }).find("f32"), std::string::npos);
  EXPECT_NE(error_of([&] { write_mask(folder / "no.jpg", classes); }).find(".png"), std::string::npos);
  EXPECT_NE(error_of([&] { write_mask(folder / "no.png", classes.view({1, 2, 3})); }), "");
  EXPECT_FALSE(std::filesystem::exists(folder / "no.png"));
}

TEST(Image, ReadImagesLieInHostMemory) {
  const TempFolder folder;
  const Tensor image = sample(3, 4, 4);
  write_image(folder / "x.png", image);
  EXPECT_FALSE(read_image(folder / "x.png").requires_grad());
  EXPECT_EQ(read_image(folder / "x.png").device(), kCPU);
}

TEST(Image, ErrorsNameTheFileAndTheReason) {
  const TempFolder folder;
  const auto fails = [&](const std::string& path, const char* reason, const ReadImageOptions& options = {}) {
    const std::string message = error_of<FileError>([&] { read_image(path, options); });
    EXPECT_NE(message.find(path), std::string::npos) << message;
    EXPECT_NE(message.find(reason), std::string::npos) << message;
  };
  fails(folder / "missing.png", "");
  write_file_atomic(folder / "empty.png", "");
  fails(folder / "empty.png", "empty");
  write_file_atomic(folder / "text.png", "no image");
  fails(folder / "text.png", "not a PNG or JPEG");
  fails(reference("rgb16.png"), "16 bits");
  fails(reference("rgb.png"), "13 x 7 pixels, more than max_pixels = 90", {.max_pixels = 90});
  EXPECT_EQ(read_image(reference("rgb.png"), {.max_pixels = 91}).numel(), 3 * 91);
  EXPECT_NE(error_of<FileError>([&] { read_mask(reference("rgb.png")); }).find("3 channels"), std::string::npos);
  EXPECT_NE(error_of<FileError>([&] { read_mask(reference("gray.jpg")); }).find("JPEG"), std::string::npos);
  EXPECT_NE(error_of<FileError>([&] { read_mask(reference("gray8.png"), 90); }).find("max_pixels"), std::string::npos);

  const Tensor image = sample(3, 4, 4);
  EXPECT_NE(error_of([&] { write_image(folder / "x.bmp", image); }).find(".png, .jpg or .jpeg"), std::string::npos);
  EXPECT_NE(error_of([&] { write_image(folder / "x.png", image.to(kF32)); }).find("(image * 255 + 0.5).to(kU8)"),
            std::string::npos);
  EXPECT_NE(error_of([&] { write_image(folder / "x.png", sample(5, 2, 2)); }).find("[5, 2, 2]"), std::string::npos);
  EXPECT_NE(error_of([&] {
              write_image(folder / "x.jpg", Tensor::zeros({1, 65501}, kU8));
            }).find("write_image: JPEG has at most 65500"),
            std::string::npos);
  EXPECT_NE(error_of([&] {
              write_image(folder / "x.png", Tensor::empty({3, 0, 2}, {kU8, kCPU}));
            }).find("no pixels"),
            std::string::npos);
  EXPECT_NE(error_of([&] { write_image(folder / "x.jpg", sample(4, 2, 2)); }).find("alpha"), std::string::npos);
  EXPECT_NE(error_of([&] { write_image(folder / "x.jpg", image, {.jpeg_quality = 0}); }).find("[1, 100]"),
            std::string::npos);
  EXPECT_NE(error_of([&] { write_image(folder / "x.png", image, {.png_compression = 10}); }).find("[0, 9]"),
            std::string::npos);
  EXPECT_NE(error_of([&] { write_image(folder / "none/x.png", image); }), "");
}

TEST(Image, AFileThatIsCutOffIsAnErrorAtEveryLength) {
  for (const std::string& name : reference_files()) {
    SCOPED_TRACE(name);
    const std::string whole = read_text(reference(name), 1 << 20);
    for (size_t length = 0; length < whole.size(); ++length) {
      // The last bytes of a JPEG file mark its end: all pixels are there without them, and libjpeg warns.
      const std::string message = error_of<FileError>(
          [&] { decode_image(whole.substr(0, length), "cut", {.round_16_bits = true}); });
      ASSERT_NE(message.find("cut: "), std::string::npos)
          << length << " of " << whole.size() << " bytes: '" << message << "'";
    }
  }
}

// Either a whole image of the announced size or a FileError; under a sanitizer, nothing else happens on the way.
TEST(Image, DamagedFilesNeverDoHarm) {
  std::vector<std::string> files;
  for (const std::string& name : reference_files()) files.push_back(read_text(reference(name), 1 << 20));
  std::mt19937 random(11);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = files[static_cast<size_t>(round) % files.size()];
    const auto place = [&] { return random() % bytes.size(); };
    switch (random() % 4) {
      case 0: bytes[place()] ^= static_cast<char>(1 << random() % 8); break;
      case 1:
        for (int i = 0; i < 8; ++i) bytes[place()] = static_cast<char>(random());
        break;
      case 2: bytes.erase(place(), 1 + random() % 20); break;
      default: bytes.insert(place(), bytes.substr(place(), 1 + random() % 40));
    }
    const ReadImageOptions options = {.round_16_bits = true, .max_pixels = 1 << 16};
    try {
      const Tensor image = decode_image(bytes, "damaged", options);
      EXPECT_EQ(image.rank(), 3);
      EXPECT_GE(image.sum().item(), 0);  // reads every pixel
    } catch (const FileError&) {
      ++refused;
    }
    try {
      EXPECT_EQ(decode_mask(bytes, "damaged", options.max_pixels).rank(), 2);
    } catch (const FileError&) {
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace rondo::io
