// Source text that both directions of fused attention share (fused_attention.cc): the product of a warp, tiles in
// shared memory, and a call's columns, keys and dropped weights.
#pragma once

namespace rondo::cuda {

// Source text of a product on tensor cores. mma_by_shuffles() computes the same product without tensor cores, for tests
// on the host.
inline constexpr const char* kWarpProduct = R"cuda(
template <class E> RONDO_DEVICE float element_of(unsigned long long pairs, int which) {
  E element;
  element.bits = static_cast<unsigned short>(pairs >> 16 * which);
  return to_float(element);
}
template <class E> RONDO_DEVICE void mma_by_shuffles(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  const int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, t = lane % 4;
  const unsigned long long upper = a[0] | static_cast<unsigned long long>(a[2]) << 32,
                           lower = a[1] | static_cast<unsigned long long>(a[3]) << 32,
                           right = b[0] | static_cast<unsigned long long>(b[1]) << 32;
  for (int i = 0; i < 4; ++i) {
    const unsigned long long up = __shfl_sync(0xFFFFFFFFu, upper, 4 * g + i),
                             low = __shfl_sync(0xFFFFFFFFu, lower, 4 * g + i),
                             first = __shfl_sync(0xFFFFFFFFu, right, 8 * t + i),
                             second = __shfl_sync(0xFFFFFFFFu, right, 8 * t + 4 + i);
    for (int k = 0; k < 4; ++k) {
      sums[0] = fma_of(element_of<E>(up, k), element_of<E>(first, k), sums[0]);
      sums[1] = fma_of(element_of<E>(up, k), element_of<E>(second, k), sums[1]);
      sums[2] = fma_of(element_of<E>(low, k), element_of<E>(first, k), sums[2]);
      sums[3] = fma_of(element_of<E>(low, k), element_of<E>(second, k), sums[3]);
    }
  }
}
// sums (16, 8) += a (16, 16) b (16, 8), by a whole warp (PTX ISA, "mma.m16n8k16"). Lane 4 g + t holds
// sums: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1); a, in pairs of columns from 2t: rows g, g + 8, and both
// again 8 columns on; b, in pairs of rows from 2t: column g, and again 8 rows on.
#ifdef __CUDA_ARCH__
#define RONDO_MMA(E, name)                                                                                             \
  RONDO_DEVICE void mma_16x8x16(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], E) {                 \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "    \
                 "{%8, %9}, {%0, %1, %2, %3};"                                                                         \
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                  \
  }
#else
#define RONDO_MMA(E, name)                                                                             \
  RONDO_DEVICE void mma_16x8x16(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2], E) { \
    mma_by_shuffles<E>(sums, a, b);                                                                    \
  }
#endif
RONDO_MMA(rondo_bf16, "bf16")
RONDO_MMA(rondo_f16, "f16")
)cuda";

// A source must contain CallArgument and TileHeadsArgument before this text.
inline constexpr const char* kAttentionTiles = R"cuda(
using C = typename RondoCompute<T>::Type;
constexpr int kVector = 16 / sizeof(T);       // elements of an access of 16 bytes
constexpr int kStride = HEAD_DIM + kVector;   // of a tile's rows: neighbours begin in other banks
constexpr int kAcross = ROWS + kVector;       // of the rows of a tile of weights
constexpr int kWarpRows = 16, kColumns = 8;   // of a warp's products
constexpr int kScores = ROWS / kColumns, kOutputs = HEAD_DIM / kColumns;
using Vector = Pack<T, kVector>;

RONDO_DEVICE C lowest() { return static_cast<C>(__longlong_as_double(0xFFF0000000000000ull)); }

using Heads = TileHeadsArgument;
using Call = CallArgument;

RONDO_DEVICE long long least(long long a, long long b) { return b < a ? b : a; }
struct Least {
  static RONDO_DEVICE long long combine(long long a, long long b) { return least(a, b); }
};

// ---- Tiles in shared memory

