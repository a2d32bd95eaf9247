// CUDA C++ for the host's compiler: included in front of kernels (-include), so that they run on the fibers of
// machine.h. Supplies what kernels of ours use: threadIdx and its kin, shared memory, barriers, shuffles, atomics, a
// few intrinsics. A file of kernels ends with CUDA_ON_HOST_KERNEL(name) for each of them. A file that holds the text of
// several modules sets CUDA_ON_HOST_PART for each: machine.h then fills and checks the shared memory of one of them.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

namespace cuda_on_host {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};
// The memory of an access: global memory, loaded or stored, or shared memory.
enum class Place : unsigned char { kLoaded, kStored, kShared };
// The part of the machine that its kernels see. The machine writes `thread` and `block` before it runs a thread.
struct View {
  Dim3 thread, block, block_dim, grid_dim;
  void (*sync_block)(int line) = nullptr;
  void (*sync_warp)(unsigned mask, int line) = nullptr;
  uint64_t (*shuffle)(unsigned mask, uint64_t value, int from_lane, int line) = nullptr;
  void (*misaligned)(const void* address, int bytes, int line) = nullptr;
  // Null unless accesses are counted. A wide access is one of at most 16 bytes, or several: `piece` is which.
  void (*count)(const void* address, int bytes, int piece, int line, Place place) = nullptr;
};
// The part of a file of kernels that the machine sees.
constexpr int kGuardBytes = 64;
struct SharedMemory {
  char *begin, *end;  // all shared variables, each behind a guard
  char *const *guards, *const *guards_end;
  const size_t *dynamic, *dynamic_end;  // bytes of each of them that a launch has to ask for
};
constexpr int kWarp = 32;

}  // namespace cuda_on_host

#ifdef CUDA_ON_HOST_KERNELS  // ---- Below: for files of kernels only

namespace cuda_on_host {

static const View* view;

inline int lane() { return static_cast<int>(view->thread.x % kWarp); }

template <class To, class From> inline To bit_copy(From from) {
  static_assert(sizeof(To) == sizeof(From), "another size");
  To to;
  __builtin_memcpy(&to, &from, sizeof(to));
  return to;
}

template <class T> inline T exchange(int line, unsigned mask, T value, int from_lane) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = view->shuffle(mask, bits, from_lane, line);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
// A lane that reads outside of its own segment of `width` lanes gets its own value.
template <class T> inline T shuffle(int line, unsigned mask, T value, int from, int width = kWarp) {
  return exchange(line, mask, value, (lane() & ~(width - 1)) | (from & (width - 1)));
}
template <class T> inline T shuffle_down(int line, unsigned mask, T value, unsigned delta, int width = kWarp) {
  const int from = (lane() & (width - 1)) + static_cast<int>(delta);
  return exchange(line, mask, value, from < width ? lane() + static_cast<int>(delta) : lane());
}
template <class T> inline T shuffle_up(int line, unsigned mask, T value, unsigned delta, int width = kWarp) {
  const int from = (lane() & (width - 1)) - static_cast<int>(delta);
  return exchange(line, mask, value, from >= 0 ? lane() - static_cast<int>(delta) : lane());
}
template <class T> inline T shuffle_xor(int line, unsigned mask, T value, int bits, int width = kWarp) {
  const int from = lane() ^ bits;
  return exchange(line, mask, value, from / width == lane() / width ? from : lane());
}

// device_math announces each access, before it.
inline void touch(const void* address, int bytes, int line, Place place) {
  const int one = bytes < 16 ? bytes : 16;
  if ((reinterpret_cast<size_t>(address) & static_cast<size_t>(one - 1)) != 0) view->misaligned(address, one, line);
  if (view->count == nullptr) return;
  for (int at = 0; at < bytes; at += one)
    view->count(static_cast<const char*>(address) + at, one, at / one, line, place);
}

// Calls a kernel with the values that `parameters` point to, as cuLaunchKernel does.
template <size_t... I> struct Indices {};
template <size_t N, size_t... I> struct CountTo : CountTo<N - 1, N - 1, I...> {};
template <size_t... I> struct CountTo<0, I...> { typedef Indices<I...> Type; };
template <class... T, size_t... I> inline void call(void (*kernel)(T...), void** parameters, Indices<I...>) {
  kernel(*static_cast<T*>(parameters[I])...);
}
template <class... T> inline void call(void (*kernel)(T...), void** parameters) {
  call(kernel, parameters, typename CountTo<sizeof...(T)>::Type());
}
// The number of a kernel's parameters, and their sizes in `bytes` (null: only the number).
template <class... T> inline size_t parameter_bytes(void (*)(T...), size_t* bytes) {
  const size_t all[] = {sizeof(T)..., 0};
  for (size_t i = 0; bytes != nullptr && i < sizeof...(T); ++i) bytes[i] = all[i];
  return sizeof...(T);
}

}  // namespace cuda_on_host

