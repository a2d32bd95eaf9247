// safetensors against files that mean harm, files of other writers, and its own.
#include "rondo/runtime/checkpoint/safetensors.h"

#include <malloc.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/io/atomic_file.h"
#include "rondo/runtime/io/checksum.h"
#include "rondo/runtime/io/json.h"
#include "rondo/tests/runtime/temp_folder.h"

// Counts the heap bytes in use, so that tests can bound the memory that a hostile header costs.
namespace {
std::atomic<int64_t> live_bytes{0}, peak_live{0};
void count(int64_t bytes) {
  const int64_t now = live_bytes.fetch_add(bytes) + bytes;
  int64_t peak = peak_live.load();
  while (now > peak && !peak_live.compare_exchange_weak(peak, now)) {
  }
}
}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// A sanitizer must keep its own operator new, and offers hooks. (GCC ships the functions without their header.)
extern "C" {
int __sanitizer_install_malloc_and_free_hooks(void (*)(const volatile void*, size_t), void (*)(const volatile void*));
size_t __sanitizer_get_allocated_size(const volatile void*);
}
const int hooks_installed = __sanitizer_install_malloc_and_free_hooks(
    [](const volatile void*, size_t bytes) { count(static_cast<int64_t>(bytes)); },
    [](const volatile void* p) { count(-static_cast<int64_t>(__sanitizer_get_allocated_size(p))); });
#else
void* operator new(size_t bytes) {
  void* p = std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  count(static_cast<int64_t>(malloc_usable_size(p)));
  return p;
}
void operator delete(void* p) noexcept {
  if (p != nullptr) count(-static_cast<int64_t>(malloc_usable_size(p)));
  std::free(p);
}
void operator delete(void* p, size_t) noexcept { operator delete(p); }
#endif

namespace rondo::io {
namespace {

// A file with this header and `data_bytes` zero bytes after it.
std::string file_of(std::string_view header, size_t data_bytes = 0) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes + std::string(header) + std::string(data_bytes, '\0');
}

class Safetensors : public testing::Test {
 protected:
  TempFolder folder;
  const std::string path = folder / "model.safetensors";

  void expect_refused(std::string_view bytes, std::string_view reason) {
    SCOPED_TRACE(std::string(bytes.substr(0, 200)));
    write_bytes(path, bytes);
    expect_file_error(path, reason, [&] { load_safetensors(path); });
  }
};

TensorMap some_tensors() {
  return {{"b.weight", Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3})},
          {"a", Tensor::from<double>({0.1}, {})},
          {"empty", Tensor::empty({0, 5}, {kI32})},
          {"ids", Tensor::from<int64_t>({-1, INT64_MAX}, {2})},
          {"mask", Tensor::from<uint8_t>({1, 0, 255}, {3})},
          {"low", Tensor::from<BFloat16>({BFloat16(1.5f), BFloat16(-2.0f)}, {1, 2})},
          {"half", Tensor::from<Float16>({Float16(0.25f)}, {1})},
          {"x\n\"\\\u00e9", Tensor::from<int32_t>({7}, {1, 1, 1})}};
}

void expect_same(const TensorMap& a, const TensorMap& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    const Tensor& other = b.at(name);
    EXPECT_EQ(tensor.dtype(), other.dtype()) << name;
    EXPECT_EQ(tensor.sizes(), other.sizes()) << name;
    if (tensor.numel() > 0) {
      EXPECT_EQ(std::memcmp(tensor.raw_data(), other.raw_data(), static_cast<size_t>(tensor.nbytes())), 0) << name;
    }
  }
}

