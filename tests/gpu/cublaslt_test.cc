// What the fake cuBLASLt computes and refuses, asked of whichever is there. [manual]: the cuBLAS manual, "Using the
// cuBLASLt API"; [header]: cublasLt.h. What creating and setting descriptors answers needs no GPU:
// tests/cuda/cublaslt_test.cc.
#include <bit>
#include <cmath>
#include <random>

#include "rondo/tests/gpu/conformance.h"

namespace rondo::test {
namespace {

using cuda::LtCompute;
using cuda::LtDescAttribute;
using cuda::LtEpilogue;
using cuda::LtLayoutAttribute;
using cuda::LtPreferenceAttribute;
using cuda::LtStatus;
using cuda::LtType;

size_t bytes_of(LtType type) { return type == LtType::kF64 ? 8 : type == LtType::kF32 ? 4 : 2; }
const char* name_of(LtType type) {
  return type == LtType::kF64 ? "f64" : type == LtType::kF32 ? "f32" : type == LtType::kF16 ? "f16" : "bf16";
}

// A value as a type holds it. Small numbers of few bits: each type holds them all.
void store(LtType type, double value, std::byte* to) {
  const auto narrow = static_cast<float>(value);
  if (type == LtType::kF64) std::memcpy(to, &value, 8);
  if (type == LtType::kF32) std::memcpy(to, &narrow, 4);
  const auto f16 = static_cast<_Float16>(narrow);
  if (type == LtType::kF16) std::memcpy(to, &f16, 2);
  const auto bf16 = static_cast<uint16_t>(std::bit_cast<uint32_t>(narrow) >> 16);
  if (type == LtType::kBF16) std::memcpy(to, &bf16, 2);
}
double load(LtType type, const std::byte* from) {
  double f64 = 0;
  float f32 = 0;
  _Float16 f16 = 0;
  uint16_t bf16 = 0;
  switch (type) {
    case LtType::kF64: std::memcpy(&f64, from, 8); return f64;
    case LtType::kF32: std::memcpy(&f32, from, 4); return static_cast<double>(f32);
    case LtType::kF16: std::memcpy(&f16, from, 2); return static_cast<double>(f16);
    default: std::memcpy(&bf16, from, 2); return static_cast<double>(std::bit_cast<float>(uint32_t{bf16} << 16));
  }
}

// D = act(alpha op(A) op(B) + beta C + bias), as a test asks for it. Sizes and leading dimensions follow from m, n, k
// unless they are given.
struct Asked {
  int64_t m = 12, n = 7, k = 20;
  LtType in = LtType::kF32, out = LtType::kF32, scale = LtType::kF32;
  LtCompute compute = LtCompute::kF32;
  bool transpose_a = false, transpose_b = false;
  int32_t batch = 1;
  bool one_b = false;  // for all of a batch: its stride is 0
  uint32_t epilogue = 1;
  bool bias = false, in_place = true;
  double alpha = 1, beta = 0;
  uint32_t alignment = 16;  // that the heuristic is told
  size_t shift = 0;         // elements by which all operands are off their blocks' begin
  uint64_t workspace = uint64_t{4} << 20;
  int64_t pad = 0;         // of each leading dimension
  int64_t missing = 0;     // of A's
  int64_t d_rows = 0;      // 0: m
  int32_t d_batch = 0;     // 0: as the others
  int32_t bias_type = -2;  // -2: as D
};

class ConformanceLt : public Conformance {
 protected:
  ConformanceLt() {
    std::string why_not;
    lt = cuda::find_cublas_lt(&why_not);
    if (lt == nullptr) throw Error(why_not);
    must(lt->create(&handle));
  }
  ~ConformanceLt() override {
    static_cast<void>(cu.context_synchronize());
    for (const auto layout : layouts) static_cast<void>(lt->layout_destroy(layout));
    for (const auto desc : descs) static_cast<void>(lt->desc_destroy(desc));
    for (const auto preference : preferences) static_cast<void>(lt->preference_destroy(preference));
    if (handle != nullptr) static_cast<void>(lt->destroy(handle));
  }
  static void must(LtStatus status) {
    if (status != LtStatus::kSuccess) throw Error("cublasStatus " + std::to_string(static_cast<int>(status)));
  }

