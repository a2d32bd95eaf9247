#include "rondo/runtime/cpu/product.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>

#include "absl/hash/hash.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/recent_cache.h"
#include "rondo/runtime/cpu/simd.h"
#include "rondo/runtime/cpu/thin_product.h"
#include "rondo/runtime/cpu/tiled_product.h"
#include "rondo/runtime/cpu/wrong_kernels.h"
#include "rondo/runtime/device/memory.h"
#include "rondo/runtime/device/storage.h"
#include "rondo/runtime/onednn/onednn.h"
#include "rondo/runtime/onednn/onednn_versions.h"

namespace rondo::cpu {

namespace {

using dnnl::memory;

// Returns a memory object without an address; each run sets one.
memory unbound(const Desc& desc) { return memory(desc, library_engine(), nullptr); }

}  // namespace

// A oneDNN primitive for slices of one shape. It runs on one thread.
class Product::Primitive {
 public:
  explicit Primitive(const MatmulCall& call);
  void run(const MatmulOperands& operands) const;
  bool is_for(const MatmulCall& c) const { return c.batch == call_.batch && c.m == call_.m && c.n == call_.n; }

 private:
  struct Arguments;  // arguments of one run; each run leases its own, because threads may run at the same time
  std::unique_ptr<Arguments> lease() const;
  Kernels<dnnl::matmul> choose_kernel();
  bool add_to_copy();
  void copy_added(const MatmulOperands& operands) const;

  MatmulCall call_;
  std::optional<size_t> copied_;  // Note [Sums of slices]: the epilogue whose operand is copied to C
  dnnl::matmul product_;
  Desc a_, b_, bias_, c_, scratchpad_;
  std::array<int, kMaxEpilogues> added_ = {};  // argument number of each epilogue's operand; 0 if it has none
  bool signals_wait_ = false;                  // Note [Signals wait] in onednn.h
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Arguments>> spare_;
};

struct Product::Primitive::Arguments {
  struct Bound {
    int argument;
    memory data;
  };
  std::vector<Bound> bound;
  std::vector<dnnl_exec_arg_t> list;
  dnnl::stream stream{library_engine()};  // like the other members, used by one thread at a time

