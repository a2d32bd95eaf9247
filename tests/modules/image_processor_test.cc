// Pictures of 200 random preprocessor_config.json have the bits that transformers and Pillow make
// (tests/reference/record_processors.py); what is saved is read again; files and pictures that mean harm are errors.
#include "rondo/modules/pretrained/image_processor.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "rondo/modules/pretrained/auto_model.h"
#include "rondo/modules/pretrained/config_fields.h"
#include "rondo/runtime/checkpoint/safetensors.h"
#include "rondo/runtime/io/json.h"
#include "rondo/tests/bits.h"
#include "rondo/tests/errors.h"
#include "rondo/tests/paths.h"
#include "rondo/tests/runtime/temp_folder.h"

namespace rondo::nn {
namespace {

using test::error_of;
using test::same_bits;

const std::string& recorded_folder() {
  static const std::string folder = std::string(tests::kReferenceDir) + "/processors/";
  return folder;
}

struct Setting {
  std::string file, model_type;
  std::vector<int64_t> picture, shape;
  int64_t step = 0;
};
std::vector<Setting> settings() {
  const std::string path = recorded_folder() + "settings.jsonl", text = read_bytes(path);
  std::vector<Setting> all;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    Setting s;
    io::JsonReader json(path, {line.data(), line.size()});
    const auto numbers = [&](std::vector<int64_t>& to) {
      json.array([&] { to.push_back(static_cast<int64_t>(json.unsigned_integer())); });
    };
    json.object([&](std::string& key) {
      if (key == "file") s.file = json.string();
      else if (key == "picture") numbers(s.picture);
      else if (key == "shape") numbers(s.shape);
      else if (key == "step") s.step = static_cast<int64_t>(json.unsigned_integer());
      else if (json.peek() == '"') s.model_type = json.string();
      else json.skip();
    });
    all.push_back(std::move(s));
  }
  return all;
}

// (H, W, C), as pixel_bytes() of the script.
Tensor pixel_bytes(uint32_t seed, int64_t height, int64_t width, int64_t channels) {
  std::vector<uint8_t> bytes(static_cast<size_t>(height * width * channels));
  uint32_t state = seed;
  for (uint8_t& byte : bytes) {
    state = 1664525 * state + 1013904223;
    byte = static_cast<uint8_t>(seed % 3 == 0 ? (state >> 31) * 255 : state >> 24);
  }
  return Tensor::from(bytes, {height, width, channels}, kCPU);
}
Tensor picture_of(const Setting& s, size_t n) {
  return pixel_bytes(static_cast<uint32_t>(n), s.picture[0], s.picture[1], s.picture[2]).permute({2, 0, 1});
}
Tensor every(const Tensor& t, int64_t step) {
  const Tensor flat = t.contiguous().flatten();
  return flat.slice(0, {0, flat.size(0), step}).contiguous();
}

void write_folder(const std::string& folder, const std::string& file, const std::string& model_type = "") {
  std::filesystem::create_directories(folder);
  write_bytes(folder + "/preprocessor_config.json", file);
  if (!model_type.empty()) write_bytes(folder + "/config.json", "{\"model_type\": \"" + model_type + "\"}");
}

void expect_part(const std::string& error, std::string_view part) {
  EXPECT_NE(error.find(part), std::string::npos) << error;
}

TEST(ImageProcessor, RandomSettingsHaveTheReferencesBits) {
  const io::TensorMap values = io::load_safetensors(recorded_folder() + "values.safetensors").tensors;
  const std::vector<Setting> all = settings();
  ASSERT_EQ(all.size(), 200);
  const char* const keep = std::getenv("RONDO_KEEP_PROCESSORS");  // a folder for record_processors.py --check
  for (size_t n = 0; n < all.size(); ++n) {
    const Setting& s = all[n];
    SCOPED_TRACE(absl::StrCat(n, ": ", s.file));
    const TempFolder temp;
    write_folder(temp.path(), s.file, s.model_type);
    const ImageProcessor first = ImageProcessor::from_pretrained(temp.path());
    std::vector<ImageProcessor> processors = {first};
    if (keep != nullptr || n % 40 == 0) {  // a save waits for the disk
      const std::string saved = keep != nullptr ? absl::StrCat(keep, "/", n) : temp / "saved";
      first.save_pretrained(saved);
      processors.push_back(ImageProcessor::from_pretrained(saved));
    }
    for (const ImageProcessor& processor : processors) {
      const Tensor got = processor(picture_of(s, n));
      ASSERT_EQ(got.dtype(), kF32);
      ASSERT_EQ(to_string(got.sizes()), absl::StrCat("[", absl::StrJoin(s.shape, ", "), "]"));
      EXPECT_TRUE(same_bits(every(got, s.step), values.at(std::to_string(n))));
      const auto mask = values.find(absl::StrCat(n, ".mask"));
      if (mask == values.end()) continue;
      const Tensor classes = pixel_bytes(static_cast<uint32_t>(n + 1000), s.picture[0], s.picture[1], 1)
                                 .view({s.picture[0], s.picture[1]});
      const Tensor masks = processor.masks(classes.to(kI32));
      EXPECT_TRUE(same_bits(every(masks, masks.numel() / 240 + 1), mask->second));
    }
  }
}

TEST(ImageProcessor, ABatchIsItsPictures) {
  const ImageProcessor processor({.size = {.height = 5, .width = 7}});
  const std::vector<Tensor> pictures = {pixel_bytes(1, 9, 4, 3).permute({2, 0, 1}),
                                        pixel_bytes(2, 20, 30, 3).permute({2, 0, 1}).contiguous()};
  const Tensor batch = processor(pictures);
  EXPECT_EQ(to_string(batch.sizes()), "[2, 3, 5, 7]");
  for (int64_t i = 0; i < 2; ++i)
    EXPECT_TRUE(same_bits(batch.slice(0, {i, i + 1}), processor(pictures[static_cast<size_t>(i)])));
  const ImageProcessor keeps({.size = {.shortest_edge = 5}});
  EXPECT_EQ(error_of([&] { keeps(pictures); }),
            "ViTImageProcessor: pictures of one batch must come out in one size, got 11 x 5 and 5 x 7");
}

// A mask that nobody resizes is not changed in place.
TEST(ImageProcessor, MasksAreCopies) {
  ImageProcessorConfig config{.type = "SegformerImageProcessor", .do_resize = false, .do_reduce_labels = true};
  const Tensor mask = Tensor::from<int64_t>({0, 1, 255, 150}, {2, 2}, kCPU);
  EXPECT_EQ(ImageProcessor(config).masks(mask).to_vector<int64_t>(), std::vector<int64_t>({255, 0, 255, 149}));
  EXPECT_EQ(mask.to_vector<int64_t>(), std::vector<int64_t>({0, 1, 255, 150}));
}

TEST(ImageProcessor, FieldsThatAreNotReadStay) {
  const TempFolder temp;
  write_folder(temp.path(), R"({"feature_extractor_type": "ViTFeatureExtractor", "size": 8, "do_pad": false,
                                "processor_class": "Any", "new_field": [1, {"a": 2}], "crop_size": 6})");
  expect_part(error_of([&] { ImageProcessor::from_pretrained(temp.path()); }), "new_field: [1, {\"a\": 2}]");
  ImageProcessor::from_pretrained(temp.path(), {.allow_unknown_fields = true}).save_pretrained(temp / "saved");
  const std::string path = temp / "saved/preprocessor_config.json";
  std::map<std::string, std::string> fields;
  const ConfigFields saved(path, read_bytes(path));
  for (const ConfigField& field : saved.fields()) fields[field.name] = field.json;
  EXPECT_EQ(fields["new_field"], "[1, {\"a\": 2}]");
  EXPECT_EQ(fields["do_pad"], "false");
  EXPECT_EQ(fields["crop_size"], "6");
  EXPECT_EQ(fields["image_processor_type"], "\"ViTImageProcessor\"");
  EXPECT_FALSE(fields.contains("feature_extractor_type"));
}

