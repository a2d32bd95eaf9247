// any and all, of any dtype and layout. They read each element at most once, copy nothing, and stop where the answer is
// known: an order does not matter, so elements are taken as they lie in memory.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/iteration_space.h"
#include "rondo/runtime/ops/kernels.h"

namespace rondo::cpu {
namespace {

// The bits of an element that make it true: all but the sign of a float, as -0 is false and NaN is true.
uint64_t truth_bits(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 0x7FFFFFFFFFFFFFFF;
    case DType::kF32: return 0x7FFFFFFF;
    case DType::kBF16:
    case DType::kF16: return 0x7FFF;
    default: return ~uint64_t{0};
  }
}

// An element is a hit if it decides the result: a true one for any, a false one for all.
template <bool kAny, class Word> constexpr bool is_hit(Word element, Word bits) {
  return ((element & bits) != 0) == kAny;
}

constexpr int64_t kBlock = 1 << 12;  // elements between two looks at what was found

// The value at `from`, wherever that lies.
template <class T, class From> T word(const From* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// Two elements as one, of which the first is the lower half (little endian).
template <class Word>
using Pair = std::conditional_t<sizeof(Word) == 1, uint16_t, std::conditional_t<sizeof(Word) == 2, uint32_t, uint64_t>>;

// ORs answers of elements 0, step, ... into `sink(i, hit)`, as fast as memory for steps of 1 and 2.
template <bool kAny, class Word, class Sink>
void for_each_hit(const Word* x, int64_t n, int64_t step, Word bits, const Sink& sink) {
  if (step == 1) {
    for (int64_t i = 0; i < n; ++i) sink(i, is_hit<kAny>(x[i], bits));
  } else if (step == 2 && sizeof(Word) < 8) {
    // A pair is read as one, and its second half does not count. The last element may have no neighbour.
    const Pair<Word> first_half = bits;
    for (int64_t i = 0; i + 1 < n; ++i) sink(i, is_hit<kAny>(word<Pair<Word>>(x + 2 * i), first_half));
    if (n > 0) sink(n - 1, is_hit<kAny>(x[2 * (n - 1)], bits));
  } else {
    for (int64_t i = 0; i < n; ++i) sink(i, is_hit<kAny>(x[i * step], bits));
  }
}

template <bool kAny, class Word> bool any_hit(const Word* x, int64_t n, int64_t step, Word bits) {
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t block = std::min(n - begin, kBlock);
    Word found = 0;
    for_each_hit<kAny>(x + begin * step, block, step, bits,
                       [&](int64_t, bool hit) { found |= static_cast<Word>(hit); });
    if (found != 0) return true;
  }
  return false;
}

// Whether one of `n` bytes, from 2 to 64, is not 0 (kZero: is 0).
template <bool kZero, class T> T sought(T bytes) {
  if constexpr (!kZero) return bytes;
  constexpr T kOnes = static_cast<T>(0x0101010101010101), kTops = static_cast<T>(0x8080808080808080);
  return static_cast<T>((bytes - kOnes) & ~bytes & kTops);  // not 0 if and only if a byte is
}

// out[r] = `value` if row r of a dense matrix of `cols` bytes, from 2 to 64, has one that is not 0 (kZero: that is 0),
// else !value.
template <bool kZero> void search_rows(const uint8_t* x, int64_t rows, int64_t cols, bool value, bool* out) {
  const auto each = [&](auto hits_of_row) {
    for (int64_t r = 0; r < rows; ++r) out[r] = (hits_of_row(x + r * cols) != 0) == value;
  };
  // Two words that overlap cover a row that is no whole number of words.
  const auto at = []<class T>(T, const uint8_t* row) { return sought<kZero>(word<T>(row)); };
  const int64_t last2 = cols - 2, last4 = cols - 4, last8 = cols - 8;
  if (cols == 2) each([&](const uint8_t* row) { return at(uint16_t{}, row); });
  else if (cols == 3) each([&](const uint8_t* row) { return at(uint16_t{}, row) | at(uint16_t{}, row + last2); });
  else if (cols == 4) each([&](const uint8_t* row) { return at(uint32_t{}, row); });
  else if (cols < 8) each([&](const uint8_t* row) { return at(uint32_t{}, row) | at(uint32_t{}, row + last4); });
  else if (cols == 8) each([&](const uint8_t* row) { return at(uint64_t{}, row); });
  else if (cols <= 16) each([&](const uint8_t* row) { return at(uint64_t{}, row) | at(uint64_t{}, row + last8); });
  else if (cols <= 24)
    each([&](const uint8_t* row) {
      return at(uint64_t{}, row) | at(uint64_t{}, row + 8) | at(uint64_t{}, row + last8);
    });
  else
    each([&](const uint8_t* row) {
      uint64_t any = at(uint64_t{}, row + last8);
      for (int64_t c = 0; c + 8 < cols; c += 8) any |= at(uint64_t{}, row + c);
      return any;
    });
}

// A position among `sizes`, and where it lies in the input and in the output.
class Odometer {
 public:
  Odometer(const IterationSpace<2>& space, int rank, int64_t position) : space_(space), rank_(rank) {
    for (int d = rank - 1; d >= 0; --d) {
      at_[d] = position % space.sizes[d];
      position /= space.sizes[d];
      in += at_[d] * space.strides[0][d];
      out += at_[d] * space.strides[1][d];
    }
  }
  void next() {
    for (int d = rank_ - 1; d >= 0; --d) {
      in += space_.strides[0][d];
      out += space_.strides[1][d];
      if (++at_[d] < space_.sizes[d]) return;
      in -= at_[d] * space_.strides[0][d];
      out -= at_[d] * space_.strides[1][d];
      at_[d] = 0;
    }
  }
  int64_t in = 0, out = 0;

