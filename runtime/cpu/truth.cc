// Kernels of the ops `any` and `all`, for every dtype and layout. They copy nothing, and stop when the result is known.
// Their result does not depend on the order of elements, so elements are read in the order of memory.
//
// Note [Words of hits]: a hit is an element that decides the result: a true element for `any`, a false element for
// `all`. 64 adjacent elements in memory give 64 bits, a word of hits. For a line, its words are ORed. For columns of a
// matrix, the words of its rows are ORed. A word that contains several short rows is split into them. Adjacent elements
// that do not belong to a view are also read if their cache lines are needed anyway; their bits are masked.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <numeric>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "rondo/runtime/cpu/loops.h"
#include "rondo/runtime/ops/kernels.h"
#include "rondo/runtime/tensor/iteration_space.h"

namespace rondo::cpu {
namespace {

// Returns the bits of an element that make it true: for floats all except the sign, because -0 is false and NaN is
// true.
uint64_t truth_bits(DType dtype) {
  switch (dtype) {
    case DType::kF64: return 0x7FFFFFFFFFFFFFFF;
    case DType::kF32: return 0x7FFFFFFF;
    case DType::kBF16:
    case DType::kF16: return 0x7FFF;
    default: return ~uint64_t{0};
  }
}

constexpr int64_t kWord = 64;  // elements in a word of hits

constexpr uint64_t lowest_bits(int64_t n) { return n >= kWord ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

// Returns 64 bits: bit i is 1 if bytes[i] is not 0.
inline uint64_t non_zero(const uint8_t* bytes) {
#if defined(__AVX512BW__)
  const __m512i all = _mm512_loadu_si512(bytes);
  return _mm512_test_epi8_mask(all, all);
#elif defined(__AVX2__)
  const auto zeros = [&](int at) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes + at));
    return static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(half, __m256i{})));
  };
  return ~(zeros(0) | uint64_t{zeros(32)} << 32);
#else
  constexpr uint64_t kLow7 = 0x7F7F7F7F7F7F7F7F, kOnes = 0x0101010101010101, kGather = 0x0102040810204080;
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) {
    uint64_t eight;
    std::memcpy(&eight, bytes + 8 * i, 8);
    const uint64_t ones = (((eight & kLow7) + kLow7) | eight) >> 7 & kOnes;
    word |= (ones * kGather) >> 56 << 8 * i;  // the lowest byte is the first one: little endian
  }
  return word;
#endif
}

// Returns 64 bits: bit i is 1 if x[i] has one of `bits`.
template <class Word> uint64_t truths(const Word* x, Word bits) {
  if constexpr (sizeof(Word) == 1) return non_zero(x);
  uint8_t bytes[kWord];
  for (int i = 0; i < kWord; ++i) bytes[i] = (x[i] & bits) != 0;
  return non_zero(bytes);
}