  // The heuristic's answer. A count of 0 is kNotSupported, as the runtime takes it.
  LtStatus choose(const Asked& asked) {
    ask = asked;
    const bool f64 = ask.compute == LtCompute::kF64;
    static_cast<void>(f64);
    must(lt->desc_create(&desc, ask.compute, ask.scale));
    descs.push_back(desc);
    describe(LtDescAttribute::kTransposeA, static_cast<int32_t>(ask.transpose_a));
    describe(LtDescAttribute::kTransposeB, static_cast<int32_t>(ask.transpose_b));
    describe(LtDescAttribute::kEpilogue, ask.epilogue);
    if (ask.bias) {
      bias = gpu.block((static_cast<size_t>(ask.m) + ask.shift) * bytes_of(ask.out)) + ask.shift * bytes_of(ask.out);
      describe(LtDescAttribute::kBiasPointer, bias);
      describe(LtDescAttribute::kBiasType, ask.bias_type == -2 ? static_cast<int32_t>(ask.out) : ask.bias_type);
    }
    a = layout(ask.in, ask.transpose_a ? ask.k : ask.m, ask.transpose_a ? ask.m : ask.k, -ask.missing, ask.batch);
    b = layout(ask.in, ask.transpose_b ? ask.n : ask.k, ask.transpose_b ? ask.k : ask.n, 0, ask.batch, ask.one_b);
    d = layout(ask.out, ask.d_rows == 0 ? ask.m : ask.d_rows, ask.n, 0, ask.d_batch == 0 ? ask.batch : ask.d_batch);
    cuda::LtPreference preference = nullptr;
    must(lt->preference_create(&preference));
    preferences.push_back(preference);
    const auto prefer = [&](LtPreferenceAttribute which, auto value) {
      must(lt->preference_set(preference, which, &value, sizeof value));
    };
    prefer(LtPreferenceAttribute::kMaxWorkspace, ask.workspace);
    prefer(LtPreferenceAttribute::kReductionSchemes, cuda::kReduceInComputeType);
    for (const auto which : {LtPreferenceAttribute::kMinAlignmentA, LtPreferenceAttribute::kMinAlignmentB,
                             LtPreferenceAttribute::kMinAlignmentC, LtPreferenceAttribute::kMinAlignmentD})
      prefer(which, ask.alignment);
    int count = 0;
    found = {};
    const LtStatus status = lt->heuristic(handle, desc, a, b, d, d, preference, 1, &found, &count);
    if (status != LtStatus::kSuccess) return status;
    return count == 0 ? LtStatus::kNotSupported : found.state;
  }

