// Note [Known recordings] in compile/capture/known_recording.cc: which calls are taken for those of an earlier
// recording, and that a recording which turns out to be another one is what it would have been.
#include "rondo/compile/capture/known_recording.h"
#include "rondo/tests/compile/block_fixture.h"
#include "rondo/tests/compile/graph_fixture.h"

namespace rondo {
namespace {

using compile::FollowingTrace;
using compile::Graph;
using compile::KnownRecording;
using compile::Trace;
using test::Block;
using test::Tensors;

uint64_t next_number = uint64_t{1} << 40;  // no entry's

// What a run of the program below may differ in. Its calls stand in the same lines.
struct Variant {
  Tensor x = Tensor::ones({4, 6}).requires_grad_(), y = Tensor::ones({4, 6}), bias = Tensor::ones({6});
  int64_t parts = 2;
  double factor = 1.5;
  bool tanh = false, more = false, swap = false, gradients = true, hold = false, writes = false;
};
// Calls with several results, with none, without operands, with an operand left out, and views. Returns what is held.
Tensors program(const Variant& v) {
  GradMode mode(v.gradients);
  Tensors held;
  const Tensor sum = (v.x + v.y) * v.factor;
  const Tensors parts = ops::chunk(sum, v.parts, -1);
  const Tensor &first = parts[v.swap ? 1 : 0], &second = parts[v.swap ? 0 : 1];
  const Tensor half = ops::where(first > second, first, -1.0);
  const Tensor normal = ops::linear(v.x, Tensor::ones({6, 6}), v.bias);
  Tensor out = ops::sum(half * second) + ops::sum(v.tanh ? normal * v.y : normal + v.y);
  if (v.hold) held.push_back(sum);
  if (v.writes) out.add_(1.0);
  if (v.more) out = ops::exp(out);
  held.push_back(out);
  return held;
}

// The recording, with what is held as its outputs, as a region leaves it.
std::shared_ptr<const Graph> recording_of(const Variant& v) {
  Trace trace;
  RecorderScope scope(&trace);
  const Tensors held = program(v);
  Graph graph = trace.graph;
  for (const compile::GraphNode& node : graph.nodes)
    for (compile::ValueId id : node.outputs)
      if (trace.is_alive(id)) graph.outputs.push_back(id);
  return std::make_shared<const Graph>(std::move(graph));
}
std::string text_without_outputs(Graph graph) {
  graph.outputs.clear();
  return to_string(graph);
}

struct Followed {
  bool known = false;
  std::string text;  // after it has become an ordinary recording
};
Followed follow(std::shared_ptr<const Graph> earlier, const Variant& v) {
  FollowingTrace trace;
  trace.follow({std::move(earlier), kCPU, ++next_number});
  RecorderScope scope(&trace);
  const Tensors held = program(v);
  Followed result{.known = trace.is_known(), .text = {}};
  trace.stop_following();
  result.text = text_without_outputs(trace.graph);
  return result;
}

TEST(KnownRecording, EveryDifferenceIsSeen) {
  const Variant usual;
  const auto changed = [&](auto change) {
    Variant v;
    change(v);
    return v;
  };
  const struct {
    const char* what;
    bool known;
    Variant v;
  } cases[] = {
      {"nothing", true, {}},
      {"a float", true, changed([](Variant& v) { v.factor = 0.25; })},
      {"an op", false, changed([](Variant& v) { v.tanh = true; })},
      {"an integer", false, changed([](Variant& v) { v.parts = 3; })},
      {"an operand", false, changed([](Variant& v) { v.swap = true; })},
      {"one tensor twice", false, changed([](Variant& v) { v.y = v.x; })},
      {"one tensor twice, of no gradient", false, changed([](Variant& v) { v.x = v.y; })},
      {"requires_grad", false, changed([](Variant& v) { v.y.requires_grad_(); })},
      {"no leaf", false, changed([](Variant& v) { v.x = v.x * 1.0; })},
      {"a size", false, changed([](Variant& v) {
         v.x = Tensor::ones({2, 6}).requires_grad_();
         v.y = Tensor::ones({2, 6});
       })},
      {"a stride", false, changed([](Variant& v) {
         v.y = Tensor::ones({6, 4}).permute({1, 0});
       })},
      {"a dtype", false, changed([](Variant& v) { v.y = v.y.to(kF64); })},
      {"gradients off", false, changed([](Variant& v) { v.gradients = false; })},
      {"one call more", false, changed([](Variant& v) { v.more = true; })},
      {"a result that is held", false, changed([](Variant& v) { v.hold = true; })},
      {"an operand left out", false, changed([](Variant& v) { v.bias = Tensor(); })},
  };
  for (const auto& a : cases)
    for (const auto& b : cases) {
      SCOPED_TRACE(std::string(a.what) + " and then " + b.what);
      const Followed followed = follow(recording_of(a.v), b.v);
      const bool only_floats = (&a == &cases[0] || &a == &cases[1]) && b.known;
      EXPECT_EQ(followed.known, &a == &b || only_floats);
      EXPECT_EQ(followed.text, text_without_outputs(*recording_of(b.v)));
    }
}

TEST(KnownRecording, AnotherLineIsAnotherRecording) {
  const Tensor x = Tensor::ones({2});
  const Graph graph = compile::record([&] { return Tensors{ops::exp(x)}; });
  FollowingTrace trace;
  trace.follow({std::make_shared<const Graph>(graph), kCPU, ++next_number});
  RecorderScope scope(&trace);
  const Tensor y = ops::exp(x);
  EXPECT_FALSE(trace.is_known());
}

TEST(KnownRecording, HandlesServeAgainIfNobodyHoldsThem) {
  const Tensor x = Tensor::ones({2});
  const auto body = [&] { return ops::exp(ops::exp(x) * 2.0); };
  const auto graph = std::make_shared<const Graph>(compile::record([&] { return Tensors{body()}; }));
  const KnownRecording known{graph, kCPU, ++next_number};
  Tensor held;
  for (int i = 0; i < 3; ++i) {
    FollowingTrace trace;
    trace.follow(known);
    RecorderScope scope(&trace);
    const Tensor before = held;
    held = body();
    EXPECT_TRUE(trace.is_known());
    EXPECT_TRUE(!before.defined() || before.impl() != held.impl());
    EXPECT_EQ(held.sizes(), Dims({2}));
  }
}

// As a region records writes.
struct WritesTrace final : FollowingTrace {
  void append(const OpDef& op, std::span<const Tensor* const> inputs, const Attrs& attrs, std::span<Tensor> outputs,
              bool in_place, std::source_location where) override {
    if (!in_place) return FollowingTrace::append(op, inputs, attrs, outputs, in_place, where);
    if (append_known_write(op, inputs, attrs, where)) return;
    stop_following();
    EXPECT_EQ(record_write(op, inputs, attrs, outputs[0], where), nullptr);
  }
};

// A cache is another tensor in each layer, and is written elsewhere at each call: the recording stays the known one.
TEST(KnownRecording, WritesOfWholeTensorsAreFollowed) {
  struct Cache {
    Tensor keys = Tensor::zeros({1, 2, 8, 3});
    Tensor first = keys, second = Tensor();  // written, and written then
    Tensor read = keys;
  };
  const Tensor rows = Tensor::ones({1, 2, 1, 3});
  const auto body = [&](const Cache& cache, const Tensor& at) {
    const Tensor before = ops::sum(cache.read);
    ops::write_rows_(cache.first, rows * 2.0, at);
    if (cache.second.defined()) ops::write_rows_(cache.second, rows, at);
    return Tensors{ops::sum(cache.read) - before};
  };
  const auto record = [&](const Cache& cache, const Tensor& at, std::shared_ptr<const Graph> known) {
    const NoGrad off;
    WritesTrace trace;
    if (known != nullptr) trace.follow({known, kCPU, ++next_number});
    RecorderScope scope(&trace);
    const Tensors held = body(cache, at);
    const bool is_known = trace.is_known();
    trace.stop_following();
    EXPECT_TRUE(trace.writes(cache.first.storage()));
    trace.refresh();
    auto graph = std::make_shared<Graph>(trace.graph);
    for (const compile::GraphNode& node : graph->nodes)
      for (compile::ValueId id : node.outputs)
        if (trace.is_alive(id)) graph->outputs.push_back(id);
    return std::pair(is_known, graph);
  };
  const auto place = [](int64_t at) { return Tensor::from<int64_t>({at}, {1, 1}); };
  const Cache plain;
  const std::shared_ptr<const Graph> known = record(plain, place(1), nullptr).second;
  EXPECT_TRUE(compile::has_known_writes(*known));
  EXPECT_TRUE(record(plain, place(5), known).first);
  EXPECT_TRUE(record(Cache(), place(0), known).first);
  Cache twice, view, other;
  twice.second = twice.keys;
  view.first = Tensor::zeros({1, 2, 9, 3}).slice(2, {0, 8});
  other.read = Tensor::zeros({1, 2, 8, 3});
  for (const Cache* cache : {&twice, &view, &other}) {
    const auto [is_known, graph] = record(*cache, place(2), known);
    EXPECT_FALSE(is_known);
    EXPECT_EQ(to_string(*graph), to_string(*record(*cache, place(2), nullptr).second));
    EXPECT_EQ(graph->versions, record(*cache, place(2), nullptr).second->versions);
  }
  EXPECT_FALSE(compile::has_known_writes(*record(twice, place(2), nullptr).second));
}

class KnownCalls : public test::BlockTest {};

// The same layer, called with what its recordings may differ in, in turns: all results as in eager execution.
TEST_F(KnownCalls, InTurns) {
  const auto body = [](Block& b, const Tensor& x) {
    const int64_t step = b.state.step++;
    const double factor = 1.0 + 0.5 * static_cast<double>(step % 3);
    Tensor h = ops::tanh(ops::matmul(x, b.weight) * factor + b.bias);
    if (step % 4 == 3) b.state.kept = {h};
    if (step % 5 == 4) h = h * h;
    if (step % 7 == 6) h = ops::slice(h, 0, {0, h.size(0) / 2}) + h.detach().select(0, 0);
    return Tensors{b.norm(h)};
  };
  expect_as_eager(body, [](Block& block) {
    Tensors results;
    for (int64_t i = 0; i < 40; ++i) {
      const Tensor x = Tensor::randn({i % 6 == 5 ? 2 : 4, 6}).requires_grad_(i % 9 != 8);
      GradMode mode(i % 11 != 10);
      Tensor out = block(x)[0];
      if (!block.state.kept.empty()) out = out * 1.0, results.push_back(block.state.kept[0].detach());
      block.state.kept.clear();
      if (grad_enabled()) ops::sum(out * out).backward();
      results.push_back(out.detach());
      results.push_back(x.grad().defined() ? x.grad() : Tensor::zeros({1}));
    }
    return results;
  });
}

// What was computed stays, also in the handles that a later call could have used again.
TEST_F(KnownCalls, EarlierResultsStay) {
  const auto body = [](Block& b, const Tensor& x) { return Tensors{ops::exp(x) * b.bias, x + b.bias}; };
  expect_as_eager(body, [](Block& block) {
    Tensors results;
    for (int i = 0; i < 4; ++i) {
      const Tensors made = block(test::input());
      results.push_back(made[0]);
      if (i % 2 == 1) results.push_back(made[1]);
    }
    Tensors values;
    for (const Tensor& result : results) values.push_back(result.detach());
    return values;
  });
}

// A throw in the middle of a call that was the known one so far: what was computed before it has its value.
TEST_F(KnownCalls, AThrowInTheMiddle) {
  const auto body = [](Block& b, const Tensor& x) {
    b.state.kept = {ops::exp(x)};
    if (b.state.step++ == 2) throw Error("the test's");
    return Tensors{b.state.kept[0] * b.bias};
  };
  expect_as_eager(body, [](Block& block) {
    Tensors results;
    for (int i = 0; i < 4; ++i) {
      const Tensor x = test::input();
      try {
        results.push_back(block(x)[0].detach());
      } catch (const Error&) {
        EXPECT_EQ(i, 2);
      }
      results.push_back(block.state.kept[0].detach());
    }
    return results;
  });
}

// The value of a known call is read: a break where there was none.
TEST_F(KnownCalls, AReadInTheMiddle) {
  const auto body = [](Block& b, const Tensor& x) {
    const Tensor h = ops::exp(x) * b.bias;
    if (b.state.step++ % 3 == 2) b.state.hook_calls += h.to_vector<float>()[0] > 0;
    return Tensors{h + x};
  };
  expect_as_eager(body, [](Block& block) {
    Tensors results;
    for (int i = 0; i < 7; ++i) results.push_back(block(test::input())[0].detach());
    results.push_back(Tensor::full({}, static_cast<double>(block.state.hook_calls)));
    return results;
  });
  EXPECT_EQ(report.graph_breaks, 2);
}

// Memory that a known call reads is written before the recording has run.
TEST_F(KnownCalls, AWriteInTheMiddle) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor table = b.state.kept[0];
    const Tensor h = x + table;
    if (b.state.step++ % 3 == 2) table.fill_(2.0);
    return Tensors{h * table};
  };
  expect_as_eager(body, [](Block& block) {
    block.state.kept = {Tensor::ones({4, 6})};
    Tensors results;
    for (int i = 0; i < 7; ++i) results.push_back(block(test::input())[0].detach());
    return results;
  });
}