// A position in an iteration space, and its offsets in the input and in the output.
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
  // `space`: strides of x and of the results. `results`: the number of results.
  Search(const Word* x, bool* out, int64_t results, Word bits, const IterationSpace<2>& space)
      : x_(x), end_(x + 1), out_(out), results_(results), bits_(bits), space_(space) {
    for (int d = 0; d < space.sizes.rank(); ++d) end_ += (space.sizes[d] - 1) * space.strides[0][d];
    const int inner = space.sizes.rank() - 1;
    step_ = space.strides[0][inner];
    // Reads whole words of hits, unless these would touch many cache lines that hold no elements of the tensor.
    const int64_t span = (space.sizes[inner] - 1) * step_ + 1;
    const int64_t gap = inner > 0 ? space.strides[0][inner - 1] - span : 0, waste = std::min(kWord - span, gap);
    dense_ = step_ <= kLine && waste <= std::max(kLine, span);
    per_word_ = dense_ && step_ > 0 ? (kWord - 1) / step_ + 1 : kWord;
    for (int64_t i = 0; i < per_word_; ++i) {
      mask_ |= uint64_t{1} << position(i);
      last_mask_ |= uint64_t{1} << (kWord - 1 - position(i));
    }
  }

  void run() const {
    const int inner = space_.sizes.rank() - 1;
    const Dims &sizes = space_.sizes, &of_x = space_.strides[0], &of_out = space_.strides[1];
    if (inner == 1 && of_out[0] != 0 && of_out[1] == 0 && sizes[1] <= kPiece) return rows();
    // Sets all results to the value without a hit.
    parallel_for(results_, kElementwiseGrain,
                 [&](int64_t begin, int64_t end) { std::fill(out_ + begin, out_ + end, !kAny); });
    // Several short lines with the same result are searched together, by columns().
    const bool short_lines = inner > 0 && of_out[inner - 1] == 0 && together(sizes[inner - 1], of_x[inner - 1]) > 1;
    if (of_out[inner] != 0 || short_lines) columns();
    else lines();
  }

 private:
  static constexpr int64_t kLine = 64 / sizeof(Word);  // elements in a cache line
  static constexpr int64_t kPiece = 1 << 16;           // elements of a line that one task searches
  static constexpr int64_t kBlock = 1 << 12;           // elements between two checks for a hit

  typedef uint64_t Lanes __attribute__((vector_size(64)));

  // Atomic, because several threads may write the same value at once.
  void note(int64_t at) const { std::atomic_ref<bool>(out_[at]).store(kAny, std::memory_order_relaxed); }
  bool known(int64_t at) const { return std::atomic_ref<bool>(out_[at]).load(std::memory_order_relaxed) == kAny; }

  // ---- Note [Words of hits]

  // Returns the hits of x[0], ..., x[63]. Bits after the end of the tensor are unspecified.
  uint64_t hits(const Word* x) const {
    if (end_ - x < kWord) return hits_of_end(x);
    return kAny ? truths(x, bits_) : ~truths(x, bits_);
  }
  [[gnu::noinline]] uint64_t hits_of_end(const Word* x) const {
    Word copy[kWord] = {};
    std::memcpy(copy, x, static_cast<size_t>(end_ - x) * sizeof(Word));
    return kAny ? truths(copy, bits_) : ~truths(copy, bits_);
  }
  // Returns the hits of n <= 64 elements of the innermost dimension that are too far apart for hits().
  [[gnu::noinline]] uint64_t gathered_hits(const Word* x, int64_t n) const {
    uint64_t word = 0;
    for (int64_t i = 0; i < n; ++i) word |= uint64_t{((x[i * step_] & bits_) != 0) == kAny} << i;
    return word;
  }
  // Returns the number of the bit that stands for element i of the innermost dimension.
  int64_t position(int64_t i) const { return dense_ ? i * step_ : i; }

  // True if one of n elements of the innermost dimension is a hit.
  bool any_hit(const Word* x, int64_t n) const {
    for (; n > kBlock; n -= kBlock, x += kBlock * step_)
      if (any_hit_of_block(x, kBlock)) return true;
    return any_hit_of_block(x, n);
  }
  bool any_hit_of_block(const Word* x, int64_t n) const {
    if (!dense_) {
      uint64_t found = 0;
      for (int64_t i = 0; i < n; i += kWord) found |= gathered_hits(x + i * step_, std::min(kWord, n - i));
      return found != 0;
    }
    const int64_t span = (n - 1) * step_ + 1;
    return span < kWord ? (hits(x) & mask_ & lowest_bits(span)) != 0 : any_hit_of_words(x, span);
  }
  // Like any_hit(), for `span` >= 64 adjacent elements. The last word overlaps the one before it.
  bool any_hit_of_words(const Word* x, int64_t span) const {
    const int64_t advance = per_word_ * step_;
    uint64_t found = 0;
    for (int64_t at = 0; at + kWord < span; at += advance) found |= hits(x + at);
    return ((found & mask_) | (hits(x + span - kWord) & last_mask_)) != 0;
  }

  // ---- Layouts

  // Searches lines along the last dimension, which is reduced, in pieces.
  void lines() const {
    const int inner = space_.sizes.rank() - 1;
    const int64_t n = space_.sizes[inner], pieces = (n + kPiece - 1) / kPiece;
    const int64_t all_lines = space_.sizes.numel() / n;
    parallel_for(all_lines * pieces, std::max<int64_t>(1, kElementwiseGrain / std::min(n, kPiece)),
                 [&](int64_t begin, int64_t end) {
                   Odometer line(space_, inner, begin / pieces);
                   for (int64_t k = begin, piece = begin % pieces; k < end; ++k) {
                     const int64_t first = piece * kPiece;
                     if (!known(line.out) && any_hit(x_ + line.in + first * step_, std::min(kPiece, n - first)))
                       note(line.out);
                     if (++piece == pieces) piece = 0, line.next();
                   }
                 });
  }

  // Searches rows that have one result each.
  void rows() const {
    const int64_t n = space_.sizes[1], pitch = space_.strides[0][0];
    parallel_for(space_.sizes[0], std::max<int64_t>(1, kElementwiseGrain / n), [&](int64_t begin, int64_t end) {
      const int64_t span = (n - 1) * step_ + 1;
      if (dense_ && span <= kWord) return short_rows(begin, end);
      if (dense_ && n <= kBlock)
        for (int64_t r = begin; r < end; ++r) out_[r] = any_hit_of_words(x_ + r * pitch, span) == kAny;
      else
        for (int64_t r = begin; r < end; ++r) out_[r] = any_hit(x_ + r * pitch, n) == kAny;
    });
  }
  // Searches rows that fit into a word of hits. A word contains one or more rows.
  void short_rows(int64_t begin, int64_t end) const {
    typedef int8_t Bytes __attribute__((vector_size(8)));
    const int64_t pitch = space_.strides[0][0], span = position(space_.sizes[1] - 1) + 1;
    const uint64_t row = mask_ & lowest_bits(span);
    if (pitch <= 8) return tiny_rows(begin, end, pitch, span, row);
    const int64_t rows_of_word = (kWord - span) / pitch + 1;  // at most 7
    int64_t first = begin;
    if (rows_of_word > 1) {
      Lanes shifts;
      for (int64_t r = 0; r < 8; ++r) shifts[r] = static_cast<uint64_t>(r * pitch) % kWord;
      for (; first + 8 <= end; first += rows_of_word) {
        const Lanes eight = (Lanes{} + hits(x_ + first * pitch)) >> shifts & row;
        const Bytes values = __builtin_convertvector((kAny ? eight != 0 : eight == 0) & 1, Bytes);
        std::memcpy(out_ + first, &values, 8);  // the next words overwrite results of rows that are not in this word
      }
    }
    for (; first < end; ++first) out_[first] = ((hits(x_ + first * pitch) & row) != 0) == kAny;
  }
  // Searches rows that are at most 8 elements apart: the hits of 8 rows fill `pitch` bytes, and are spread to one byte
  // for each row.
  void tiny_rows(int64_t begin, int64_t end, int64_t pitch, int64_t span, uint64_t row) const {
    typedef uint8_t Bytes __attribute__((vector_size(64)));
    const int64_t at_once = kBlock / pitch / 64 * 64;
    const uint64_t first4 = lowest_bits(4 * pitch), first2 = lowest_bits(2 * pitch) * 0x0000000100000001,
                   first1 = lowest_bits(pitch) * 0x0001000100010001, all8 = row * 0x0101010101010101;
    uint64_t words[kBlock / kWord + 1] = {};
    bool last_values[kBlock];
    for (int64_t first = begin; first < end; first += at_once) {
      const int64_t rows = std::min(at_once, end - first);
      for (int64_t w = 0; w * kWord < (rows - 1) * pitch + span; ++w) words[w] = hits(x_ + first * pitch + w * kWord);
      const char* bytes = reinterpret_cast<const char*>(words);
      const auto next = [&] {  // the hits of the next 8 rows
        uint64_t word;
        std::memcpy(&word, bytes, 8);
        bytes += pitch;
        return word;
      };
      bool* out = rows == at_once ? out_ + first : last_values;
      for (int64_t r = 0; r < rows; r += 64) {
        Lanes lanes = {next(), next(), next(), next(), next(), next(), next(), next()};
        // The second half of the rows moves to the second half of the word, and so on. `all8` removes all other bits.
        lanes = (lanes & first4) | ((lanes << (32 - 4 * pitch)) & ~first4);
        lanes = (lanes & first2) | ((lanes << (16 - 2 * pitch)) & ~first2);
        lanes = ((lanes & first1) | ((lanes << (8 - pitch)) & ~first1)) & all8;
        const Bytes found = reinterpret_cast<Bytes>(lanes);
        const auto values = (kAny ? found != 0 : found == 0) & 1;
        std::memcpy(out + r, &values, 64);
      }
      if (rows < at_once) std::memcpy(out_ + first, last_values, static_cast<size_t>(rows));
    }
  }

  // Returns how many of `rows` rows are searched together as one long row, because a short row would not fill the words
  // that are compared. `pitch`: elements from the start of a row to that of the next.
  int64_t together(int64_t rows, int64_t pitch) const {
    constexpr int64_t kLong = 1 << 10;
    const int64_t gap = pitch - ((space_.sizes.back() - 1) * step_ + 1);
    const bool all_needed = dense_ && gap >= 0 && gap <= kLine;
    return all_needed ? std::clamp<int64_t>(kLong / pitch, 1, rows) : 1;
  }

  // Searches rows along the last dimension if it is kept, or if lines are short. The rows are counted by the last
  // reduced dimension; their hits are ORed.
  void columns() const {
    constexpr int64_t kWords = 64, kElements = 1 << 18;  // limits: words per row, elements per block
    const int inner = space_.sizes.rank() - 1;
    const int64_t cols = space_.sizes[inner], out_step = space_.strides[1][inner];
    // Removes the dimension that counts the rows from the outer dimensions.
    IterationSpace<2> outer = space_;
    int reduced = inner - 1;
    while (reduced >= 0 && outer.strides[1][reduced] != 0) --reduced;
    int64_t rows = 1, pitch = 0;
    if (reduced >= 0) {
      rows = outer.sizes[reduced];
      pitch = outer.strides[0][reduced];
      outer.sizes[reduced] = 1;
    }
    const int64_t joined = pitch > 0 ? together(rows, pitch) : 1, groups = (rows + joined - 1) / joined;
    const int64_t width = std::min(cols, kWords * kWord / (dense_ ? std::max<int64_t>(1, step_) : 1));
    const int64_t strips = (cols + width - 1) / width;
    const int64_t height = std::max<int64_t>(1, kElements / (width * joined)), blocks = (groups + height - 1) / height;
    int64_t others = 1;
    for (int d = 0; d < inner; ++d) others *= outer.sizes[d];
    const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / (width * joined * std::min(groups, height)));
    parallel_for(others * blocks * strips, grain, [&](int64_t begin, int64_t end) {
      Odometer at(outer, inner, begin / (blocks * strips));
      for (int64_t k = begin; k < end; ++k) {
        if (k != begin && k % (blocks * strips) == 0) at.next();
        const int64_t strip = k % strips, block = k / strips % blocks;
        const int64_t first = strip * width, n = std::min(width, cols - first), out = at.out + first * out_step;
        int64_t open = 0;
        while (open < n && known(out + open * out_step)) ++open;
        if (open == n) continue;
        const int64_t positions = (joined - 1) * pitch + position(n - 1) + 1, words = (positions + kWord - 1) / kWord;
        uint64_t found[kWords] = {};
        for (int64_t g = block * height; g < std::min(groups, (block + 1) * height); ++g) {
          const Word* x = x_ + at.in + first * step_ + std::min(g * joined, rows - joined) * pitch;
          if (dense_)
            for (int64_t w = 0; w < words; ++w) found[w] |= hits(x + w * kWord);
          else
            for (int64_t c = 0; c < n; c += kWord)
              found[c / kWord] |= gathered_hits(x + c * step_, std::min(kWord, n - c));
        }
        if (std::all_of(found, found + words, [](uint64_t word) { return word == 0; })) continue;
        for (int64_t r = 0; r < joined; ++r)
          for (int64_t c = 0; c < n; ++c) {
            const int64_t at_bit = r * pitch + position(c);
            if (found[at_bit / kWord] >> at_bit % kWord & 1) note(out + c * out_step);
          }
      }
    });
  }

  const Word *x_, *end_;  // end_: after the last element
  bool* out_;
  int64_t results_;
  Word bits_;
  const IterationSpace<2>& space_;
  // These members describe the innermost dimension:
  int64_t step_;
  bool dense_;                         // adjacent elements in memory are read as words
  int64_t per_word_;                   // the number of elements whose bits one word holds
  uint64_t mask_ = 0, last_mask_ = 0;  // the bits of these elements, from the lowest bit up and from the highest down
};

// Returns the dimensions in the order of the input's memory, with strides of the input and of the output (0 if
// reduced).
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
    if ((mask >> d & 1) != 0 && x.strides()[d] == 0) continue;  // a broadcast dimension repeats the same elements
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