struct EveryRow {
  RONDO_DEVICE bool operator()(int) const { return true; }
};
// `exist` rows of a tile of ROWS, if wanted(row); the others are 0.
template <class Wanted = EveryRow>
RONDO_DEVICE void load_rows(T* to, const T* from, long long stride, long long exist, int head_dim,
                            Wanted wanted = Wanted()) {
  constexpr int kVectors = HEAD_DIM / kVector;
  for (int i = static_cast<int>(threadIdx.x); i < ROWS * kVectors; i += static_cast<int>(blockDim.x)) {
    const int row = i / kVectors, d = i % kVectors * kVector;
    Vector vector = {};
    if (row < exist && d < head_dim && wanted(row))
      vector = load<kVector>(from + row * stride + d, head_dim - d < kVector ? head_dim - d : kVector);
    put(*reinterpret_cast<Vector*>(to + row * kStride + d), vector);
  }
}
// The rows of a warp, which only its threads have written.
RONDO_DEVICE void store_rows(T* to, const T* from, long long stride, long long exist, int head_dim) {
  constexpr int kVectors = HEAD_DIM / kVector;
  for (int i = static_cast<int>(threadIdx.x % 32); i < kWarpRows * kVectors; i += 32) {
    const int row = i / kVectors, d = i % kVectors * kVector;
    if (row < exist && d < head_dim)
      store<kVector>(to + row * stride + d, get(*reinterpret_cast<const Vector*>(from + row * kStride + d)),
                     head_dim - d < kVector ? head_dim - d : kVector);
  }
}
// For each row of a tile: the sum of products with a row of global memory; and the row's number of `from`.
RONDO_DEVICE void row_facts(C* dots, C* numbers, const T* tile, const T* rows, long long stride, const C* from,
                            long long exist, int head_dim) {
  constexpr int kGroup = 8;
  const int lane = static_cast<int>(threadIdx.x) % kGroup;
  for (int row = static_cast<int>(threadIdx.x) / kGroup; row < ROWS; row += static_cast<int>(blockDim.x) / kGroup) {
    C sum = 0;
    if (row < exist)
      for (int d = lane * kVector; d < head_dim; d += kGroup * kVector) {
        const Vector a = load<kVector>(rows + row * stride + d, head_dim - d < kVector ? head_dim - d : kVector),
                     b = get(*reinterpret_cast<const Vector*>(tile + row * kStride + d));
#pragma unroll
        for (int e = 0; e < kVector; ++e) sum = fma_of(widen(a.at[e]), widen(b.at[e]), sum);
      }
    sum = warp_reduce<Sum, kGroup>(sum);
    if (lane != 0) continue;
    put(dots[row], sum);
    put(numbers[row], row < exist ? read(from + row) : lowest());
  }
}

// ---- Products of a warp: sums (16, 8 kTiles) += a (16, kDepth) b (kDepth, 8 kTiles)
// A thread's sums are those of mma_16x8x16. `a`: the warp's first row; its columns are dense. kAlong: b's element
// (k, n) is at b[n * stride + k], otherwise at b[k * stride + n].
RONDO_DEVICE int group_of_lane() { return static_cast<int>(threadIdx.x % 32) / 4; }
RONDO_DEVICE int place_in_group() { return static_cast<int>(threadIdx.x % 4); }

template <class E> RONDO_DEVICE unsigned pair(const E* at) { return get(*reinterpret_cast<const unsigned*>(at)); }
template <class E> RONDO_DEVICE unsigned pair(E first, E second) {
  return static_cast<unsigned>(first.bits) | static_cast<unsigned>(second.bits) << 16;
}
template <int kTiles, int kDepth, bool kAlong, class E>
RONDO_DEVICE void product(C (&sums)[kTiles][4], const E* a, int a_stride, const E* b, int b_stride) {
  const int g = group_of_lane(), t = place_in_group();
  if constexpr (sizeof(E) == 2) {
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      const E *const row = a + g * a_stride + k + 2 * t, *const lower = row + 8 * a_stride;
      const unsigned left[4] = {pair(row), pair(lower), pair(row + 8), pair(lower + 8)};
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        unsigned right[2];
        if constexpr (kAlong) {
          const E* const at = b + (kColumns * n + g) * b_stride + k + 2 * t;
          right[0] = pair(at);
          right[1] = pair(at + 8);
        } else {
          const E* const at = b + (k + 2 * t) * b_stride + kColumns * n + g;
          right[0] = pair(get(at[0]), get(at[b_stride]));
          right[1] = pair(get(at[8 * b_stride]), get(at[9 * b_stride]));
        }
        mma_16x8x16(sums[n], left, right, E());
      }
    }
  } else {
#pragma unroll 4
    for (int k = 0; k < kDepth; ++k) {
      const C upper = get(a[g * a_stride + k]), lower = get(a[(g + 8) * a_stride + k]);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const int column = kColumns * n + 2 * t;
        const C first = get(kAlong ? b[column * b_stride + k] : b[k * b_stride + column]),
                second = get(kAlong ? b[(column + 1) * b_stride + k] : b[k * b_stride + column + 1]);
        sums[n][0] = fma_of(upper, first, sums[n][0]);
        sums[n][1] = fma_of(upper, second, sums[n][1]);
        sums[n][2] = fma_of(lower, first, sums[n][2]);
        sums[n][3] = fma_of(lower, second, sums[n][3]);
      }
    }
  }
}
// Where a thread's sum e of tile n stands.
RONDO_DEVICE int row_of(int e) { return group_of_lane() + e / 2 * 8; }
RONDO_DEVICE int column_of(int n, int e) { return kColumns * n + 2 * place_in_group() + e % 2; }