// Writes of all of a tensor are compared like any other call: read before and after it, once and twice, and what stands
// in for the tensor changes from call to call.
TEST_F(KnownCalls, Writes) {
  const auto body = [](Block& b, const Tensor& x) {
    Tensor sums = b.state.kept[0], count = b.state.kept[1];
    const int64_t step = b.state.step++;
    const Tensor before = sums * 2.0;
    sums.add_(x.detach());
    count.add_(1.0);
    if (step % 5 == 3) count.mul_(0.5);                                        // a second write
    if (step % 7 == 4) b.state.hook_calls += count.to_vector<float>()[0] > 0;  // a read of what was written
    const Tensor part = step % 3 == 2 ? sums.slice(0, {0, 2}) : sums;
    return Tensors{(before + ops::sum(part) * b.bias) / count};
  };
  for (const bool gradients : {true, false})
    expect_as_eager(body, [gradients](Block& block) {
      GradMode mode(gradients);
      Tensors results;
      const Tensor other = Tensor::zeros({4, 6}), counts = Tensor::zeros({2});
      block.state.kept = {Tensor::zeros({4, 6}), Tensor::zeros({})};
      for (int64_t i = 0; i < 30; ++i) {
        if (i % 11 == 10) block.state.kept = {other, counts.select(0, 1)};  // a view is written
        if (i % 11 == 5) block.state.kept = {Tensor::ones({4, 6}), Tensor::ones({})};
        if (i % 13 == 12) block.state.kept[1] = block.state.kept[0].select(0, 0).select(0, 0);  // of the other's memory
        const Tensor held = i % 4 == 1 ? block.state.kept[0].slice(0, {1, 3}) : Tensor();
        results.push_back(block(Tensor::randn({4, 6}))[0].detach());
        if (held.defined()) results.push_back(held.clone());
        for (const Tensor& kept : block.state.kept) {
          results.push_back(kept.clone());
          results.push_back(Tensor::full({}, static_cast<double>(kept.version())));
        }
      }
      return results;
    });
}

}  // namespace
}  // namespace rondo