 private:
  const IterationSpace<2>& space_;
  int rank_;
  std::array<int64_t, kMaxRank> at_ = {};
};

template <bool kAny, class Word> class Search {
 public:
  // `space`: strides of x and of the results, of which there are `results`.
  Search(const Word* x, bool* out, int64_t results, Word bits, const IterationSpace<2>& space)
      : x_(x), out_(out), results_(results), bits_(bits), space_(space) {}

  void run() const {
    const int inner = space_.sizes.rank() - 1;
    if (inner == 1 && space_.strides[1][0] == 1 && space_.strides[1][1] == 0 && space_.sizes[1] <= 64 &&
        space_.strides[0][1] == 1 && space_.strides[0][0] == space_.sizes[1])
      return thin_rows();
    // What a result is without a hit.
    parallel_for(results_, kElementwiseGrain,
                 [&](int64_t begin, int64_t end) { std::fill(out_ + begin, out_ + end, !kAny); });
    if (space_.strides[1][inner] != 0) columns();
    else lines();
  }

 private:
  // Several threads may write the same value.
  void note(int64_t at) const { std::atomic_ref<bool>(out_[at]).store(kAny, std::memory_order_relaxed); }
  bool known(int64_t at) const { return std::atomic_ref<bool>(out_[at]).load(std::memory_order_relaxed) == kAny; }

  // The last dimension is reduced: its lines, in pieces.
  void lines() const {
    constexpr int64_t kPiece = 1 << 16;
    const int inner = space_.sizes.rank() - 1;
    const int64_t n = space_.sizes[inner], step = space_.strides[0][inner], pieces = (n + kPiece - 1) / kPiece;
    const int64_t all_lines = space_.sizes.numel() / n;
    parallel_for(all_lines * pieces, std::max<int64_t>(1, kElementwiseGrain / std::min(n, kPiece)),
                 [&](int64_t begin, int64_t end) {
                   Odometer line(space_, inner, begin / pieces);
                   for (int64_t k = begin, piece = begin % pieces; k < end; ++k) {
                     const int64_t first = piece * kPiece;
                     if (!known(line.out) &&
                         any_hit<kAny>(x_ + line.in + first * step, std::min(kPiece, n - first), step, bits_))
                       note(line.out);
                     if (++piece == pieces) piece = 0, line.next();
                   }
                 });
  }

  // Short rows side by side, each with its own result. Elements of more than a byte are answered first, then rows.
  void thin_rows() const {
    const int64_t cols = space_.sizes[1], at_once = kBlock / cols;
    parallel_for(space_.sizes[0], std::max<int64_t>(1, kElementwiseGrain / cols), [&](int64_t begin, int64_t end) {
      if constexpr (sizeof(Word) == 1) {
        search_rows<!kAny>(x_ + begin * cols, end - begin, cols, kAny, out_ + begin);
      } else {
        uint8_t hits[kBlock];
        for (int64_t first = begin; first < end; first += at_once) {
          const int64_t rows = std::min(at_once, end - first);
          for_each_hit<kAny>(x_ + first * cols, rows * cols, 1, bits_,
                             [&](int64_t i, bool hit) { hits[i] = static_cast<uint8_t>(hit); });
          search_rows<false>(hits, rows, cols, kAny, out_ + first);
        }
      }
    });
  }

  // The last dimension is kept. Rows of it, which the last reduced dimension counts, are searched side by side.
  void columns() const {
    constexpr int64_t kColumns = 1 << 12, kElements = 1 << 18;  // of a block's rows, and of a block
    const int inner = space_.sizes.rank() - 1;
    const int64_t cols = space_.sizes[inner], step = space_.strides[0][inner], out_step = space_.strides[1][inner];
    // The dimension that counts the rows goes last among the others.
    IterationSpace<2> outer = space_;
    int reduced = inner - 1;
    while (reduced >= 0 && outer.strides[1][reduced] != 0) --reduced;
    int64_t rows = 1, row_step = 0;
    if (reduced >= 0) {
      rows = outer.sizes[reduced];
      row_step = outer.strides[0][reduced];
      outer.sizes[reduced] = 1;
    }
    // Rows of few columns that lie side by side are taken together, as one long row.
    const int64_t together = step == 1 && row_step == cols ? std::clamp<int64_t>(512 / cols, 1, rows) : 1;
    const int64_t groups = rows / together, wide = cols * together;
    const int64_t width = std::min(wide, kColumns), strips = (wide + width - 1) / width;
    const int64_t height = std::max<int64_t>(1, kElements / width), blocks = (groups + height - 1) / height;
    int64_t others = 1;
    for (int d = 0; d < inner; ++d) others *= outer.sizes[d];
    const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / (width * std::min(groups, height)));
    parallel_for(others * blocks * strips, grain, [&](int64_t begin, int64_t end) {
      Odometer at(outer, inner, begin / (blocks * strips));
      for (int64_t k = begin; k < end; ++k) {
        const int64_t strip = k % strips, block = k / strips % blocks;
        const int64_t first = strip * width, n = std::min(width, wide - first);
        const int64_t from = block * height, to = std::min(groups, from + height);
        const Word* x = x_ + at.in + first * step;
        uint8_t hits[kColumns] = {};
        const int64_t pitch = row_step * together;
        int64_t r = from;
        for (; step == 1 && r + 4 <= to; r += 4) mark_four(x + r * pitch, pitch, n, hits);
        for (; r < to; ++r) mark(x + r * pitch, n, step, hits);
        // What the groups leave over.
        if (to == groups && strip == 0)
          for (r = groups * together; r < rows; ++r) mark(x_ + at.in + r * row_step, cols, step, hits);
        for (int64_t c = 0; c < n; ++c)
          if (hits[c]) note(at.out + (first + c) % cols * out_step);
        if ((k + 1) % (blocks * strips) == 0) at.next();
      }
    });
  }
  // Four rows, `pitch` apart.
  void mark_four(const Word* x, int64_t pitch, int64_t n, uint8_t* __restrict hits) const {
    const Word *a = x, *b = a + pitch, *c = b + pitch, *d = c + pitch, bits = bits_;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (kAny) {
        hits[i] |= static_cast<uint8_t>(is_hit<kAny>(static_cast<Word>(a[i] | b[i] | c[i] | d[i]), bits));
      } else {
        const bool first = is_hit<kAny>(a[i], bits) | is_hit<kAny>(b[i], bits);
        hits[i] |= static_cast<uint8_t>(first | is_hit<kAny>(c[i], bits) | is_hit<kAny>(d[i], bits));
      }
    }
  }
  void mark(const Word* __restrict x, int64_t n, int64_t step, uint8_t* __restrict hits) const {
    for_each_hit<kAny>(x, n, step, bits_, [&](int64_t c, bool hit) { hits[c] |= static_cast<uint8_t>(hit); });
  }

  const Word* x_;
  bool* out_;
  int64_t results_;
  Word bits_;
  const IterationSpace<2>& space_;
};