// A warp's sums as elements of its rows of a tile; its other lanes may read them then.
template <int kTiles> RONDO_DEVICE void put_rows(T* to, int stride, const C (&sums)[kTiles][4]) {
  __syncwarp();
#pragma unroll
  for (int n = 0; n < kTiles; ++n)
#pragma unroll
    for (int e = 0; e < 4; ++e) put(to[row_of(e) * stride + column_of(n, e)], convert<T>(sums[n][e]));
  __syncwarp();
}
// Over the four lanes that hold a row.
template <class Op> RONDO_DEVICE C row_reduce(C value) {
  value = Op::combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, 1));
  return Op::combine(value, __shfl_xor_sync(0xFFFFFFFFu, value, 2));
}

// The columns that a row of a tile of scores may use: those that exist and that a causal call allows.
struct Columns {
  int begin, end;
};
RONDO_DEVICE int in_tile(long long at) { return static_cast<int>(at < 0 ? 0 : at < ROWS ? at : ROWS); }
RONDO_DEVICE Columns keys_of(const Call& call, long long query, long long first_key) {
  if (query >= call.queries) return {0, 0};
  return {0, in_tile((call.causal != 0 && query + 1 < call.keys ? query + 1 : call.keys) - first_key)};
}
RONDO_DEVICE Columns queries_of(const Call& call, long long key, long long first_query) {
  if (key >= call.keys) return {0, 0};
  return {call.causal != 0 ? in_tile(key - first_query) : 0, in_tile(call.queries - first_query)};
}
// A score, scaled; the lowest where the query may not attend to the key. MASK: as AttentionMask.
RONDO_DEVICE C masked(const Call& call, const void* mask, const Columns& columns, int column, long long batch,
                      long long head, long long query, long long key, C score) {
  if (column < columns.begin || column >= columns.end) return lowest();
  score = score * static_cast<C>(call.scale);
#if MASK > 0
  const long long at = batch * call.mask_batch + head * call.mask_head + query * call.mask_row + key * call.mask_column;
#endif
#if MASK == 1
  if (!read(static_cast<const bool*>(mask) + at)) return lowest();
#elif MASK == 2
  if (key < read(static_cast<const long long*>(mask) + at)) return lowest();
#elif MASK == 3
  score = score + widen(read(static_cast<const T*>(mask) + at));
#elif MASK == 4
  const long long* const keys = static_cast<const long long*>(mask) + at;
  if (key < read(keys) || key >= read(keys + 1)) return lowest();
#endif
  return score;
}
// The keys before `end` that the tile of queries from `first` reads: Note [Keys that are not read]. All threads of a
// warp call it.
struct KeysRead {
  long long begin, end;
  const bool* allowed;  // of each key
  long long step;
};
RONDO_DEVICE KeysRead keys_read(const Call& call, const void* mask, long long batch, long long head, long long first,
                                long long end) {
  KeysRead keys = {0, end, nullptr, call.mask_column};
#if MASK == 1
  if (call.queries == 1 || call.mask_row == 0)
    keys.allowed = static_cast<const bool*>(mask) + batch * call.mask_batch + head * call.mask_head;
#elif MASK == 2 || MASK == 4
  const long long* const firsts = static_cast<const long long*>(mask) + batch * call.mask_batch + head * call.mask_head;
  keys.begin = end;
  long long before_end = 0;  // the greatest end, negative
  for (long long query = first + threadIdx.x % 32; query < call.queries && query < first + ROWS; query += 32) {
    keys.begin = Least::combine(keys.begin, read(firsts + query * call.mask_row));
    if (MASK == 4) before_end = Least::combine(before_end, -read(firsts + query * call.mask_row + 1));
  }
  keys.begin = warp_reduce<Least, 32>(keys.begin);
  if (keys.begin < 0) keys.begin = 0;
  if (MASK == 4) keys.end = least(end, -warp_reduce<Least, 32>(before_end));
#endif
  return keys;
}
// A tile of keys and values, from the key `first`.
RONDO_DEVICE void load_keys(T* keys, T* values, const T* k, const T* v, long long k_row, long long v_row,
                            const Call& call, long long first, const KeysRead& some) {
  const auto wanted = [&](int row) {
#if MASK == 1
    return some.allowed == nullptr || read(some.allowed + (first + row) * some.step);
#elif MASK == 2 || MASK == 4
    return first + row >= some.begin && first + row < some.end;
#else
    return true;
#endif
  };
  const int head_dim = static_cast<int>(call.head_dim);
  load_rows(keys, k + first * k_row, k_row, call.keys - first, head_dim, wanted);
  load_rows(values, v + first * v_row, v_row, call.keys - first, head_dim, wanted);
}