TEST_F(Safetensors, RoundTrip) {
  const TensorMap tensors = some_tensors();
  const Metadata metadata = {{"format", "pt"}, {"note", "tab\t, quote\", control \x01, \u4f60"}};
  save_safetensors(path, tensors, metadata);
  const LoadedTensors loaded = load_safetensors(path);
  expect_same(tensors, loaded.tensors);
  EXPECT_EQ(loaded.metadata, metadata);
  EXPECT_EQ(folder.entries(), 1) << "a temporary file is left";

  const SafetensorsFile file(path);
  EXPECT_TRUE(file.contains("ids"));
  EXPECT_EQ(file.tensor("ids").to_vector<int64_t>(), (std::vector<int64_t>{-1, INT64_MAX}));
  expect_file_error(path, "has no tensor \"idz\"", [&] { file.tensor("idz"); });

  save_safetensors(path, {});
  EXPECT_TRUE(load_safetensors(path).tensors.empty());
}

// What version 0.8.0 of the reference implementation writes for these tensors.
TEST_F(Safetensors, SameBytesAsTheReference) {
  const auto two = [](DType dtype) { return Tensor::zeros({2}, {dtype}); };
  save_safetensors(path, {{"float64", two(kF64)},
                          {"float32", two(kF32)},
                          {"float16", two(kF16)},
                          {"int64", two(kI64)},
                          {"int32", two(kI32)},
                          {"uint8", two(kU8)},
                          {"bool", two(kBool)}});
  EXPECT_EQ(read_bytes(path), file_of(R"({"int64":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},)"
                                      R"("float64":{"dtype":"F64","shape":[2],"data_offsets":[16,32]},)"
                                      R"("float32":{"dtype":"F32","shape":[2],"data_offsets":[32,40]},)"
                                      R"("int32":{"dtype":"I32","shape":[2],"data_offsets":[40,48]},)"
                                      R"("float16":{"dtype":"F16","shape":[2],"data_offsets":[48,52]},)"
                                      R"("uint8":{"dtype":"U8","shape":[2],"data_offsets":[52,54]},)"
                                      R"("bool":{"dtype":"BOOL","shape":[2],"data_offsets":[54,56]}}      )",
                                      56));
}

TEST_F(Safetensors, ViewsAreSavedDense) {
  const Tensor t = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  const Tensor transposed = Tensor::from_storage(t.storage(), 0, {3, 2}, {1, 3}, kF32);
  save_safetensors(path, {{"t", transposed}});
  EXPECT_EQ(load_safetensors(path).tensors.at("t").to_vector<float>(), (std::vector<float>{1, 4, 2, 5, 3, 6}));
}

TEST_F(Safetensors, MappedTensorsOutliveTheFileAndNeverWriteToIt) {
  save_safetensors(path, {{"w", Tensor::from<float>({1, 2}, {2})}});
  const std::string before = read_bytes(path);
  Tensor w = load_safetensors(path).tensors.at("w");
  EXPECT_TRUE(w.storage().is_borrowed());
  w.mutable_data<float>()[0] = 9;
  EXPECT_EQ(read_bytes(path), before);
  std::filesystem::remove(path);
  EXPECT_EQ(w.to_vector<float>(), (std::vector<float>{9, 2}));
}

TEST_F(Safetensors, UnalignedTensorsAreCopied) {
  // The header has an odd length, so the doubles begin at an odd address.
  for (size_t padding = 0; padding < 8; ++padding) {
    std::string bytes = file_of(R"({"d":{"dtype":"F64","shape":[2],"data_offsets":[0,16]}})" +
                                std::string(padding, ' '));
    const double values[2] = {0.5, -3};
    bytes.append(reinterpret_cast<const char*>(values), 16);
    write_bytes(path, bytes);
    const Tensor d = load_safetensors(path).tensors.at("d");
    EXPECT_EQ(d.to_vector<double>(), (std::vector<double>{0.5, -3}));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(d.raw_data()) % 8, 0u);
    EXPECT_EQ(d.storage().is_borrowed(), bytes.size() % 8 == 0);
  }
}