// The input's dimensions as they lie in memory, with strides of the input and of the output: 0 where it is reduced.
IterationSpace<2> space_of(const Tensor& x, int64_t mask) {
  const int rank = x.rank();
  std::array<int64_t, kMaxRank> out_strides = {};
  for (int64_t d = rank - 1, extent = 1; d >= 0; --d) {
    if ((mask >> d & 1) != 0) continue;
    out_strides[d] = extent;
    extent *= x.sizes()[static_cast<int>(d)];
  }
  std::array<int, kMaxRank> order = {};
  std::iota(order.begin(), order.begin() + rank, 0);
  std::stable_sort(order.begin(), order.begin() + rank, [&](int a, int b) { return x.strides()[a] > x.strides()[b]; });
  Dims sizes;
  std::array<Dims, 2> strides;
  for (int k = 0; k < rank; ++k) {
    const int d = order[static_cast<size_t>(k)];
    if ((mask >> d & 1) != 0 && x.strides()[d] == 0) continue;  // the same elements again
    sizes.push_back(x.sizes()[d]);
    strides[0].push_back(x.strides()[d]);
    strides[1].push_back(out_strides[static_cast<size_t>(d)]);
  }
  return IterationSpace<2>(sizes, strides);
}

template <bool kAny> void search(const KernelContext& context) {
  const Tensor& x = context.in(0);
  bool* out = reinterpret_cast<bool*>(context.out().impl()->data());
  const int64_t results = context.out().numel();
  if (x.numel() == 0) {
    std::fill_n(out, results, !kAny);
    return;
  }
  const IterationSpace<2> space = space_of(x, context.attrs.ints[0]);
  const auto with = [&]<class Word>(Word) {
    Search<kAny, Word>(reinterpret_cast<const Word*>(x.impl()->data()), out, results,
                       static_cast<Word>(truth_bits(x.dtype())), space)
        .run();
  };
  switch (size_of(x.dtype())) {
    case 1: return with(uint8_t{});
    case 2: return with(uint16_t{});
    case 4: return with(uint32_t{});
    default: return with(uint64_t{});
  }
}

}  // namespace

void any_kernel(const KernelContext& context) { search<true>(context); }
void all_kernel(const KernelContext& context) { search<false>(context); }

}  // namespace rondo::cpu