  memory& add(int argument, const Desc& desc) {
    bound.push_back({argument, unbound(desc)});
    list.push_back({argument, bound.back().data.get()});
    return bound.back().data;
  }
  void set(int argument, const void* data) {
    for (Bound& b : bound)
      if (b.argument == argument) return set_address(b.data, data, stream);
  }
};

// Note [Sums of slices]. The fast kernels of oneDNN 3.12 cannot add an operand whose rows are not adjacent, as in a
// slice of columns. Only its reference kernel can, which takes a thousand times as long. In this case the operand is
// copied to C, and the product is added to C.
Product::Primitive::Primitive(const MatmulCall& call) : call_(call) {
  const OneLibraryThread alone;  // the library plans for the current number of threads
  Kernels<dnnl::matmul> kernels = choose_kernel();
  if (is_reference(kernels.name()) && add_to_copy()) kernels = choose_kernel();
  scratchpad_ = kernels.scratchpad();
  signals_wait_ = moves_stack_pointer(kernels.name());
  product_ = kernels.make();
}

// Chooses the kAdd epilogue whose operand is copied to C. Returns false if there is none, if another epilogue adds in
// place already, or if C is a vector, to which nothing is added in place (Note [Sums of vectors]).
bool Product::Primitive::add_to_copy() {
  if (call_.m == 1 || call_.n == 1) return false;
  if (std::find(call_.in_place.begin(), call_.in_place.end(), true) != call_.in_place.end()) return false;
  const auto sum = std::find(call_.epilogues.begin(), call_.epilogues.end(), Epilogue::kAdd);
  if (sum == call_.epilogues.end()) return false;
  copied_ = static_cast<size_t>(sum - call_.epilogues.begin());
  call_.in_place[*copied_] = true;
  return true;
}

void Product::Primitive::copy_added(const MatmulOperands& operands) const {
  const auto bytes = static_cast<int64_t>(size_of(call_.result_dtype()));
  for (int64_t matrix = 0; matrix < call_.batch; ++matrix)
    for (int64_t row = 0; row < call_.m; ++row) {
      const int64_t at = (matrix * call_.c.batch + row * call_.c.row) * bytes;
      std::memcpy(static_cast<std::byte*>(operands.c) + at,
                  static_cast<const std::byte*>(operands.added[*copied_]) + at, static_cast<size_t>(call_.n * bytes));
    }
}

// Chooses a kernel, and sets the layouts and argument numbers for it.
Kernels<dnnl::matmul> Product::Primitive::choose_kernel() {
  const MatmulCall& call = call_;
  added_ = {};
  const auto library_type = [](DType dtype) {
    return dtype == kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
  };
  const auto type = library_type(call.dtype);
  const bool batched = call.batch > 1;
  auto desc = [&](int64_t rows, int64_t cols, const MatrixStrides& s, memory::data_type type) {
    if (!batched) return Desc({rows, cols}, type, memory::dims{s.row, s.column});
    // oneDNN does not support a stride of 0. A shared operand is a batch of one, which oneDNN broadcasts.
    const int64_t batch = s.batch == 0 ? 1 : call.batch;
    return Desc({batch, rows, cols}, type, memory::dims{batch == 1 ? rows * cols : s.batch, s.row, s.column});
  };
  a_ = desc(call.m, call.k, call.a, type);
  b_ = desc(call.k, call.n, call.b, type);
  c_ = desc(call.m, call.n, call.c, library_type(call.result_dtype()));
  if (call.bias)
    bias_ = batched ? Desc({1, 1, call.n}, type, memory::dims{call.n, call.n, 1})
                    : Desc({1, call.n}, type, memory::dims{call.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops post;
  for (size_t i = 0; i < kMaxEpilogues; ++i) {
    switch (call.epilogues[i]) {
      case Epilogue::kNone: break;
      case Epilogue::kWiden: break;  // call.wide requests it already
      case Epilogue::kAdd:
        if (call.in_place[i]) {
          post.append_sum(1.0f);
        } else {
          added_[i] = DNNL_ARG_ATTR_MULTIPLE_POST_OP(post.len()) | DNNL_ARG_SRC_1;
          post.append_binary(dnnl::algorithm::binary_add, c_);
        }
        break;
      case Epilogue::kGelu: append_eltwise(post, dnnl::algorithm::eltwise_gelu_erf); break;
      case Epilogue::kGeluTanh: append_eltwise(post, dnnl::algorithm::eltwise_gelu_tanh); break;
    }
  }
  if (post.len() > 0) attributes.set_post_ops(post);
  Kernels<dnnl::matmul> kernels(attributes, a_, b_, bias_, c_);
  while (is_wrong(kernels.name(), call)) invariant(kernels.next(), "oneDNN has another kernel for this product");
  return kernels;
}

std::unique_ptr<Product::Primitive::Arguments> Product::Primitive::lease() const {
  {
    std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      std::unique_ptr<Arguments> arguments = std::move(spare_.back());
      spare_.pop_back();
      return arguments;
    }
  }
  auto arguments = std::make_unique<Arguments>();
  arguments->bound.reserve(5 + kMaxEpilogues);  // at most this many elements; `list` has their handles
  arguments->add(DNNL_ARG_SRC, a_);
  arguments->add(DNNL_ARG_WEIGHTS, b_);
  arguments->add(DNNL_ARG_DST, c_);
  if (bias_.get_size() > 0) arguments->add(DNNL_ARG_BIAS, bias_);
  for (int argument : added_)
    if (argument != 0) arguments->add(argument, c_);
  if (scratchpad_.get_size() > 0) arguments->add(DNNL_ARG_SCRATCHPAD, scratchpad_);
  return arguments;
}

void Product::Primitive::run(const MatmulOperands& operands) const {
  if (copied_) copy_added(operands);
  std::unique_ptr<Arguments> arguments = lease();
  arguments->set(DNNL_ARG_SRC, operands.a);
  arguments->set(DNNL_ARG_WEIGHTS, operands.b);
  arguments->set(DNNL_ARG_DST, operands.c);
  if (bias_.get_size() > 0) arguments->set(DNNL_ARG_BIAS, operands.bias);
  for (size_t i = 0; i < kMaxEpilogues; ++i)
    if (added_[i] != 0) arguments->set(added_[i], operands.added[i]);
  // Each run allocates a scratchpad, because the library's own would belong to the thread that made the primitive.
  Storage scratchpad;
  if (const size_t bytes = scratchpad_.get_size(); bytes > 0) {
    scratchpad = Storage::allocate(bytes);
    arguments->set(DNNL_ARG_SCRATCHPAD, scratchpad.data());
  }
  const OneLibraryThread alone;
  const SignalsWait held(signals_wait_);
  dnnl::error::wrap_c_api(
      library().dnnl_primitive_execute(product_.get(), arguments->stream.get(),
                                       static_cast<int>(arguments->list.size()), arguments->list.data()),
      "a matrix product failed");
  std::lock_guard lock(mutex_);
  spare_.push_back(std::move(arguments));
}

// ---- Slices

// The numbers of parts into which the batch, the rows and the columns of C are cut.
struct Product::Grid {
  int64_t batch = 1, rows = 1, columns = 1;
  friend bool operator==(const Grid&, const Grid&) = default;
};

namespace {

// True if rows of B are a multiple of a large power of two apart. Then each column of B maps to few sets of the caches,
// so a slice should read few columns. Measured on Zen 5 in f32, time with columns cut in two relative to rows cut in
// two: (256 x 3072)(3072 x 768) 0.73, (2048 x 768)(768 x 3072) 0.79.
bool columns_conflict(const MatmulCall& call) {
  constexpr int64_t kPage = 4096, kOwnCache = 4 << 20;
  if (call.dtype != kF32 || call.b.column != 1) return false;
  const int64_t row = call.b.row * 4, apart = row & -row, whole = call.k * call.n * 4;
  return apart >= kPage || (apart >= kPage / 4 && whole >= kOwnCache && call.a.column == 1);
}

// Returns the number of parts: at most `most`, and each of at least `least`. It is a power of two, so that 2, 4 or 8
// threads get equal shares.
int64_t parts(int64_t size, int64_t least, int64_t most) {
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::clamp<int64_t>(size / least, 1, most))));
}