  // Computes on random operands, and compares with sums in double. The result's bytes.
  std::vector<std::byte> run(double tolerance) {
    std::mt19937_64 random(3);
    Matrix a_values = fill(a, random), b_values = fill(b, random), d_values = fill(d, random), c_values = d_values;
    std::vector<double> bias_values(static_cast<size_t>(ask.m));
    std::vector<std::byte> bias_bytes(bias_values.size() * bytes_of(ask.out));
    for (size_t i = 0; i < bias_values.size(); ++i) {
      bias_values[i] = small(random);
      store(ask.out, bias_values[i], &bias_bytes[i * bytes_of(ask.out)]);
    }
    const DevicePtr at = put(a_values), bt = put(b_values), ct = put(c_values);
    const DevicePtr dt = ask.in_place ? ct : put(d_values);
    if (ask.bias) {
      std::byte* staged = gpu.pinned<std::byte>(bias_bytes.size());
      std::memcpy(staged, bias_bytes.data(), bias_bytes.size());
      Gpu::check(cu.copy_to_device(bias, staged, bias_bytes.size(), gpu.stream));
    }
    const DevicePtr workspace = gpu.block(found.workspace + 256);
    Gpu::check(cu.fill_bytes(workspace, 0xFF, found.workspace + 256, gpu.stream));
    EXPECT_LE(found.workspace, ask.workspace);
    EXPECT_EQ(multiply(at, bt, ct, dt, workspace, found.workspace), LtStatus::kSuccess);
    std::vector<std::byte> bytes = gpu.download<std::byte>(dt, d_values.bytes.size());
    int wrong = 0;
    for (int64_t l = 0; l < ask.batch; ++l)
      for (int64_t j = 0; j < ask.n; ++j)
        for (int64_t i = 0; i < ask.m; ++i) {
          double sum = 0, size = 1;
          for (int64_t p = 0; p < ask.k; ++p) {
            const double x = ask.transpose_a ? a_values.get(l, p, i) : a_values.get(l, i, p);
            const double y = ask.transpose_b ? b_values.get(l, j, p) : b_values.get(l, p, j);
            sum += x * y, size += std::abs(x * y);
          }
          double value = ask.alpha * sum + ask.beta * c_values.get(l, i, j);
          if (ask.bias) value += bias_values[static_cast<size_t>(i)];
          if ((ask.epilogue & 32) != 0)  // [header] CUBLASLT_EPILOGUE_GELU: the tanh form
            value = 0.5 * value * (1 + std::tanh(0.7978845608028654 * (value + 0.044715 * value * value * value)));
          const double got = load(ask.out, &bytes[d_values.place(l, i, j)]);
          if (!(std::abs(got - value) <= tolerance * size) && ++wrong <= 3)
            ADD_FAILURE() << "element " << i << ", " << j << " of " << l << ": " << got << ", not " << value;
        }
    EXPECT_EQ(wrong, 0) << name_of(ask.in) << (ask.transpose_a ? " T" : " N") << (ask.transpose_b ? "T" : "N");
    return bytes;
  }
  LtStatus multiply(DevicePtr at, DevicePtr bt, DevicePtr ct, DevicePtr dt, DevicePtr workspace, size_t bytes) {
    const float narrow[] = {static_cast<float>(ask.alpha), static_cast<float>(ask.beta)};
    const double wide[] = {ask.alpha, ask.beta};
    const bool f64 = ask.scale == LtType::kF64;
    const auto factor = [&](int i) { return f64 ? static_cast<const void*>(&wide[i]) : &narrow[i]; };
    const auto pointer = [](DevicePtr address) { return reinterpret_cast<void*>(address); };
    return lt->matmul(handle, desc, factor(0), pointer(at), a, pointer(bt), b, factor(1), pointer(ct), d, pointer(dt),
                      d, &found.algo, pointer(workspace), bytes, gpu.stream);
  }
  template <class T> void describe(LtDescAttribute which, T value) {
    must(lt->desc_set(desc, which, &value, sizeof value));
  }

  // ---- Matrices by columns
  struct Shape {
    LtType type;
    int64_t rows, columns, ld, stride;
    int32_t batch;
  };
  struct Matrix {
    Shape shape;
    size_t shift;
    std::vector<std::byte> bytes;
    size_t place(int64_t l, int64_t i, int64_t j) const {
      return static_cast<size_t>(l * shape.stride + j * shape.ld + i) * bytes_of(shape.type);
    }
    double get(int64_t l, int64_t i, int64_t j) const { return load(shape.type, &bytes[place(l, i, j)]); }
  };
  cuda::LtLayout layout(LtType type, int64_t rows, int64_t columns, int64_t more_ld, int32_t batch,
                        bool shared = false) {
    const int64_t ld = rows + ask.pad + more_ld;
    const int64_t stride = shared ? 0 : std::max<int64_t>(ld, 1) * columns;
    cuda::LtLayout made = nullptr;
    must(lt->layout_create(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), ld));
    layouts.push_back(made);
    if (batch != 1) {
      must(lt->layout_set(made, LtLayoutAttribute::kBatchCount, &batch, sizeof batch));
      must(lt->layout_set(made, LtLayoutAttribute::kBatchStride, &stride, sizeof stride));
    }
    shapes.push_back({made, {type, rows, columns, ld, stride, batch}});
    return made;
  }
  static double small(std::mt19937_64& random) {
    return static_cast<double>(static_cast<int>(random() % 33) - 16) / 16;
  }
  Matrix fill(cuda::LtLayout of, std::mt19937_64& random) {
    Matrix matrix{shape_of(of), ask.shift, {}};
    const Shape& s = matrix.shape;
    matrix.bytes.resize(static_cast<size_t>(s.stride * (s.batch - 1) + s.ld * s.columns) * bytes_of(s.type));
    for (size_t at = 0; at < matrix.bytes.size(); at += bytes_of(s.type))
      store(s.type, small(random), &matrix.bytes[at]);
    return matrix;
  }
  Shape shape_of(cuda::LtLayout layout) const {
    for (const auto& [known, shape] : shapes)
      if (known == layout) return shape;
    throw Error("no such layout");
  }
  DevicePtr put(const Matrix& matrix) {
    const size_t gap = matrix.shift * bytes_of(matrix.shape.type);
    const DevicePtr block = gpu.block(matrix.bytes.size() + gap) + gap;
    std::byte* staged = gpu.pinned<std::byte>(matrix.bytes.size());
    std::memcpy(staged, matrix.bytes.data(), matrix.bytes.size());
    Gpu::check(cu.copy_to_device(block, staged, matrix.bytes.size(), gpu.stream));
    return block;
  }