TEST_F(Safetensors, EveryTruncation) {
  save_safetensors(path, some_tensors(), {{"format", "pt"}});
  write_bytes(path, read_bytes(path) + '\0');
  expect_file_error(path, "1 bytes after the last tensor", [&] { load_safetensors(path); });
  const uintmax_t whole = std::filesystem::file_size(path) - 1;
  std::filesystem::resize_file(path, whole);
  load_safetensors(path);
  for (uintmax_t length = whole; length-- > 0;) {
    std::filesystem::resize_file(path, length);
    expect_file_error(path, "", [&] { load_safetensors(path); });
  }
}

// Every bit flipped in the header gives the tensors' shape of the file or a typed error, and never anything worse.
TEST_F(Safetensors, EveryFlippedBit) {
  save_safetensors(path, some_tensors(), {{"format", "pt"}});
  const std::string whole = read_bytes(path);
  const size_t header_end = whole.size() - 86;
  int accepted = 0;
  for (size_t bit = 0; bit < header_end * 8; ++bit) {
    poke(path, bit / 8, static_cast<char>(whole[bit / 8] ^ (1 << bit % 8)));
    try {
      for (const auto& [name, tensor] : load_safetensors(path).tensors) EXPECT_LE(tensor.nbytes(), 100);
      ++accepted;  // a letter of a name, say
    } catch (const FileError& error) {
      EXPECT_EQ(error.path(), path);
    }
    poke(path, bit / 8, whole[bit / 8]);
  }
  EXPECT_GT(accepted, 0);
}

TEST_F(Safetensors, HeaderLength) {
  const auto with_length = [](uint64_t length, std::string_view rest) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes + std::string(rest);
  };
  expect_refused("", "0 bytes");
  expect_refused(with_length(0, ""), "must start with '{'");
  expect_refused(with_length(0, "{}"), "must start with '{'");
  expect_refused(with_length(1, "{}"), "expected");
  expect_refused(with_length(3, "{}"), "larger than the file");
  expect_refused(with_length(uint64_t{1} << 63, "{}"), "above the limit");
  expect_refused(with_length(UINT64_MAX, "{}"), "above the limit");
  expect_refused(with_length(UINT64_MAX - 7, "{}"), "above the limit");
  expect_refused(with_length(100'000'001, "{}"), "above the limit");
  expect_refused(with_length(100'000'000, "{}"), "larger than the file");
  expect_refused(file_of(" {}"), "must start with '{'");
  expect_refused(file_of("{} x"), "after the end");
  expect_refused(file_of("[]"), "must start with '{'");
  expect_refused(file_of("null"), "must start with '{'");
  write_bytes(path, file_of("{}   \n"));
  EXPECT_TRUE(load_safetensors(path).tensors.empty());

  // A sparse file: the length alone must be refused, without reading 100 MB.
  write_bytes(path, with_length(100'000'001, "{"));
  std::filesystem::resize_file(path, 200'000'000);
  expect_file_error(path, "above the limit", [&] { load_safetensors(path); });
}

TEST_F(Safetensors, Layout) {
  const auto u8 = [](std::string_view name, int64_t size, int64_t begin, int64_t end) {
    return "\"" + std::string(name) + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(size) +
           "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
  };
  expect_refused(file_of("{" + u8("a", 4, 0, 4) + "," + u8("b", 4, 3, 7) + "}", 7), "overlaps");
  expect_refused(file_of("{" + u8("a", 4, 0, 4) + "," + u8("b", 4, 0, 4) + "}", 4), "overlaps");
  expect_refused(file_of("{" + u8("a", 4, 0, 4) + "," + u8("b", 2, 1, 3) + "}", 4), "overlaps");
  expect_refused(file_of("{" + u8("a", 4, 0, 4) + "," + u8("b", 4, 5, 9) + "}", 9), "hole");
  expect_refused(file_of("{" + u8("a", 4, 1, 5) + "}", 5), "hole");
  expect_refused(file_of("{" + u8("a", 4, 0, 4) + "}", 5), "after the last tensor");
  expect_refused(file_of("{" + u8("a", 4, 0, 4) + "}", 3), "truncated");
  expect_refused(file_of("{" + u8("a", 4, 0, 5) + "}", 5), "span 5 bytes, its shape [4] needs 4");
  expect_refused(file_of("{" + u8("a", 4, 4, 0) + "}", 4), "end before they begin");
  expect_refused(file_of("{" + u8("a", 0, 9, 9) + "}", 0), "hole");
  expect_refused(file_of("{" + u8("a", 4, 0, 4) + "," + u8("a", 4, 4, 8) + "}", 8), "two tensors named \"a\"");
  write_bytes(path, file_of("{" + u8("z", 4, 0, 4) + "," + u8("none", 0, 4, 4) + "," + u8("a", 4, 4, 8) + "}", 8));
  EXPECT_EQ(load_safetensors(path).tensors.size(), 3u);
}