// In Python null is None, which is not the class's default: a step is off then, and lacks what it needs.
TEST(ImageProcessor, NullIsNotTheDefault) {
  const TempFolder temp;
  const auto config = [&](const std::string& kind, const std::string& fields) {
    write_folder(temp.path(), R"({"image_processor_type": ")" + kind + R"(ImageProcessor", )" + fields + "}");
    return ImageProcessor::from_pretrained(temp.path()).config();
  };
  for (const char* kind : {"ViT", "DeiT", "Segformer", "ConvNext", "Bit", "CLIP"}) {
    const ImageProcessorConfig c = config(kind, R"("do_resize": null, "do_rescale": null, "do_normalize": null,
        "do_center_crop": null, "do_convert_rgb": null, "crop_size": null, "resample": null, "rescale_factor": null,
        "image_mean": null, "image_std": null, "crop_pct": null)");
    EXPECT_FALSE(c.do_resize || c.do_rescale || c.do_normalize || c.do_center_crop || c.do_convert_rgb) << kind;
  }
  EXPECT_EQ(config("DeiT", R"("size": 9, "default_to_square": null)").size.shortest_edge, 9);
  EXPECT_EQ(config("ConvNext", R"("size": 384, "crop_pct": null)").size.shortest_edge, 384);
  EXPECT_FALSE(config("Segformer", R"("reduce_labels": true, "do_reduce_labels": null)").do_reduce_labels);
  for (const char* field : {"resample", "rescale_factor", "image_mean", "image_std", "crop_size", "crop_pct"}) {
    const char* const kind = field == std::string_view("crop_pct") ? "ConvNext" : "CLIP";
    const std::string null = absl::StrCat("\"size\": 224, \"", field, "\": null");
    expect_part(error_of([&] { config(kind, null); }), absl::StrCat(field, ": null, wanted a value"));
  }
}