// Returns where part i of `count` begins, rounded down to a whole block of the library's kernels.
int64_t part_begin(int64_t size, int64_t count, int64_t i, int64_t block) {
  return i == count ? size : size * i / count / block * block;
}

// Note [Sums of vectors]. If oneDNN's gemv adds to C, its sums start from C. Its bits then differ from those of a
// product followed by an addition. Exact mode needs the latter, and all other kernels give them. So gemv adds a copy of
// C instead.
bool sums_start_from_c(const MatmulCall& call) {
  return call.dtype == kF32 && (call.m == 1 || call.n == 1) &&
         std::find(call.in_place.begin(), call.in_place.end(), true) != call.in_place.end();
}

}  // namespace

// Note [Slices]. The sizes were chosen by measurements on 2 cores of Zen 5 in f32 and bf16, with the forward,
// grad-input and grad-weight products of GPTs of width 128, 384 and 768. Compared with oneDNN on two OpenMP threads,
// the better cut took 0.67 to 1.05 of the time for most shapes, 1.10 at worst. With cut rows each slice reads all of B.
// This costs little from about 200 rows per slice on, or 100 if A is transposed. With fewer rows, columns are cut, at
// least 384 per slice. A slice has at least about 20 us of work.
Product::Grid Product::grid_of(const MatmulCall& call, int variant) {
  constexpr int64_t kMost = 64, kRows = 192, kRowsOfTransposed = 96, kColumns = 384, kFewRows = 64, kBlock = 32;
  constexpr double kFlops = 6e6, kBytes = 1 << 20;
  const auto m = static_cast<double>(call.m), n = static_cast<double>(call.n), k = static_cast<double>(call.k);
  const double work = std::max(2 * m * n * k / kFlops,
                               (m * k + k * n + m * n) * static_cast<double>(size_of(call.dtype)) / kBytes);
  int64_t wanted = parts(static_cast<int64_t>(std::min(work * static_cast<double>(call.batch), 1e6)), 1, kMost);
  if (variant == 3) return {};
  Grid grid;
  if (call.batch > 1) {
    grid.batch = std::min(wanted, call.batch);
    if (grid.batch < call.batch || grid.batch >= 4) return grid;
    wanted = parts(wanted, grid.batch, kMost);
  }
  if (variant == 1) return grid.rows = parts(call.m, kRowsOfTransposed, wanted), grid;
  if (variant == 2) return grid.columns = parts(call.n, kColumns / 2, wanted), grid;
  grid.rows = parts(call.m, call.a.column == 1 ? kRows : kRowsOfTransposed, wanted);
  if (columns_conflict(call)) {
    grid.columns = parts(call.n, kColumns, std::min<int64_t>(wanted, 8));
    grid.rows = parts(call.m, 512, std::max<int64_t>(1, wanted / grid.columns));
  } else if (grid.rows < 4) {
    grid.columns = parts(call.n, call.m < kFewRows ? kFewRows : kColumns, std::max<int64_t>(1, wanted / grid.rows));
  }
  if (grid.rows * grid.columns == 1) grid.rows = parts(call.m, kBlock, std::min<int64_t>(wanted, 4));
  return grid;
}