// ---- Dropout (DROPOUT: 1 if there is one): which of a thread's weights are kept

struct Kept {
  unsigned bits;  // of sum e of tile n at 4 n + e
  RONDO_DEVICE bool at(int n, int e) const { return DROPOUT == 0 || (bits >> (4 * n + e) & 1u) != 0; }
  // For all tiles n: what is at 4 n of `from` is that of sum e.
  RONDO_DEVICE void take(int e, unsigned from) { bits |= (from & 0x11111111u) << e; }
};
// A kept value, times the factor.
RONDO_DEVICE C raised(const Dropout& dropout, C value) {
  return DROPOUT == 0 ? value : value * static_cast<C>(dropout.factor);
}
// Rows of the tile are queries, columns are keys. `row`: the number of the first query among all queries of all heads.
// `key`: the first key. One draw covers four neighbouring keys of a row. Lanes t and t + 1 (t even) hold the same four
// keys of two rows, so each lane draws for one row, and they exchange the bits.
RONDO_DEVICE Kept kept_in_rows(const Dropout& dropout, long long row, long long key) {
  Kept kept = {};
  if (DROPOUT == 0) return kept;
  const int odd = place_in_group() % 2;
  unsigned mine = 0;
#pragma unroll 2  // all at once would take the registers of all
  for (int n = 0; n < kScores; ++n)
    mine |= dropout.kept(row + group_of_lane() + 8 * odd, key + kColumns * n + 4 * (place_in_group() / 2)) << 4 * n;
  const unsigned theirs = __shfl_xor_sync(0xFFFFFFFFu, mine, 1);
#pragma unroll
  for (int e = 0; e < 4; ++e) kept.take(e, (e / 2 == odd ? mine : theirs) >> (2 * odd + e % 2));
  return kept;
}
// The same if rows of the tile are keys, and columns are queries. Four lanes hold neighbouring keys of the same four
// queries, so each lane draws for one of the queries, and they exchange the bits.
RONDO_DEVICE Kept kept_in_columns(const Dropout& dropout, long long row, long long key) {
  Kept kept = {};
  if (DROPOUT == 0) return kept;
  const int lane = static_cast<int>(threadIdx.x % 32), own = group_of_lane() % 4;
  unsigned mine = 0;
#pragma unroll 2  // all at once would take the registers of all
  for (int n = 0; n < kScores; ++n)
    mine |= dropout.kept(row + column_of(n, own), key + group_of_lane() / 4 * 4 + own / 2 * 8) << 4 * n;
#pragma unroll
  for (int e = 0; e < 4; ++e) kept.take(e, __shfl_sync(0xFFFFFFFFu, mine, lane - 4 * own + 4 * e) >> own);
  return kept;
}

RONDO_DEVICE C exp_or_zero(C x) { return x == lowest() ? static_cast<C>(0) : rondo_exp(x); }
)cuda";

}  // namespace rondo::cuda