// The folder of a model that was loaded and saved holds all that the model needs.
TEST(ImageProcessor, AModelOfImagesBringsItsFile) {
  const TempFolder temp;
  const std::string vit = std::string(tests::kReferenceDir) + "/pretrained/vit", source = temp / "source";
  std::filesystem::copy(vit, source);
  const std::string text = R"({"image_processor_type": "ViTImageProcessor", "size": 16})";
  write_folder(source, text);
  const auto model = AutoModelForImageClassification::from_pretrained(source);
  model.save_pretrained(temp / "new");
  EXPECT_EQ(read_bytes(temp / "new/preprocessor_config.json"), text);
  ImageProcessor({.size = {.height = 8, .width = 8}}).save_pretrained(temp / "own");
  const std::string own = read_bytes(temp / "own/preprocessor_config.json");
  model.save_pretrained(temp / "own");
  EXPECT_EQ(read_bytes(temp / "own/preprocessor_config.json"), own);
}

TEST(ImageProcessor, FilesThatCannotBeObeyed) {
  const TempFolder temp;
  const auto error = [&](const std::string& fields) {
    write_folder(temp.path(), "{" + fields + "}");
    return error_of([&] { ImageProcessor::from_pretrained(temp.path()); });
  };
  const std::string vit = R"("image_processor_type": "ViTImageProcessor", )";
  const std::pair<std::string, const char*> cases[] = {
      {R"("size": 8)", "does not describe an image processor that can be built here\n  missing: image_processor_type"},
      {R"("image_processor_type": "DetrImageProcessor", "do_pad": false)",
       "not supported: image_processor_type: \"DetrImageProcessor\""},
      {vit + R"("size": 0)", "size: 0, wanted an integer from 1 to 65536"},
      {vit + R"("size": -3)", "size: -3, wanted"},
      {vit + R"("size": 1000000000)", "size: 1000000000, wanted an integer from 1 to 65536"},
      {vit + R"("size": 1e9)", "size: 1e9, wanted"},
      {vit + R"("size": "large")", "size: \"large\", wanted"},
      {vit + R"("size": [8])", "size: [8], wanted a list of 2"},
      {vit + R"("size": {"height": 8})", "missing: size.width"},
      {vit + R"("size": {"height": 8, "width": 99999999999999999999})", "size.width: 99999999999999999999, wanted"},
      {vit + R"("size": {"shortest_edge": 8, "height": 8})", "unknown"},
      {vit + R"("size": {"longest_edge": 8})", "not supported: size.longest_edge: 8"},
      {vit + R"("size": {"max_height": 8, "max_width": 8})", "not supported: size.max_height: 8"},
      {vit + R"("do_center_crop": true)", "missing: crop_size"},
      {vit + R"("do_center_crop": true, "crop_size": {"shortest_edge": 4})", "crop_size: "},
      {vit + R"("resample": 1)", "not supported: resample: 1"},
      {vit + R"("resample": 77)", "resample: 77, wanted an integer from 0 to 5"},
      {vit + R"("rescale_factor": 0)", "rescale_factor: 0, wanted a number above 0"},
      {vit + R"("rescale_factor": 1e999)", "rescale_factor: 1e999, wanted"},
      {vit + R"("image_mean": [0.5, 0.5])", "image_mean: [0.5, 0.5], wanted a number, or a list of 3"},
      {vit + R"("image_mean": [0.5, "x", 0.5])", "image_mean"},
      {vit + R"("image_std": [0.5, 0, 0.5])", "image_std: [0.5, 0, 0.5], wanted numbers above 0"},
      {vit + R"("do_normalize": 1)", "do_normalize: 1, wanted true or false"},
      {vit + R"("do_pad": true)", "not supported: do_pad: true"},
      {vit + R"("patch_size": 14)", "unknown"},
      {R"("image_processor_type": "ConvNextImageProcessor", "size": {"height": 8, "width": 8})",
       "wanted a shortest_edge"},
      {R"("image_processor_type": "ConvNextImageProcessor", "crop_pct": -1)", "crop_pct: -1, wanted"}};
  for (const auto& [fields, part] : cases) expect_part(error(fields), part);
  std::filesystem::remove(temp / "preprocessor_config.json");
  expect_part(error_of([&] { ImageProcessor::from_pretrained(temp.path()); }), "preprocessor_config.json");
}

