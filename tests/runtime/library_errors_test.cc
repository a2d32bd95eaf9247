// Whichever call of oneDNN fails, from the first one on: what leaves is an error of Rondo's that names the op and the
// line, or the right result, where another kernel takes the place. The next call is right.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/base/within_memory.h"
#include "rondo/runtime/cpu/convolution_library.h"
#include "rondo/runtime/cpu/product.h"
#include "rondo/runtime/onednn/onednn_library.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bits.h"

namespace rondo {
namespace {

int calls = 0, fails_at = 0;
dnnl_status_t status_of_failure = dnnl_success;

// Puts a function that fails once in the place of one of the library's.
template <auto kMember> struct Failing {
  static void put(std::string_view) {}  // it returns no status
};
template <class... Arguments, dnnl_status_t (*cpu::Library::*kMember)(Arguments...)> struct Failing<kMember> {
  static inline dnnl_status_t (*function)(Arguments...) = nullptr;
  static dnnl_status_t call(Arguments... arguments) {
    return ++calls == fails_at ? status_of_failure : function(arguments...);
  }
  static void put(std::string_view name) {
    if (name.ends_with("_destroy")) return;
    auto& table = const_cast<cpu::Library&>(cpu::library());
    function = table.*kMember;
    table.*kMember = &call;
  }
};
void put_failures() {
#define RONDO_PUT(name) Failing<&cpu::Library::name>::put(#name);
  RONDO_ONEDNN_FUNCTIONS(RONDO_PUT)
  RONDO_ONEDNN_FUNCTIONS_OF_VERSION(RONDO_PUT)
#undef RONDO_PUT
}

// Products and convolutions whose sums are exact.
std::vector<Tensor> results(DType dtype) {
  const auto numbers = [&](const Dims& sizes) {
    std::vector<double> values(static_cast<size_t>(sizes.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * 7 % 3) - 1;
    return Tensor::from(values, sizes, dtype).requires_grad_();
  };
  const Tensor image = numbers({2, 3, 9, 8}), weight = numbers({24, 3, 3, 3}), left = numbers({30, 20}),
               right = numbers({20, 40});
  const Tensor multiplied = ops::matmul(left, right), convolved = ops::conv2d(image, weight, {}, {.padding = {1, 1}});
  convolved.backward(Tensor::full(convolved.sizes(), 1, dtype));
  return {multiplied.detach(), convolved.detach(), image.grad(), weight.grad()};
}

// Null: all is as it should be.
const char* run_once(const std::vector<Tensor>& wanted) {
  cpu::Product::trim();
  cpu::LibraryConvolution::trim();
  calls = 0;
  const auto has_failed = [] { return fails_at != 0 && calls >= fails_at; };
  for (const DType dtype : {kF32, kBF16}) try {
      const std::vector<Tensor> got = results(dtype);
      for (size_t i = 0; i < got.size(); ++i)
        if (!test::same_bits(got[i].to(kF64).contiguous(), wanted[i].contiguous())) return "a wrong result";
    } catch (const OutOfMemoryError&) {
      if (!has_failed() || status_of_failure != dnnl_out_of_memory) return "want of memory without a cause";
    } catch (const Error& e) {
      const std::string what = e.what();
      if (!has_failed()) return "an error without a cause";
      if (what.find(": oneDNN: ") == what.npos || what.find(".cc:") == what.npos) return "an error without op and line";
    } catch (const std::exception&) {
      return "an exception of another kind";
    }
  return nullptr;
}

[[noreturn]] void fail_each_call(dnnl_status_t status) {
  set_num_threads(1);
  const std::vector<Tensor> wanted = results(kF64);
  status_of_failure = status;
  put_failures();
  for (int call = 1;; ++call) {
    bool failed = false;
    for (const int which : {call, 0}) {
      fails_at = which;
      if (const char* const wrong = run_once(wanted)) {
        std::fprintf(stderr, "call %d, %s: %s\n", call, which == 0 ? "afterwards" : "which fails", wrong);
        _exit(1);
      }
      failed = failed || (which != 0 && calls >= which);
    }
    if (!failed) _exit(call > 20 ? 7 : 2);  // there are no more calls
  }
}

// Processes of their own: there, no other test has made the first call.
TEST(LibraryErrorsDeathTest, AreRondos) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer knows no threads in a child process";
#endif
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const dnnl_status_t status : {dnnl_out_of_memory, dnnl_unimplemented, dnnl_runtime_error})
    EXPECT_EXIT(fail_each_call(status), testing::ExitedWithCode(7), "") << status;
}

}  // namespace
}  // namespace rondo