Product::Product(const MatmulCall& call, const Grid& grid) : call_(call), adds_a_copy_(sums_start_from_c(call)) {
  constexpr int64_t kRowBlock = 16, kColumnBlock = 64;
  const auto each = [](int64_t size, int64_t count, int64_t block, auto&& fn) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = part_begin(size, count, i, block), end = part_begin(size, count, i + 1, block);
      if (begin < end) fn(begin, end - begin);
    }
  };
  each(call.batch, grid.batch, 1, [&](int64_t batch, int64_t matrices) {
    each(call.m, grid.rows, kRowBlock, [&](int64_t row, int64_t rows) {
      each(call.n, grid.columns, kColumnBlock, [&](int64_t column, int64_t columns) {
        MatmulCall part = call;
        if (adds_a_copy_) part.in_place = {};
        part.batch = matrices;
        part.m = rows;
        part.n = columns;
        auto at = std::find_if(primitives_.begin(), primitives_.end(), [&](const auto& p) { return p->is_for(part); });
        if (at == primitives_.end())
          at = primitives_.insert(at, in_library([&] { return std::make_unique<const Primitive>(part); }));
        slices_.push_back({at->get(), batch * call.a.batch + row * call.a.row,
                           batch * call.b.batch + column * call.b.column, column,
                           batch * call.c.batch + row * call.c.row + column});
      });
    });
  });
}

Product::Product(const MatmulCall& call, Own* own) : call_(call), own_(own) {}

Product::~Product() = default;

void Product::run(const MatmulOperands& given) const {
  if (own_ != nullptr) return own_(call_, given);
  MatmulOperands operands = given;
  Storage before;
  if (adds_a_copy_) {
    const int64_t last = (call_.batch - 1) * call_.c.batch + (call_.m - 1) * call_.c.row + call_.n - 1;
    const size_t bytes = static_cast<size_t>(last + 1) * size_of(call_.result_dtype());
    before = Storage::allocate(bytes);
    std::memcpy(before.data(), operands.c, bytes);
    for (size_t e = 0; e < kMaxEpilogues; ++e)
      if (call_.in_place[e]) operands.added[e] = before.data();
  }
  const auto move = [](const void* data, int64_t elements, DType dtype) -> const void* {
    if (data == nullptr) return nullptr;
    return static_cast<const std::byte*>(data) + elements * static_cast<int64_t>(size_of(dtype));
  };
  parallel_for(static_cast<int64_t>(slices_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Slice& slice = slices_[static_cast<size_t>(i)];
      MatmulOperands part{.a = move(operands.a, slice.a, call_.dtype),
                          .b = move(operands.b, slice.b, call_.dtype),
                          .bias = move(operands.bias, slice.bias, call_.dtype),
                          .c = const_cast<void*>(move(operands.c, slice.c, call_.result_dtype()))};
      for (size_t e = 0; e < kMaxEpilogues; ++e) part.added[e] = move(operands.added[e], slice.c, call_.result_dtype());
      in_library([&] { slice.primitive->run(part); });
    }
  });
}