TEST_F(Safetensors, Fields) {
  const auto one = [](std::string_view fields, size_t bytes = 0) {
    return file_of("{\"a\":{" + std::string(fields) + "}}", bytes);
  };
  const auto shape = [&](std::string_view sizes, std::string_view offsets = "0,0") {
    return one("\"dtype\":\"F32\",\"shape\":" + std::string(sizes) + ",\"data_offsets\":[" + std::string(offsets) +
               "]");
  };
  const auto dtype = [&](std::string_view value) {
    return one("\"dtype\":" + std::string(value) + ",\"shape\":[0],\"data_offsets\":[0,0]");
  };
  const auto offsets = [&](std::string_view value) {
    return one("\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":" + std::string(value));
  };
  // Products that overflow, also through a zero: strides are products too.
  expect_refused(shape("[4294967296,4294967296]"), "overflows");
  expect_refused(shape("[9223372036854775807,2]"), "overflows");
  expect_refused(shape("[9223372036854775808]"), "overflows");
  expect_refused(shape("[4611686018427387904]"), "overflows");
  expect_refused(shape("[0,9223372036854775807,9223372036854775807]"), "overflows");
  expect_refused(shape("[4294967296,4294967296,0]"), "overflows");
  expect_refused(shape("[1,1,1,1,1,1,1,1,1]", "0,4"), "more than 8 dimensions");
  // Numbers.
  expect_refused(shape("[-1]"), "non-negative integer");
  expect_refused(shape("[-0]"), "non-negative integer");
  expect_refused(shape("[1.0]", "0,4"), "non-negative integer");
  expect_refused(shape("[1e0]", "0,4"), "non-negative integer");
  expect_refused(shape("[18446744073709551616]"), "above 2^64 - 1");
  expect_refused(shape("[" + std::string(10000, '9') + "]"), "above 2^64 - 1");
  expect_refused(shape("[01]", "0,4"), "expected");
  expect_refused(shape("[NaN]"), "non-negative integer");
  expect_refused(shape("[Infinity]"), "non-negative integer");
  expect_refused(shape("[\"1\"]"), "non-negative integer");
  expect_refused(shape("[null]"), "non-negative integer");
  expect_refused(shape("[true]"), "non-negative integer");
  expect_refused(shape("[[1]]"), "non-negative integer");
  expect_refused(shape("[1,]"), "non-negative integer");
  expect_refused(shape("[,1]"), "non-negative integer");
  expect_refused(shape("[1 1]"), "expected ',' or ']'");
  expect_refused(shape("1"), "expected an array");
  expect_refused(shape("{}"), "expected an array");
  expect_refused(shape("null"), "expected an array");
  // dtype.
  for (const char* name : {"F8_E4M3", "f32", "F31", "", "U16", "I8", "C64", "F32 ", "F32\\u0000"})
    expect_refused(dtype("\"" + std::string(name) + "\""), "supported are F64 F32 BF16 F16 I64 I32 U8 BOOL");
  expect_refused(dtype("7"), "expected a string");
  expect_refused(dtype("null"), "expected a string");
  // data_offsets.
  expect_refused(offsets("[]"), "needs 2 numbers, not 0");
  expect_refused(offsets("[0]"), "needs 2 numbers, not 1");
  expect_refused(offsets("[0,0,0]"), "needs 2 numbers, not 3");
  expect_refused(offsets("[-1,0]"), "non-negative integer");
  expect_refused(offsets("[0,0.0]"), "non-negative integer");
  expect_refused(offsets("[18446744073709551615,18446744073709551615]"), "hole");
  expect_refused(offsets("[0,18446744073709551615]"), "needs 0");
  expect_refused(offsets("[0,18446744073709551616]"), "above 2^64 - 1");
  expect_refused(offsets("[[0,0]]"), "non-negative integer");
  expect_refused(offsets("\"00\""), "expected an array");
  // Missing, repeated, unknown.
  expect_refused(one(""), "lacks dtype");
  expect_refused(one(R"("dtype":"U8","data_offsets":[0,0])"), "lacks shape");
  expect_refused(one(R"("dtype":"U8","shape":[0])"), "lacks data_offsets");
  expect_refused(one(R"("dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0])"), "has two \"dtype\"");
  expect_refused(one(R"("dtype":"U8","shape":[0],"shape":[0],"data_offsets":[0,0])"), "has two \"shape\"");
  expect_refused(one(R"("dtype":"U8","shape":[0],"data_offsets":[0,0],"strides":[1])"), "unknown field \"strides\"");
  expect_refused(file_of(R"({"a":null})"), "expected an object");
  expect_refused(file_of(R"({"a":[]})"), "expected an object");
  expect_refused(file_of(R"({"a":7})"), "expected an object");
  // A bool is 0 or 1.
  std::string bytes = file_of(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2);
  write_bytes(path, bytes);
  EXPECT_EQ(load_safetensors(path).tensors.at("a").to_vector<bool>(), (std::vector<bool>{false, false}));
  bytes.back() = 2;
  expect_refused(bytes, "neither 0 nor 1");
}