  const cuda::CublasLt* lt = nullptr;
  cuda::LtHandle handle = nullptr;
  Asked ask;
  cuda::LtDesc desc = nullptr;
  cuda::LtLayout a = nullptr, b = nullptr, d = nullptr;
  cuda::LtHeuristic found{};
  DevicePtr bias = 0;
  std::vector<cuda::LtLayout> layouts;
  std::vector<std::pair<cuda::LtLayout, Shape>> shapes;
  std::vector<cuda::LtDesc> descs;
  std::vector<cuda::LtPreference> preferences;
};

// All that the runtime uses: [manual] cublasLtMatmul(), the table of supported types. The tolerances are for one
// rounding of the result's type, and for sums in f32.
struct Types {
  LtType in, out, scale;
  LtCompute compute;
  double tolerance;
};
constexpr Types kTypes[] = {{LtType::kF32, LtType::kF32, LtType::kF32, LtCompute::kF32, 1e-6},
                            {LtType::kF32, LtType::kF32, LtType::kF32, LtCompute::kTF32, 1e-3},
                            {LtType::kF64, LtType::kF64, LtType::kF64, LtCompute::kF64, 1e-14},
                            {LtType::kBF16, LtType::kBF16, LtType::kF32, LtCompute::kF32, 5e-3},
                            {LtType::kBF16, LtType::kF32, LtType::kF32, LtCompute::kF32, 1e-6},
                            {LtType::kF16, LtType::kF16, LtType::kF32, LtCompute::kF32, 6e-4},
                            {LtType::kF16, LtType::kF32, LtType::kF32, LtCompute::kF32, 1e-6}};
Asked asked_for(const Types& types) {
  Asked ask;
  ask.in = types.in, ask.out = types.out, ask.scale = types.scale, ask.compute = types.compute;
  return ask;
}

TEST_F(ConformanceLt, EveryTypeAndTransposition) {
  for (const Types& types : kTypes)
    for (const int transposed : {0, 1, 2, 3}) {
      Asked ask = asked_for(types);
      ask.transpose_a = (transposed & 1) != 0, ask.transpose_b = (transposed & 2) != 0;
      ask.m = 64, ask.n = 48, ask.k = 96;
      ASSERT_EQ(choose(ask), LtStatus::kSuccess) << name_of(types.in) << " " << transposed;
      run(types.tolerance);
    }
}

// Sizes that fit no tile and addresses that are aligned to one element only: there is an algorithm for them, too.
TEST_F(ConformanceLt, OddSizesAndAddresses) {  // [header] *_MIN_ALIGNMENT_*_BYTES
  for (const Types& types : kTypes)
    for (const size_t shift : {0, 1}) {
      Asked ask = asked_for(types);
      ask.m = 13, ask.n = 7, ask.k = 21, ask.pad = 3, ask.shift = shift;
      ask.alignment = static_cast<uint32_t>(shift == 0 ? 16 : std::min(bytes_of(ask.in), bytes_of(ask.out)));
      ASSERT_EQ(choose(ask), LtStatus::kSuccess) << name_of(types.in) << " " << shift;
      run(types.tolerance);
    }
}

TEST_F(ConformanceLt, VectorsAndSingleNumbers) {
  for (const Types& types : kTypes)
    for (const auto& [m, n, k] : {std::tuple(1, 64, 64), {64, 1, 64}, {64, 64, 1}, {1, 1, 1}, {1, 1, 4096}}) {
      Asked ask = asked_for(types);
      ask.m = m, ask.n = n, ask.k = k;
      ASSERT_EQ(choose(ask), LtStatus::kSuccess) << name_of(types.in) << " " << m << " " << n << " " << k;
      run(types.tolerance);
    }
}

// Bias: m values of D's type, along its rows. GELU: the tanh form.
TEST_F(ConformanceLt, Epilogues) {  // [header] CUBLASLT_EPILOGUE_BIAS, _GELU, _GELU_BIAS
  for (const Types& types : kTypes)
    for (const LtEpilogue epilogue : {LtEpilogue::kBias, LtEpilogue::kGelu, LtEpilogue::kGeluBias}) {
      Asked ask = asked_for(types);
      ask.m = 64, ask.n = 40, ask.k = 32;
      ask.epilogue = static_cast<uint32_t>(epilogue), ask.bias = epilogue != LtEpilogue::kGelu;
      const bool gelu = epilogue != LtEpilogue::kBias;
      if (types.compute == LtCompute::kF64 && gelu) {
        EXPECT_EQ(choose(ask), LtStatus::kNotSupported);
        continue;
      }
      ASSERT_EQ(choose(ask), LtStatus::kSuccess) << name_of(types.in) << " " << ask.epilogue;
      run(std::max(types.tolerance, gelu ? 2e-6 : 0));
    }
}

TEST_F(ConformanceLt, AddsInPlaceAndScales) {  // [manual] cublasLtMatmul(): C == D with equal layouts
  for (const Types& types : kTypes)
    for (const bool in_place : {true, false}) {
      Asked ask = asked_for(types);
      ask.alpha = 0.5, ask.beta = 1, ask.in_place = in_place;
      ASSERT_EQ(choose(ask), LtStatus::kSuccess) << name_of(types.in);
      run(types.tolerance);
    }
}

TEST_F(ConformanceLt, Batches) {  // [header] CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
  for (const Types& types : kTypes)
    for (const bool one_b : {false, true}) {
      Asked ask = asked_for(types);
      ask.m = 24, ask.n = 16, ask.k = 8, ask.batch = 5, ask.one_b = one_b, ask.transpose_a = one_b;
      ASSERT_EQ(choose(ask), LtStatus::kSuccess) << name_of(types.in);
      run(types.tolerance);
    }
}

TEST_F(ConformanceLt, TheSameBitsEachTime) {  // [manual] "Results Reproducibility"
  for (const Types& types : kTypes) {
    Asked ask = asked_for(types);
    ask.m = 16, ask.n = 8, ask.k = 3000;
    ASSERT_EQ(choose(ask), LtStatus::kSuccess);
    const std::vector<std::byte> first = run(types.tolerance);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run(types.tolerance), first) << name_of(types.in);
  }
}