namespace {

using ProductCache = RecentCache<std::pair<MatmulCall, int>, Product>;
ProductCache& product_cache() {
  static auto* cache = [] {
    rondo::memory::on_trim(&Product::trim);
    return new ProductCache(1024);
  }();
  return *cache;
}

// Returns the name of the library's kernel for dense matrices, or an empty string if the library has only a scalar one.
std::string library_kernel(memory::data_type type) {
  return in_library([&]() -> std::string {
    const Desc square({64, 64}, type, memory::dims{64, 1});
    try {
      const Kernels<dnnl::matmul> kernels(dnnl::primitive_attr(), square, square, Desc(), square);
      return is_reference(kernels.name()) ? std::string() : std::string(kernels.name());
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) throw;  // for example out of memory: a returned string would be cached
      return {};
    }
  });
}

// Note [Whose product]. oneDNN runs products in bf16 and f32 if it has a vectorised kernel for them, as with AVX-512.
// Without AVX-512, its versions 2 run f32 products in gemm, which does not pack the operands of a call with less than
// about 320 rows. Rows that are a multiple of 4 KiB apart then share a few sets of the L1 cache. Also, cuts that do not
// change gemm's bits leave threads without work. So Rondo's tiled product runs f32 products without AVX-512. Measured
// on 2 cores of a Zen 4 with ONEDNN_MAX_CPU_ISA=AVX2, built for x86-64-v3, in GFLOP/s: uncut gemm on its own threads,
// then the tiled product:
//   (32 x 256)(256 x 1024) nn 86, 153; nt 147, 141     (128 x 1024)(1024 x 1024) nn 92, 161; nt 165, 160
//   (2048 x 1024)(1024 x 2048) nn 217, 211             (2048 x 3072)(3072 x 768) nn 209, 185
// For a vector times a matrix, oneDNN's gemv reads the matrix once without packing: up to 5 times as fast as tiles.
bool library_multiplies(const MatmulCall& call) {
  static const std::string& bf16 = *new std::string(library_kernel(memory::data_type::bf16));
  static const std::string& f32 = *new std::string(library_kernel(memory::data_type::f32));
  if (call.dtype == kF16) return false;
  if (call.dtype == kBF16) return !bf16.empty();
  return !f32.empty() && (!f32.starts_with("gemm:jit") || !kHasFma || call.m == 1 || call.n == 1);
}

}  // namespace

Product::Own* Product::own_kernel(const MatmulCall& call) {
  if (is_thin_product(call)) return &thin_product;
  return library_multiplies(call) ? nullptr : &tiled_product;
}

std::shared_ptr<const Product> Product::get(const MatmulCall& call, int variant) {
  if (variant < 0 || variant > 3) return nullptr;
  if (Own* const own = own_kernel(call))
    return variant == 0 ? std::shared_ptr<const Product>(new Product(call, own)) : nullptr;
  const Grid grid = grid_of(call, variant);
  for (int other = 0; other < variant; ++other)
    if (grid == grid_of(call, other)) return nullptr;
  return product_cache().get({call, variant}, [&] { return std::shared_ptr<const Product>(new Product(call, grid)); });
}

void Product::trim() { product_cache().clear(); }

}  // namespace rondo::cpu