// ---- Shared memory is one section of the library. The machine fills it with NaN before each block and looks at the
// guards after it.
#define CUDA_ON_HOST_JOIN_(a, b) a##b
#define CUDA_ON_HOST_JOIN(a, b) CUDA_ON_HOST_JOIN_(a, b)
#ifndef CUDA_ON_HOST_PART
#define CUDA_ON_HOST_PART ""
#endif
#define CUDA_ON_HOST_ALIGNED(section_name, bytes) \
  static __attribute__((section(section_name CUDA_ON_HOST_PART), used, aligned(bytes)))
#define CUDA_ON_HOST_IN(section_name) CUDA_ON_HOST_ALIGNED(section_name, 8)
#define CUDA_ON_HOST_SHARED(n)                                                                         \
  CUDA_ON_HOST_IN("cuda_shared") char CUDA_ON_HOST_JOIN(guard_, n)[cuda_on_host::kGuardBytes];         \
  CUDA_ON_HOST_IN("cuda_guards") char* CUDA_ON_HOST_JOIN(guard_at_, n) = CUDA_ON_HOST_JOIN(guard_, n); \
  CUDA_ON_HOST_ALIGNED("cuda_shared", 16)
#define CUDA_ON_HOST_NEXT_SHARED(n) CUDA_ON_HOST_SHARED(n)
#define RONDO_DYNAMIC_SHARED(Element, name, count)    \
  __shared__ Element name[(count) > 0 ? (count) : 1]; \
  CUDA_ON_HOST_IN("cuda_dynamic")                     \
  const size_t CUDA_ON_HOST_JOIN(name, _bytes) = static_cast<size_t>(count) * sizeof(Element)
#define __shared__ CUDA_ON_HOST_NEXT_SHARED(__COUNTER__)
// A guard behind the last variable too, and both sections exist in every file.
CUDA_ON_HOST_IN("cuda_shared") char cuda_on_host_guard[cuda_on_host::kGuardBytes];
CUDA_ON_HOST_IN("cuda_guards") char* cuda_on_host_guard_at = cuda_on_host_guard;
extern "C" {
extern char __start_cuda_shared[], __stop_cuda_shared[];
extern char *__start_cuda_guards[], *__stop_cuda_guards[];
__attribute__((visibility("default"))) cuda_on_host::SharedMemory cuda_on_host_bind(const cuda_on_host::View* view) {
  cuda_on_host::view = view;
  return {__start_cuda_shared, __stop_cuda_shared, __start_cuda_guards, __stop_cuda_guards, nullptr, nullptr};
}
}
#define CUDA_ON_HOST_KERNEL(name)                                                          \
  extern "C" __attribute__((visibility("default"))) void name##__call(void** parameters) { \
    cuda_on_host::call(&name, parameters);                                                 \
  }                                                                                        \
  extern "C" __attribute__((visibility("default"))) size_t name##__bytes(size_t* bytes) {  \
    return cuda_on_host::parameter_bytes(&name, bytes);                                    \
  }
// The shared memory of a module that has some: `part` is its CUDA_ON_HOST_PART without the quotes.
#define CUDA_ON_HOST_MAYBE extern "C" __attribute__((weak, visibility("hidden")))
#define CUDA_ON_HOST_SHARED_OF(module, part)                                                        \
  extern "C" char __start_cuda_shared##part[], __stop_cuda_shared##part[];                          \
  extern "C" char *__start_cuda_guards##part[], *__stop_cuda_guards##part[];                        \
  CUDA_ON_HOST_MAYBE size_t __start_cuda_dynamic##part[], __stop_cuda_dynamic##part[];              \
  CUDA_ON_HOST_IN("cuda_shared") char cuda_on_host_last_guard[cuda_on_host::kGuardBytes];           \
  CUDA_ON_HOST_IN("cuda_guards") char* cuda_on_host_last_guard_at = cuda_on_host_last_guard;        \
  extern "C" __attribute__((visibility("default"))) cuda_on_host::SharedMemory module##__shared() { \
    return {__start_cuda_shared##part, __stop_cuda_shared##part,   __start_cuda_guards##part,       \
            __stop_cuda_guards##part,  __start_cuda_dynamic##part, __stop_cuda_dynamic##part};      \
  }

