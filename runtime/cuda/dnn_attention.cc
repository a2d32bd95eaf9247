#include "rondo/runtime/cuda/dnn_attention.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rondo::cuda {
namespace {

// The part of the graph that both directions share: the operands, and the masked scores.
class DnnScores {
 public:
  explicit DnnScores(const DnnAttention& a) : a_(a), type_(dnn_type(a.call.dtype)) {}

  DnnGraph graph;

  const AttentionCall& call() const { return a_.call; }
  DnnData type() const { return type_; }
  std::vector<int64_t> score_sizes() const { return {call().batch, call().heads, call().queries, call().keys}; }
  std::vector<int64_t> row_sizes() const { return {call().batch, call().heads, call().queries, 1}; }

  // Adds an operand [B, heads, rows, D], or its transpose [B, heads, D, rows]. Returns its index.
  int heads(int64_t heads, int64_t rows, const HeadsStrides& strides, bool transposed = false) {
    DnnTensor t{.type = type_,
                .sizes = {call().batch, heads, rows, call().head_dim},
                .strides = {strides.batch, strides.head, strides.row, 1}};
    if (transposed) std::swap(t.sizes[2], t.sizes[3]), std::swap(t.strides[2], t.strides[3]);
    return graph.add(std::move(t));
  }
  int row_operand() {
    const int64_t h = call().heads, t = call().queries;
    return graph.add({.type = DnnData::kF32, .sizes = row_sizes(), .strides = {h * t, t, 1, 1}});
  }
  void add_bias() {
    if (!a_.bias) return;
    const std::vector<int64_t> sizes(std::begin(a_.bias_sizes), std::end(a_.bias_sizes));
    bias_ = graph.between(sizes);
    graph.tensors[static_cast<size_t>(bias_)].place = DnnTensor::Place::kOperand;
  }
  int scaled(int q, int kt) {
    const int s = graph.between(score_sizes()), scaled = graph.between(score_sizes());
    graph.matmul(s, q, kt);
    graph.pointwise(DnnPointwise::kMul, scaled, s, graph.number(call().scale));
    if (!a_.bias) return scaled;
    const int biased = graph.between(score_sizes());
    graph.pointwise(DnnPointwise::kAdd, biased, scaled, bias_);
    return biased;
  }
  int masked(int scores) {
    if (!call().causal) return scores;
    const int row = graph.index_along(scores, 2), column = graph.index_along(scores, 3);
    const int allowed = graph.between(score_sizes(), DnnData::kBool), selected = graph.between(score_sizes());
    graph.pointwise(DnnPointwise::kGreaterEqual, allowed, row, column, -1, DnnData::kBool);
    graph.pointwise(DnnPointwise::kSelect, selected, scores, graph.number(-std::numeric_limits<double>::infinity()),
                    allowed);
    return selected;
  }
  // Adds an intermediate value function(x, b), with the sizes of x. Returns its index.
  int binary(DnnPointwise function, int x, int b) {
    const int y = graph.between(graph.tensors[static_cast<size_t>(x)].sizes);
    graph.pointwise(function, y, x, b);
    return y;
  }
  int unary(DnnPointwise function, int x) { return binary(function, x, -1); }

 private:
  const DnnAttention& a_;
  const DnnData type_;
  int bias_ = -1;
};

}  // namespace

std::string DnnAttention::describe(bool backward) const {
  return absl::StrCat(backward ? "the gradient of attention" : "attention", " [", call.batch, ", ", call.heads,
                      call.kv_heads == call.heads ? "" : absl::StrCat("/", call.kv_heads), ", ", call.queries, "/",
                      call.keys, ", ", call.head_dim, "] in ", std::string(name_of(call.dtype)),
                      call.causal ? ", causal" : "", bias ? ", with a mask" : "");
}