TEST_F(ConformanceLt, NoWorkspaceIfNoneIsAllowed) {  // [header] CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
  Asked ask;
  ask.m = 16, ask.n = 16, ask.k = 8192, ask.workspace = 0;
  ASSERT_EQ(choose(ask), LtStatus::kSuccess);
  EXPECT_EQ(found.workspace, 0u);
  run(1e-6);
}

TEST_F(ConformanceLt, F32IsNotTf32) {  // [manual] cublasComputeType_t: CUBLAS_COMPUTE_32F rounds no operand
  // 1 + 2^-12 is a number of f32 and none of TF32.
  Asked ask;
  ask.m = ask.n = 16, ask.k = 64;
  ASSERT_EQ(choose(ask), LtStatus::kSuccess);
  const std::vector<float> ones(64 * 16, 1), close(64 * 16, 1 + 0x1p-12f);
  const DevicePtr x = gpu.upload(close), y = gpu.upload(ones), z = gpu.block(16 * 16 * 4),
                  workspace = gpu.block(found.workspace + 256);
  ASSERT_EQ(multiply(x, y, z, z, workspace, found.workspace), LtStatus::kSuccess);
  EXPECT_EQ(gpu.download<float>(z, 16 * 16), std::vector<float>(16 * 16, 64 + 0x1p-6f));
}

// ---- Refusals. The heuristic may say "invalid" or "not supported": the runtime makes an error of the first and
// another way of the second, and asks for none of these.

void expect_refusal(LtStatus status) {
  EXPECT_TRUE(status == LtStatus::kInvalidValue || status == LtStatus::kNotSupported)
      << "cublasStatus " << static_cast<int>(status);
}

class ConformanceLtRefusals : public ConformanceLt {};