// ---- The language
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (cuda_on_host::view->thread)
#define blockIdx (cuda_on_host::view->block)
#define blockDim (cuda_on_host::view->block_dim)
#define gridDim (cuda_on_host::view->grid_dim)

#define RONDO_SITE , int line_of_access = __builtin_LINE()
#define RONDO_LOADED(address, bytes) cuda_on_host::touch(address, bytes, line_of_access, cuda_on_host::Place::kLoaded)
#define RONDO_STORED(address, bytes) cuda_on_host::touch(address, bytes, line_of_access, cuda_on_host::Place::kStored)
#define RONDO_SHARED(address, bytes) cuda_on_host::touch(address, bytes, line_of_access, cuda_on_host::Place::kShared)

#define __syncthreads() cuda_on_host::view->sync_block(__LINE__)
#define __syncwarp(...) cuda_on_host::view->sync_warp(0xFFFFFFFFu __VA_OPT__(&(__VA_ARGS__)), __LINE__)
#define __shfl_sync(...) cuda_on_host::shuffle(__LINE__, __VA_ARGS__)
#define __shfl_down_sync(...) cuda_on_host::shuffle_down(__LINE__, __VA_ARGS__)
#define __shfl_up_sync(...) cuda_on_host::shuffle_up(__LINE__, __VA_ARGS__)
#define __shfl_xor_sync(...) cuda_on_host::shuffle_xor(__LINE__, __VA_ARGS__)

inline float __uint_as_float(unsigned u) { return cuda_on_host::bit_copy<float>(u); }
inline unsigned __float_as_uint(float f) { return cuda_on_host::bit_copy<unsigned>(f); }
inline double __longlong_as_double(long long i) { return cuda_on_host::bit_copy<double>(i); }
inline long long __double_as_longlong(double d) { return cuda_on_host::bit_copy<long long>(d); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fsqrt_rn(float a) { return __builtin_sqrtf(a); }
inline double __dsqrt_rn(double a) { return __builtin_sqrt(a); }

inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>(static_cast<unsigned long long>(a) * b >> 32);
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz(static_cast<unsigned>(a)); }
inline int __ffs(int a) { return __builtin_ffs(a); }
template <class T> inline T __ldg(const T* from) { return *from; }

namespace cuda_on_host {
// Replaces *at by change(*at) at once, and returns what was there.
template <class T, class Change> inline T exchange_with(T* at, Change change) {
  T old;
  __atomic_load(at, &old, __ATOMIC_RELAXED);
  for (;;) {
    T changed = change(old);
    if (__atomic_compare_exchange(at, &old, &changed, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
  }
}
}  // namespace cuda_on_host
#define CUDA_ON_HOST_ADD(T)                                                                     \
  inline T atomicAdd(T* to, T value) {                                                          \
    return cuda_on_host::exchange_with(to, [=](T old) { return static_cast<T>(old + value); }); \
  }
#define CUDA_ON_HOST_ATOMICS(T)                                                                   \
  CUDA_ON_HOST_ADD(T)                                                                             \
  inline T atomicMin(T* at, T value) {                                                            \
    return cuda_on_host::exchange_with(at, [=](T old) { return value < old ? value : old; });     \
  }                                                                                               \
  inline T atomicMax(T* at, T value) {                                                            \
    return cuda_on_host::exchange_with(at, [=](T old) { return old < value ? value : old; });     \
  }                                                                                               \
  inline T atomicOr(T* at, T value) {                                                             \
    return cuda_on_host::exchange_with(at, [=](T old) { return static_cast<T>(old | value); });   \
  }                                                                                               \
  inline T atomicExch(T* at, T value) {                                                           \
    return cuda_on_host::exchange_with(at, [=](T) { return value; });                             \
  }                                                                                               \
  inline T atomicCAS(T* at, T expected, T value) {                                                \
    __atomic_compare_exchange_n(at, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED); \
    return expected;                                                                              \
  }
CUDA_ON_HOST_ADD(float)
CUDA_ON_HOST_ADD(double)
CUDA_ON_HOST_ATOMICS(int)
CUDA_ON_HOST_ATOMICS(unsigned)
CUDA_ON_HOST_ATOMICS(unsigned long long)
#endif
