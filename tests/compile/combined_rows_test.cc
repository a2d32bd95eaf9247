// Sums by index of rows that are combined with the tensor that they were picked from. There a kernel reads one value in
// two roles: row by row, and as a table. The rows are sorted (compile/transform/segments.cc); the table is not.
#include <functional>

#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/close.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compiled_runs.h"

namespace rondo {
namespace {

using test::same_bits;

// A function of rows and of two lists of places, as a module.
struct Combine : nn::Module<Combine> {
  using Body = std::function<Tensor(const Tensor& x, const Tensor& from, const Tensor& to)>;
  Body body;
  explicit Combine(Body body) : body(std::move(body)) {}
  Tensor forward(const Tensor& x, const Tensor& from, const Tensor& to) { return body(x, from, to); }
};

class CombinedRows : public test::BlockTest {
 protected:
  struct Results {
    Tensor out, grad;
  };
  static Results run(const Combine::Body& body, const Tensor& start, const Tensor& from, const Tensor& to,
                     const compile::CompileOptions* options) {
    Combine block(body);
    std::optional<compile::Regions> regions;
    if (options != nullptr) regions.emplace(compile::compile_module(block, *options));
    const bool real = is_floating(start.dtype());
    Tensor x = start.clone();
    if (real) x.requires_grad_();
    Results results{block(x, from, to), {}};
    if (real && results.out.requires_grad()) {
      (results.out * (results.out * 0.125 + 1.0)).sum().backward();
      results.grad = x.grad();
    }
    if (regions) {
      EXPECT_EQ(regions->report()[0].eager_runs, 0);
      EXPECT_EQ(regions->report()[0].graph_breaks, 0);
    }
    return results;
  }
  // Exact mode gives eager's bits, default mode comes close; forward and backward.
  static void check(const Combine::Body& body, const Tensor& start, const Tensor& from, const Tensor& to) {
    const Results eager = run(body, start, from, to, nullptr);
    for (const bool exact : {true, false}) {
      SCOPED_TRACE(exact ? "exact" : "default");
      const compile::CompileOptions options{.exact = exact};
      const Results compiled = run(body, start, from, to, &options);
      const auto equal = [&](const Tensor& a, const Tensor& b) {
        return exact || !is_floating(a.dtype()) ? same_bits(a, b) : test::is_close(a, b, {.absolute = 1e-4});
      };
      EXPECT_TRUE(equal(compiled.out, eager.out));
      ASSERT_EQ(compiled.grad.defined(), eager.grad.defined());
      if (eager.grad.defined()) {
        EXPECT_TRUE(equal(compiled.grad, eager.grad));
      }
    }
  }
  static Tensor places(std::vector<int64_t> of) {
    const auto n = static_cast<int64_t>(of.size());
    return Tensor::from(std::move(of), {n});
  }
};

// By hand: row 1 + row 0 goes to 2, row 2 + row 1 to 0, row 0 + row 2 to 1, row 3 twice to 3.
TEST_F(CombinedRows, NumbersByHand) {
  const auto body = [](const Tensor& x, const Tensor& src, const Tensor& dst) {
    const Tensor h = x * 2.0;
    return ops::index_add(Tensor::zeros({4}), 0, dst, ops::gather(h, 0, src) + h);
  };
  const Tensor x = Tensor::from<float>({1, 10, 100, 1000}, {4}), src = places({1, 2, 0, 3}), dst = places({2, 0, 1, 3});
  for (const bool exact : {true, false}) {
    const compile::CompileOptions options{.exact = exact};
    EXPECT_EQ(run(body, x, src, dst, &options).out.to_vector<float>(), (std::vector<float>{220, 202, 22, 4000}));
  }
}

TEST_F(CombinedRows, WhateverTheRoles) {
  constexpr int64_t n = 12;
  manual_seed(3);
  const Tensor from = Tensor::randint(0, n, {n}), to = Tensor::randint(0, n, {n});
  const auto column = [](const Tensor& i, int64_t cols) { return ops::expand(ops::reshape(i, {n, 1}), {n, cols}); };
  const auto zeros = [](const Tensor& like) { return Tensor::zeros(like.sizes(), {like.dtype()}); };
  struct Case {
    const char* name;
    Combine::Body body;
    int rank;  // of x: (12), (12, 5), or square
  };
  const Case cases[] = {
      {"rows and a table",
       [&](const Tensor& x, const Tensor& i, const Tensor& to) {
         const Tensor h = x * 2.0;
         return ops::index_add(zeros(x), 0, to, ops::index_select(h, 0, i) + h);
       },
       2},
      {"gather",
       [&](const Tensor& x, const Tensor& i, const Tensor& to) {
         const Tensor h = ops::tanh(x);
         return ops::scatter_add(zeros(x), 0, column(to, 5), ops::gather(h, 0, column(i, 5)) * h - 1.0);
       },
       2},
      {"a table of a table",
       [&](const Tensor& x, const Tensor& i, const Tensor& to) {
         const Tensor h = ops::exp(x * 0.25), both = ops::index_select(h, 0, i) + h * 0.5;
         return ops::index_add(zeros(x), 0, to, ops::index_select(both, 0, i) * both);
       },
       2},
      {"what is made of a table's rows",
       [&](const Tensor& x, const Tensor& i, const Tensor& to) {
         const Tensor h = x * 2.0, far = ops::tanh(h);
         return ops::index_add(zeros(x), 0, to, ops::index_select(far, 0, i) * h + far);
       },
       2},
      {"one for each row, along columns",
       [&](const Tensor& x, const Tensor&, const Tensor& to) {
         const Tensor weights = ops::select(x, 1, 0) * 2.0;  // (n): of the columns of a square
         return ops::index_add(zeros(x), 0, to, ops::exp(x * 0.5) * weights);
       },
       3},
      {"transposed",
       [&](const Tensor& x, const Tensor&, const Tensor& to) {
         const Tensor h = x * 2.0;
         return ops::index_add(zeros(x), 0, to, h.t() - h);
       },
       3},
      {"another dimension's table",
       [&](const Tensor& x, const Tensor& i, const Tensor& to) {
         const Tensor h = x * 2.0;
         return ops::index_add(zeros(x), 0, to, ops::index_select(h, 1, i) - h);
       },
       3},
      {"added to what is added",
       [&](const Tensor& x, const Tensor&, const Tensor& to) {
         const Tensor h = x * 2.0;
         return ops::index_add(h, 0, to, h);
       },
       2},
      {"added to a table",
       [&](const Tensor& x, const Tensor& i, const Tensor& to) {
         const Tensor h = x * 2.0;
         return ops::index_add(h, 0, to, ops::index_select(h, 0, i) * 0.5);
       },
       2},
      {"sorted places",
       [&](const Tensor& x, const Tensor&, const Tensor&) {
         const Tensor s = ops::sort(x, 0).values;
         return ops::tanh(ops::scatter_add(s, 0, ops::argsort(s, 0), s) * 0.25);
       },
       1},
      {"twice, in two orders",
       [&](const Tensor& x, const Tensor& i, const Tensor& to) {
         const Tensor h = x * 2.0, made = ops::index_select(h, 0, i) - h;
         return ops::index_add(zeros(x), 0, to, made) + ops::index_add(zeros(x), 0, i, made * h);
       },
       2},
      {"the table is a sum by index",
       [&](const Tensor& x, const Tensor& i, const Tensor& to) {
         const Tensor h = ops::index_add(x, 0, i, ops::tanh(x));
         return ops::index_add(zeros(x), 0, to, ops::index_select(h, 0, i) * h);
       },
       2},
  };
  for (const Case& c : cases)
    for (const DType dtype : {kF32, kF64}) {
      SCOPED_TRACE(testing::Message() << c.name << ", " << name_of(dtype));
      manual_seed(7);
      check(c.body, Tensor::randn(c.rank == 1 ? Dims{n} : c.rank == 2 ? Dims{n, 5} : Dims{n, n}).to(dtype), from, to);
    }
}

// Integers: places that are numbers, too.
TEST_F(CombinedRows, PlacesThatAreAddedUp) {
  const auto body = [](const Tensor& x, const Tensor&, const Tensor&) {
    const Tensor at = ops::minimum(x, x * 0 + 5);
    return ops::scatter_add(Tensor::zeros({6}, {kI64}), 0, at, ops::gather(at * 3, 0, at) + at);
  };
  const Tensor x = places({5, 3, 3, 0, 1, 4});
  check(body, x, x.clone(), x.clone());
}

}  // namespace
}  // namespace rondo