TEST(ImageProcessor, ConfigsThatContradictThemselves) {
  const auto error = [](ImageProcessorConfig config) { return error_of([&] { ImageProcessor(std::move(config)); }); };
  EXPECT_EQ(error({.type = "Other"}), "Other: there is no such image processor");
  expect_part(error({.size = {.height = 8}}), "size must be height and width, or a shortest_edge");
  expect_part(error({.size = {.height = 8, .width = 1 << 20}}), "from 1 to 65536");
  expect_part(error({.type = "ConvNextImageProcessor"}), "size must be a shortest_edge");
  expect_part(error({.do_center_crop = true}), "crop_size must be");
  expect_part(error({.type = "SegformerImageProcessor", .do_center_crop = true}), "does not crop");
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  expect_part(error({.crop_pct = kNan}), "crop_pct");
  expect_part(error({.image_std = {1, 0, 1}}), "image_std must be a number above 0");
  // What no file can say, or would be refused in one.
  expect_part(error({.crop_pct = kInf}), "crop_pct must be a number above 0");
  for (const double factor : {kNan, kInf, 0.0, -1.0})
    expect_part(error({.rescale_factor = factor}), "rescale_factor must be a number above 0");
  expect_part(error({.image_std = {1, 1, kInf}}), "image_std must be a number above 0");
  for (const double mean : {kNan, kInf}) expect_part(error({.image_mean = {0, mean, 0}}), "image_mean must be numbers");
  const ImageSize both = {.height = 8, .width = 8, .shortest_edge = 8};
  expect_part(error({.do_resize = false, .size = both}), "size must be height and width, or a shortest_edge");
  expect_part(error({.do_center_crop = true, .crop_size = both}), "crop_size must be a height and a width");
  EXPECT_EQ(error({.do_resize = false, .size = {}}), "");
}

TEST(ImageProcessor, PicturesThatMeanHarm) {
  const Tensor picture = pixel_bytes(1, 4, 5, 3).permute({2, 0, 1});
  const ImageProcessor vit({.size = {.height = 8, .width = 8}});
  const auto error = [](const ImageProcessor& processor, const Tensor& image) {
    return error_of([&] { processor(image); });
  };
  expect_part(error(vit, Tensor()), "a picture must be u8 (C, H, W), got an undefined tensor");
  expect_part(error(vit, picture.to(kF32)), "got f32 [3, 4, 5]");
  expect_part(error(vit, pixel_bytes(1, 4, 5, 3)), "must have 3 channels");
  expect_part(error(vit, Tensor::zeros({3, 0, 5}, {kU8, kCPU})), "got u8 [3, 0, 5]");
  expect_part(error(vit, Tensor::zeros({1, 4, 5}, {kU8, kCPU})), "do_convert_rgb is off");
  expect_part(error_of([&] { vit(std::span<const Tensor>()); }), "needs a picture");
  expect_part(error_of([&] { vit.masks(picture.select(0, 0)); }), "has no masks");

  // 4 x 100,000 pixels with a shortest edge of 4096; 65536 x 65536; a crop of as many.
  constexpr int64_t kMost = ImageProcessor::kMostEdge;
  const Tensor line = Tensor::zeros({3, 4, 100'000}, {kU8, kCPU});
  expect_part(error(ImageProcessor({.size = {.shortest_edge = 4096}}), line), "more than max_bytes = 268435456");
  expect_part(error(ImageProcessor({.size = {.height = kMost, .width = kMost}}), picture), "more than max_bytes");
  expect_part(error(ImageProcessor({.do_resize = false, .do_center_crop = true, .crop_size = {kMost, kMost}}), picture),
              "more than max_bytes");
  expect_part(
      error(ImageProcessor({.type = "ConvNextImageProcessor", .size = {.shortest_edge = 8}, .crop_pct = 1e-300}),
            picture),
      "more than max_bytes");
  expect_part(error(ImageProcessor({.size = {.shortest_edge = 8, .longest_edge = 1}}), line), "resized to nothing");
  expect_part(error(ImageProcessor({.size = {.height = 8, .width = 8}}, {.max_bytes = 100}), picture),
              "max_bytes = 100");
  const ImageProcessor segformer({.type = "SegformerImageProcessor", .size = {.height = kMost, .width = kMost}});
  expect_part(error_of([&] { segformer.masks(Tensor::zeros({2, 2}, {kI64, kCPU})); }), "more than max_bytes");
  expect_part(error_of([&] { segformer.masks(Tensor::zeros({2, 2}, {kF32, kCPU})); }), "of integers, got f32");
}

}  // namespace
}  // namespace rondo::nn