DnnGraph attention_graph(const DnnAttention& a) {
  const AttentionCall& c = a.call;
  DnnScores s(a);
  DnnGraph& graph = s.graph;
  const int q = s.heads(c.heads, c.queries, c.q), kt = s.heads(c.kv_heads, c.keys, c.k, true),
            v = s.heads(c.kv_heads, c.keys, c.v);
  s.add_bias();
  const int out = s.heads(c.heads, c.queries, a.out), logsumexp = s.row_operand();
  const int scores = s.masked(s.scaled(q, kt));
  const int top = graph.between(s.row_sizes());
  graph.reduce(DnnReduction::kMax, top, scores);
  const int e = s.unary(DnnPointwise::kExp, s.binary(DnnPointwise::kSub, scores, top));
  const int sum = graph.between(s.row_sizes());
  graph.reduce(DnnReduction::kAdd, sum, e);
  graph.pointwise(DnnPointwise::kAdd, logsumexp, top, s.unary(DnnPointwise::kLog, sum));
  const int weights = graph.between(s.score_sizes(), s.type());
  graph.pointwise(DnnPointwise::kDiv, weights, e, sum);
  graph.matmul(out, weights, v);
  return std::move(graph);
}

DnnGraph attention_grad_graph(const DnnAttention& a) {
  const AttentionCall& c = a.call;
  DnnScores s(a);
  DnnGraph& graph = s.graph;
  const int q = s.heads(c.heads, c.queries, c.q), kt = s.heads(c.kv_heads, c.keys, c.k, true),
            vt = s.heads(c.kv_heads, c.keys, c.v, true);
  s.add_bias();
  const int out = s.heads(c.heads, c.queries, a.out), logsumexp = s.row_operand();
  const int grad = s.heads(c.heads, c.queries, a.grad);
  const int grad_q = s.heads(c.heads, c.queries, a.grad_q), grad_k = s.heads(c.kv_heads, c.keys, a.grad_k),
            grad_v = s.heads(c.kv_heads, c.keys, a.grad_v);
  const int64_t h = c.heads, t = c.queries;

  // delta: the sums over D of grad * out.
  const int product = s.binary(DnnPointwise::kMul, grad, out);
  const int delta_sum = graph.between(s.row_sizes());
  graph.reduce(DnnReduction::kAdd, delta_sum, product);
  const int delta = graph.add({DnnTensor::Place::kScratch, DnnData::kF32, s.row_sizes(), {h * t, t, 1, 1}});
  graph.pointwise(DnnPointwise::kMul, delta, delta_sum, graph.number(1));

  // Computes the weights again, from the logsumexp.
  const int less = s.binary(DnnPointwise::kSub, s.scaled(q, kt), logsumexp);
  const int weights = s.unary(DnnPointwise::kExp, s.masked(less));

  // Adds the operation result = S^T operand. S^T, [B, H, Tk, Tq], is `scores` transposed; `operand` is [B, H, Tq, D].
  // The products of the query heads of a group are added up.
  const auto of_keys = [&](int scores, int operand, int result) {
    const std::vector<int64_t> sizes = {c.batch, h, c.keys, t};
    const int transposed = graph.between(sizes, s.type());
    graph.tensors[static_cast<size_t>(transposed)].strides = {h * t * c.keys, t * c.keys, 1, c.keys};
    graph.reshape(transposed, scores);
    if (c.kv_heads == h) return graph.matmul(result, transposed, operand);
    const int all = graph.between({c.batch, h, c.keys, c.head_dim}, s.type());
    graph.matmul(all, transposed, operand);
    graph.reduce(DnnReduction::kAdd, result, all);
  };
  of_keys(weights, grad, grad_v);
  const int grad_weights = graph.between(s.score_sizes());
  graph.matmul(grad_weights, grad, vt);
  const int slope = s.binary(DnnPointwise::kMul, s.binary(DnnPointwise::kSub, grad_weights, delta), weights);
  const int grad_scores = s.binary(DnnPointwise::kMul, slope, graph.number(c.scale));
  of_keys(grad_scores, q, grad_k);
  DnnTensor k = graph.tensors[static_cast<size_t>(kt)];
  k.place = DnnTensor::Place::kBetween;
  std::swap(k.sizes[2], k.sizes[3]);
  std::swap(k.strides[2], k.strides[3]);
  const int again = graph.add(std::move(k));
  graph.reshape(again, kt);
  graph.matmul(grad_q, grad_scores, again);
  return std::move(graph);
}

}  // namespace rondo::cuda