TEST_F(Safetensors, MetadataAndText) {
  for (const char* value : {"1", "null", "true", "[]", "{}", "1.5"})
    expect_refused(file_of("{\"__metadata__\":{\"k\":" + std::string(value) + "}}"), "must be a string");
  expect_refused(file_of(R"({"__metadata__":[]})"), "expected an object");
  expect_refused(file_of(R"({"__metadata__":null})"), "expected an object");
  expect_refused(file_of(R"({"__metadata__":"x"})"), "expected an object");
  expect_refused(file_of(R"({"__metadata__":{"k":"1","k":"2"}})"), "two __metadata__ entries \"k\"");
  expect_refused(file_of(R"({"__metadata__":{},"__metadata__":{}})"), "two __metadata__");
  // UTF-8: a lone continuation, cut sequences, overlong forms, surrogates, beyond U+10FFFF.
  for (const char* bad : {"\x80", "\xC3", "\xE2\x82", "\xF0\x9F\x98", "\xC0\xAF", "\xC1\xBF", "\xE0\x80\xAF",
                          "\xED\xA0\x80", "\xF0\x80\x80\xAF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\xFE"}) {
    expect_refused(file_of("{\"" + std::string(bad) + "\":{}}"), "invalid UTF-8");
    expect_refused(file_of("{\"__metadata__\":{\"k\":\"" + std::string(bad) + "\"}}"), "invalid UTF-8");
  }
  for (const char* bad : {"\\ud800", "\\udc00", "\\ud800\\u0041", "\\ud800\\ud800", "\\ud800x"})
    expect_refused(file_of("{\"" + std::string(bad) + "\":{}}"), "lone surrogate");
  expect_refused(file_of(R"({"\x":{}})"), "unknown escape");
  expect_refused(file_of(R"({"\u12g4":{}})"), "hexadecimal");
  expect_refused(file_of(R"({"\u12)"), "hexadecimal");
  expect_refused(file_of("{\"a\n\":{}}"), "control character");
  expect_refused(file_of(std::string("{\"a\0\":{}}", 9)), "control character");
  expect_refused(file_of("{\"a"), "unterminated");
  expect_refused(file_of("{\"a\\"), "unterminated");
  expect_refused(file_of("{a:1}"), "name in quotes");
  expect_refused(file_of("{'a':{}}"), "name in quotes");
  expect_refused(file_of("{,}"), "name in quotes");
  expect_refused(file_of(R"({"a"})"), "expected ':'");
  expect_refused(file_of(R"({"__metadata__":{},})"), "name in quotes");
  expect_refused(file_of(R"({"__metadata__":{} /* */ })"), "expected ',' or '}'");
  expect_refused(file_of("\xEF\xBB\xBF{}"), "must start with '{'");
  // Escaped spellings are the same name.
  expect_refused(file_of(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                         R"("\u0061":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
                 "two tensors named");
  // Nesting: no depth is needed to be refused, and no stack.
  for (const char* open : {"[", "{\"a\":", "{\"__metadata__\":", "{\"a\":["}) {
    std::string deep = "{\"a\":";
    while (deep.size() < 1'000'000) deep += open;
    expect_refused(file_of(deep), "at byte");
  }
}

// ---- Memory

class HeaderMemory : public Safetensors {
 protected:
  // Opens a file with this header; checks the bound on the heap, thrown or not.
  void check(const std::string& name, const std::string& header) {
    SCOPED_TRACE(name);
    write_bytes(path, file_of(header));
    allocator::empty_cache();
    const int64_t before = live_bytes.load(), tensors_before = allocator::stats().bytes_in_use;
    peak_live.store(before);
    allocator::reset_peak();
    try {
      load_safetensors(path);
    } catch (const FileError& error) {
      EXPECT_LT(std::strlen(error.what()), 1000u);
    }
    const int64_t used = peak_live.load() - before + allocator::stats().peak_bytes - tensors_before;
    EXPECT_LT(used, 16 * static_cast<int64_t>(header.size()) + (1 << 20));
    RecordProperty(name, std::to_string(static_cast<double>(used) / static_cast<double>(header.size())));
  }
  // A short name for i, no two alike.
  static std::string name(int i) {
    std::string text;
    for (; i > 0 || text.empty(); i /= 64) text += static_cast<char>('0' + i % 64 + (i % 64 >= 44));  // skips '\'
    return text;
  }
};

TEST_F(HeaderMemory, StaysUnderSixteenHeaders) {
  constexpr size_t kSize = 2'000'000;
  std::string tensors = "{", metadata = "{\"__metadata__\":{", long_keys = metadata, escapes = "{\"", spaces = "{";
  for (int i = 0; tensors.size() < kSize; ++i)
    tensors += "\"" + name(i) + "\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},";
  for (int i = 0; metadata.size() < kSize; ++i) metadata += "\"" + name(i) + "\":\"\",";
  for (int i = 0; long_keys.size() < kSize; ++i)
    long_keys += "\"0123456789abcdef" + name(i) + "\":\"0123456789abcdef\",";
  while (escapes.size() < kSize) escapes += "\\u0001";
  while (spaces.size() < kSize) spaces += "\n\t\r ";
  check("tensors, cut off", tensors);
  tensors.back() = '}';
  check("tensors", tensors);
  check("metadata, cut off", metadata);
  metadata.back() = '}';
  check("metadata", metadata + "}");
  long_keys.back() = '}';
  check("long metadata", long_keys + "}");
  check("escapes, cut off", escapes);
  check("escapes", escapes + "\":{}}");
  check("spaces", spaces);
  check("spaces and an error", spaces + "x");
  check("one name", "{\"" + std::string(kSize, 'n') + "\":{}}");
  check("one name, cut off", "{\"" + std::string(kSize, 'n'));
  check("one value", "{\"__metadata__\":{\"k\":\"" + std::string(kSize, 'v') + "\"}}");
  check("one dtype", "{\"a\":{\"dtype\":\"" + std::string(kSize, 'F') + "\"}}");
  check("one field", "{\"a\":{\"" + std::string(kSize, 'f') + "\":1}}");
  check("one number", "{\"a\":{\"shape\":[" + std::string(kSize, '1') + "]}}");
  check("fraction", "{\"a\":{\"shape\":[1." + std::string(kSize, '1') + "]}}");
  check("nesting", "{\"a\":" + std::string(kSize, '['));
  std::string pairs = "{\"a\":{\"data_offsets\":[";
  while (pairs.size() < kSize) pairs += "1,";
  check("offsets", pairs);
}

// ---- Sharded models

TEST_F(Safetensors, Sharded) {
  save_safetensors(folder / "model-1.safetensors", {{"a", Tensor::from<float>({1}, {1})}}, {{"format", "pt"}});
  save_safetensors(folder / "model-2.safetensors", {{"b", Tensor::from<float>({2}, {1})}, {"c", Tensor::zeros({3})}});
  const std::string index = folder / "model.safetensors.index.json";
  const auto load = [&](const std::string& json) {
    write_bytes(index, json);
    return load_safetensors(index);
  };
  const LoadedTensors loaded = load(R"({"metadata":{"total_size":20,"nested":[{"x":null}]},"weight_map":
      {"b":"model-2.safetensors","a":"model-1.safetensors"}})");
  EXPECT_EQ(loaded.tensors.size(), 2u);
  EXPECT_EQ(loaded.tensors.at("b").item(), 2);
  EXPECT_EQ(loaded.metadata.at("format"), "pt");

  const auto refused = [&](const std::string& json, std::string_view reason) {
    SCOPED_TRACE(json.substr(0, 200));
    expect_file_error(index, reason, [&] { load(json); });
  };
  for (const char* file : {"../model-1.safetensors", "/etc/passwd", "..", ".", "", "sub/model.safetensors", "a\\\\b",
                           "\\u002e\\u002e\\u002fx", "..\\\\x", "x\\u0000.safetensors"})
    refused("{\"weight_map\":{\"a\":\"" + std::string(file) + "\"}}", "plain file name");
  refused(R"({"weight_map":{"a":7}})", "must be a file name");
  refused(R"({"weight_map":{"a":"x","a":"y"}})", "two entries");
  refused(R"({"weight_map":{},"weight_map":{}})", "two weight_map");
  refused(R"({"weight_map":[]})", "expected an object");
  refused(R"({})", "has no weight_map");
  refused("[]", "expected an object");
  refused("", "expected an object");
  refused("{\"weight_map\":{}} x", "after the end");
  refused("{\"metadata\":" + std::string(1'000'000, '['), "nested too deeply");
  std::string deep = "{\"metadata\":";
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  refused(deep, "nested too deeply");
  expect_file_error(folder / "missing.safetensors", "No such file",
                    [&] { load(R"({"weight_map":{"a":"missing.safetensors"}})"); });
  expect_file_error(folder / "model-1.safetensors", "has no tensor \"zz\"",
                    [&] { load(R"({"weight_map":{"zz":"model-1.safetensors"}})"); });
}

// ---- Saving what cannot be saved

TEST_F(Safetensors, RefusesToSave) {
  write_bytes(path, "old");
  expect_file_error(path, "undefined", [&] { save_safetensors(path, {{"a", Tensor()}}); });
  expect_file_error(path, "UTF-8", [&] { save_safetensors(path, {{"\xff", Tensor::zeros({1})}}); });
  expect_file_error(path, "UTF-8", [&] { save_safetensors(path, {}, {{"k", "\xff"}}); });
  expect_file_error(path, "__metadata__", [&] { save_safetensors(path, {{"__metadata__", Tensor::zeros({1})}}); });
  EXPECT_EQ(read_bytes(path), "old");
  EXPECT_EQ(folder.entries(), 1);
  const std::string nowhere = folder / "no/such/folder.safetensors";
  expect_file_error(nowhere, "No such file", [&] { save_safetensors(nowhere, {}); });
}

}  // namespace
}  // namespace rondo::io
