// Our declarations of a C library agree with its header, which is checked when a test is compiled:
//
//   using Types = test::Types<test::Same<CUresult, Result>, test::Same<CUstream, StreamPtr>>;
//   RONDO_CUDA_DRIVER(CHECK_SIGNATURE)                     // of each function, in the words of Types
//   CHECK_VALUE(Result::kSuccess, CUDA_SUCCESS);
#pragma once

#include <type_traits>

namespace rondo::test {

template <class T> struct Tag { using Type = T; };

// Our name of a type. Means: of one that has grown since. Same: of one that is laid out alike.
template <class Theirs, class Ours> struct Means { static Tag<Ours> ours(Tag<Theirs>); };
template <class Theirs, class Ours> struct Same : Means<Theirs, Ours> {
  static_assert(sizeof(Theirs) == sizeof(Ours) && alignof(Theirs) == alignof(Ours));
};

// The types of a library. ours(): the same type in our words, as a Tag.
template <class... Pairs> struct Types : Pairs... {
  using Pairs::ours...;
  template <class T> static auto ours(Tag<T>) { return Tag<T>(); }
  template <class T> static auto ours(Tag<const T>) { return Tag<const Ours<T>>(); }
  template <class T> static auto ours(Tag<T*>) { return Tag<Ours<T>*>(); }
  template <class R, class... A> static auto ours(Tag<R(A...)>) { return Tag<Ours<R>(Ours<A>...)>(); }
  template <class T> using Ours = typename decltype(ours(Tag<T>()))::Type;
};

}  // namespace rondo::test

#define CHECK_SIGNATURE(member, symbol, ...) \
  static_assert(std::is_same_v<Types::Ours<decltype(symbol)>, __VA_ARGS__>, #symbol);
#define CHECK_VALUE(ours, theirs) static_assert(static_cast<int>(ours) == static_cast<int>(theirs), #theirs)
