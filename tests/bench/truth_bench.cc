// bench_truth: any and all over 100 MB of bool, in several layouts, beside a stream: the same threads read as many
// bytes as the layout touches, OR them, and write as many as there are results. Rounds alternate. The worst case for
// both: no element decides a result.
//
//   bench_truth --rounds=9
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/ops/ops.h"
#include "rondo/tests/bench/options.h"

namespace {

using namespace rondo;

double milliseconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// ORs `read` bytes of `from` and fills `written` bytes of `to` on all threads.
void stream(const uint64_t* from, int64_t read, bool* to, int64_t written) {
  constexpr int64_t kPieces = 256;
  parallel_for(kPieces, 1, [&](int64_t begin, int64_t end) {
    const auto share = [&](int64_t of, int64_t piece) { return of * piece / kPieces; };
    for (int64_t piece = begin; piece < end; ++piece) {
      uint64_t found = 0;
      for (int64_t i = share(read / 8, piece); i < share(read / 8, piece + 1); ++i) found |= from[i];
      const int64_t first = share(written, piece);
      std::memset(to + first, found != 0 ? 1 : 0, static_cast<size_t>(share(written, piece + 1) - first));
      volatile uint64_t keep = found;
      static_cast<void>(keep);
    }
  });
}

struct Case {
  std::string name;
  std::function<Tensor()> run;
  int64_t read, written;
};

}  // namespace

int main(int argc, char** argv) {
  const bench::Options options(argc, argv);
  const int64_t rounds = options.integer("rounds", 9), n = 100'000'000;
  const NoGrad off;
  const Tensor none = Tensor::zeros({n}, kBool), full = Tensor::ones({n}, kBool);
  std::vector<Case> cases;
  const auto both = [&](const std::string& name, int64_t written, const std::function<Tensor(const Tensor&)>& look,
                        const ReduceDims& dims) {
    cases.push_back({"any " + name, [=] { return ops::any(look(none), dims, false); }, n, written});
    cases.push_back({"all " + name, [=] { return ops::all(look(full), dims, false); }, n, written});
  };
  const auto rows = [](int64_t cols) {
    return [cols](const Tensor& x) { return x.slice(0, {0, x.numel() / cols * cols}).reshape({-1, cols}); };
  };
  both("of everything", 1, [](const Tensor& x) { return x; }, {});
  for (const int64_t cols : {2, 3, 4, 5, 8, 20, 50, 65, 100, 1000})
    both("rows of " + std::to_string(cols), n / cols, rows(cols), {1});
  for (const int64_t cols : {4, 20, 1000}) both("columns of (n, " + std::to_string(cols) + ")", cols, rows(cols), {0});
  both("[:, ::2] of (n, 1000)", 1,
       [](const Tensor& x) {
         return ops::slice(x.reshape({-1, 1000}), 1, {.step = 2});
       },
       {});
  both("[:, ::2] of (n, 1000), columns", 500,
       [](const Tensor& x) {
         return ops::slice(x.reshape({-1, 1000}), 1, {.step = 2});
       },
       {0});
  both("[:, ::2] of (n, 1000), rows", n / 1000,
       [](const Tensor& x) {
         return ops::slice(x.reshape({-1, 1000}), 1, {.step = 2});
       },
       {1});
  for (const Case& c : cases) {
    std::vector<double> ours, theirs, ratios;
    for (int64_t round = 0; round < rounds + 1; ++round) {
      const double mine = milliseconds([&] { c.run(); });
      Tensor to = Tensor::empty({c.written}, kBool);
      const double streamed = milliseconds([&] {
        stream(reinterpret_cast<const uint64_t*>(none.raw_data()), c.read, to.mutable_data<bool>(), c.written);
      });
      if (round == 0) continue;  // first touch
      ours.push_back(mine), theirs.push_back(streamed), ratios.push_back(mine / streamed);
    }
    const auto median = [](std::vector<double> v) {
      std::sort(v.begin(), v.end());
      return v[v.size() / 2];
    };
    std::printf("%-42s %7.2f ms   stream %7.2f ms   ratio %.2f\n", c.name.c_str(), median(ours), median(theirs),
                median(ratios));
    std::fflush(stdout);
  }
}
