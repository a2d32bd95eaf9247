// oneDNN's C functions and C++ classes. The program is not linked with the library: the first call of library() opens
// it with dlopen().
//
//   library().dnnl_sgemm(...)    // throws LibraryError if the library cannot be opened
//
// oneDNN's own C++ header consists of inline functions that call C functions. It is included at the end of this file,
// so that these inline functions call the functions of library(). Thread safe.
#pragma once

#include "oneapi/dnnl/dnnl.h"
#include "oneapi/dnnl/dnnl_debug.h"

#ifndef RONDO_DNNL_SPARSE  // otherwise Library would have other members here than in other files
#error "What includes this links rondo::onednn_headers (cmake/onednn.cmake)."
#endif

// The functions that oneDNN's header or Rondo calls. A call of any other function does not link.
#define RONDO_ONEDNN_FUNCTIONS(F)            \
  F(dnnl_engine_create)                      \
  F(dnnl_engine_destroy)                     \
  F(dnnl_get_effective_cpu_isa)              \
  F(dnnl_memory_create)                      \
  F(dnnl_memory_desc_equal)                  \
  F(dnnl_memory_desc_get_size)               \
  F(dnnl_memory_destroy)                     \
  F(dnnl_post_ops_append_binary)             \
  F(dnnl_post_ops_append_eltwise)            \
  F(dnnl_post_ops_append_sum)                \
  F(dnnl_post_ops_create)                    \
  F(dnnl_post_ops_destroy)                   \
  F(dnnl_post_ops_len)                       \
  F(dnnl_primitive_attr_create)              \
  F(dnnl_primitive_attr_destroy)             \
  F(dnnl_primitive_attr_set_post_ops)        \
  F(dnnl_primitive_attr_set_scratchpad_mode) \
  F(dnnl_primitive_create)                   \
  F(dnnl_primitive_desc_destroy)             \
  F(dnnl_primitive_desc_query)               \
  F(dnnl_primitive_desc_query_md)            \
  F(dnnl_primitive_destroy)                  \
  F(dnnl_primitive_execute)                  \
  F(dnnl_reorder_primitive_desc_create)      \
  F(dnnl_set_primitive_cache_capacity)       \
  F(dnnl_sgemm)                              \
  F(dnnl_status2str)                         \
  F(dnnl_stream_create)                      \
  F(dnnl_stream_destroy)                     \
  F(dnnl_version)

#if DNNL_VERSION_MAJOR == 2
#define RONDO_ONEDNN_FUNCTIONS_OF_VERSION(F)             \
  F(dnnl_dilated_convolution_backward_data_desc_init)    \
  F(dnnl_dilated_convolution_backward_weights_desc_init) \
  F(dnnl_dilated_convolution_forward_desc_init)          \
  F(dnnl_matmul_desc_init)                               \
  F(dnnl_memory_desc_init_by_strides)                    \
  F(dnnl_memory_desc_init_by_tag)                        \
  F(dnnl_memory_desc_init_submemory)                     \
  F(dnnl_memory_set_data_handle_v2)                      \
  F(dnnl_primitive_desc_iterator_create)                 \
  F(dnnl_primitive_desc_iterator_destroy)                \
  F(dnnl_primitive_desc_iterator_fetch)                  \
  F(dnnl_primitive_desc_iterator_next)
#else
// Later versions have these functions; earlier ones only if they were built with ONEDNN_EXPERIMENTAL_SPARSE.
#if RONDO_DNNL_SPARSE
#define RONDO_ONEDNN_FUNCTIONS_OF_SPARSE_MEMORY(F) \
  F(dnnl_memory_create_v2)                         \
  F(dnnl_memory_desc_get_size_v2)                  \
  F(dnnl_memory_desc_query_v2)                     \
  F(dnnl_memory_set_data_handle_v2)
#else
#define RONDO_ONEDNN_FUNCTIONS_OF_SPARSE_MEMORY(F)
#endif
#define RONDO_ONEDNN_FUNCTIONS_OF_VERSION(F)                 \
  RONDO_ONEDNN_FUNCTIONS_OF_SPARSE_MEMORY(F)                 \
  F(dnnl_convolution_backward_data_primitive_desc_create)    \
  F(dnnl_convolution_backward_weights_primitive_desc_create) \
  F(dnnl_convolution_forward_primitive_desc_create)          \
  F(dnnl_matmul_primitive_desc_create)                       \
  F(dnnl_memory_desc_clone)                                  \
  F(dnnl_memory_desc_create_submemory)                       \
  F(dnnl_memory_desc_create_with_strides)                    \
  F(dnnl_memory_desc_create_with_tag)                        \
  F(dnnl_memory_desc_destroy)                                \
  F(dnnl_memory_desc_query)                                  \
  F(dnnl_memory_set_data_handle)                             \
  F(dnnl_primitive_desc_next_impl)
#endif

namespace rondo::cpu {

struct Library {
#define RONDO_ONEDNN_MEMBER(name) decltype(&::name) name;
  RONDO_ONEDNN_FUNCTIONS(RONDO_ONEDNN_MEMBER)
  RONDO_ONEDNN_FUNCTIONS_OF_VERSION(RONDO_ONEDNN_MEMBER)
#undef RONDO_ONEDNN_MEMBER
  // Functions of the OpenMP runtime that the library uses; null if the library was built without OpenMP.
  int (*omp_get_max_threads)();
  void (*omp_set_num_threads)(int);
};

// Opens the library on the first call. Throws LibraryError, which says what to install, if there is no library, if it
// has another major version or one before 2.6, or if it lacks a function. After an error, the next call tries again.
const Library& library();

// The file of the library; cmake/onednn.cmake generates its definition.
struct LibraryFile {
  const char* name;       // "libdnnl.so.2"
  const char* path;       // its path if the dynamic linker may not find the name, else ""
  const char* needs[16];  // other libraries that it needs; ends with a null
};
extern const LibraryFile kLibraryFile;

// A callable object that calls one function of the table.
template <auto kMember> struct LibraryFunction;
template <class Result, class... Arguments, Result (*Library::*kMember)(Arguments...)> struct LibraryFunction<kMember> {
  Result operator()(Arguments... arguments) const { return (library().*kMember)(arguments...); }
};

}  // namespace rondo::cpu

// oneDNN's C++ classes are in this namespace instead of `dnnl`, because a program may use another version of them. In
// this namespace, names of C functions find the callable objects below.
namespace rondo_dnnl {
#define RONDO_ONEDNN_FUNCTION(name) inline constexpr rondo::cpu::LibraryFunction<&rondo::cpu::Library::name> name;
RONDO_ONEDNN_FUNCTIONS(RONDO_ONEDNN_FUNCTION)
RONDO_ONEDNN_FUNCTIONS_OF_VERSION(RONDO_ONEDNN_FUNCTION)
#undef RONDO_ONEDNN_FUNCTION
}  // namespace rondo_dnnl

#define dnnl rondo_dnnl
#include "oneapi/dnnl/dnnl.hpp"
#undef dnnl