TEST_F(ConformanceLtRefusals, ALeadingDimensionThatIsTooSmall) {  // [header] CUBLASLT_MATRIX_LAYOUT_LD
  Asked ask;
  ask.missing = 1;
  expect_refusal(choose(ask));
}
TEST_F(ConformanceLtRefusals, SizesThatDoNotFit) {  // [manual] cublasLtMatmul()
  Asked ask;
  ask.d_rows = 11;
  expect_refusal(choose(ask));
}
TEST_F(ConformanceLtRefusals, BatchesThatDoNotFit) {  // [manual] cublasLtMatmul()
  Asked ask;
  ask.batch = 2, ask.d_batch = 3;
  expect_refusal(choose(ask));
}
TEST_F(ConformanceLtRefusals, AnUnknownEpilogue) {
  Asked ask;
  ask.epilogue = 99;
  expect_refusal(choose(ask));
}
TEST_F(ConformanceLtRefusals, AnUnknownTransposition) {
  Asked ask;
  must(lt->desc_create(&desc, LtCompute::kF32, LtType::kF32));
  ASSERT_EQ(choose(ask), LtStatus::kSuccess);
  describe(LtDescAttribute::kTransposeA, int32_t{5});
  const DevicePtr block = gpu.block(1 << 12), result = gpu.block(1 << 12);
  expect_refusal(multiply(block, block, result, result, gpu.block(found.workspace + 256), found.workspace));
}
TEST_F(ConformanceLtRefusals, TypesThatTheManualDoesNotList) {  // [manual] cublasLtMatmul(), the table
  for (const Types& types : {Types{LtType::kF32, LtType::kF32, LtType::kF64, LtCompute::kF64, 0},
                             Types{LtType::kF32, LtType::kBF16, LtType::kF32, LtCompute::kF32, 0},
                             Types{LtType::kF64, LtType::kF64, LtType::kF32, LtCompute::kF32, 0},
                             Types{LtType::kF32, LtType::kF32, LtType::kF64, LtCompute::kF32, 0},
                             Types{LtType::kBF16, LtType::kF16, LtType::kF32, LtCompute::kF32, 0}})
    expect_refusal(choose(asked_for(types)));
}
// A product that the library has no algorithm for: the heuristic says so in one of three forms (choose() knows them),
// and what can be computed is computed as before. Which products those are differs by device and version.
TEST_F(ConformanceLtRefusals, AnAnswerWithoutAlgorithms) {  // [header] cublasLtMatmulAlgoGetHeuristic
  Asked gelu = asked_for({LtType::kF64, LtType::kF64, LtType::kF64, LtCompute::kF64, 0});
  gelu.epilogue = 32;
  expect_refusal(choose(gelu));
  ASSERT_EQ(choose(Asked{}), LtStatus::kSuccess);
  run(1e-5);
  // Odd strides and addresses of 16-bit types: an algorithm that works, or none.
  for (const uint32_t alignment : {2u, 4u, 8u}) {
    Asked odd = asked_for({LtType::kBF16, LtType::kBF16, LtType::kF32, LtCompute::kF32, 0});
    odd.pad = 1, odd.shift = alignment / 2, odd.alignment = alignment;
    const LtStatus status = choose(odd);
    if (status == LtStatus::kSuccess) {
      run(2e-2);
    } else {
      expect_refusal(status);
    }
  }
}
TEST_F(ConformanceLtRefusals, ABiasOfAnotherType) {  // [header] CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE
  Asked ask;
  ask.epilogue = 4, ask.bias = true, ask.bias_type = static_cast<int32_t>(LtType::kBF16);
  expect_refusal(choose(ask));
}
TEST_F(ConformanceLtRefusals, AWorkspaceThatIsTooSmall) {  // [header] cublasLtMatmul
  Asked ask;
  ask.m = 16, ask.n = 16, ask.k = 1 << 14;
  ASSERT_EQ(choose(ask), LtStatus::kSuccess);
  if (found.workspace == 0) GTEST_SKIP() << "the algorithm of this product needs none";
  const DevicePtr x = gpu.block(ask.m * ask.k * 4), y = gpu.block(ask.k * ask.n * 4), z = gpu.block(ask.m * ask.n * 4);
  expect_refusal(multiply(x, y, z, z, 0, 0));
}
TEST_F(ConformanceLtRefusals, NoHandleWithoutADriver) {  // [library] cublasLtCreate: NOT_INITIALIZED without a device
  EXPECT_STRNE(lt->status_string(LtStatus::kNotInitialized), "");
  EXPECT_GE(lt->version(), 120000u);
}

}  // namespace
}  // namespace rondo::test
