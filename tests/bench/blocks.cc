#include "rondo/tests/bench/blocks.h"

#include <cmath>

#include "rondo/runtime/base/error.h"
#include "rondo/runtime/random/random.h"

namespace rondo::bench {
namespace {

using Tensors = std::vector<Tensor>;
using Inputs = BlockInputs;

Tensor number(const Dims& sizes, DType dtype, double scale = 1.0) { return (Tensor::randn(sizes) * scale).to(dtype); }
Tensor input(const Dims& sizes, DType dtype) { return number(sizes, dtype).requires_grad_(); }
Tensor weight(const Dims& sizes, DType dtype) {
  return number(sizes, dtype, 1.0 / std::sqrt(static_cast<double>(sizes.back()))).requires_grad_();
}
Tensor indices(const Dims& sizes, int64_t below) {
  return ops::clamp((Tensor::rand(sizes) * static_cast<double>(below)).to(kI64), 0, below - 1);
}
Tensor mean_square(const Tensor& y) { return ops::mean(y * y); }

// Every block: its inputs, then its equation.

Inputs mlp_inputs(int64_t N, int64_t C, DType dtype) {
  return {{input({N, C}, dtype), weight({2 * C, C}, dtype), weight({C, 2 * C}, dtype)}};
}
Tensors mlp(const Inputs& in) {
  const auto &x = in.t[0], &up = in.t[1], &down = in.t[2];
  const Tensor h = ops::linear(x, up, {});
  const Tensor mish = h * ops::tanh(ops::softplus(h)) + 0.1 * h;  // an activation of one's own
  return {mean_square(ops::linear(mish, down, {}))};
}

Inputs swiglu_inputs(int64_t N, int64_t C, DType dtype) {
  return {{input({N, C}, dtype), weight({C}, dtype), weight({2 * C, C}, dtype), weight({2 * C, C}, dtype),
           weight({C, 2 * C}, dtype)}};
}
Tensors swiglu(const Inputs& in) {
  const auto &x = in.t[0], &scale = in.t[1], &gate = in.t[2], &up = in.t[3], &down = in.t[4];
  const Tensor h = x * ops::rsqrt(ops::mean(x * x, {-1}, true) + 1e-6) * scale;
  const Tensor a = ops::linear(h, gate, {});
  return {mean_square(x + ops::linear(a * ops::sigmoid(a) * ops::linear(h, up, {}), down, {}))};
}

Inputs softmax_inputs(int64_t N, int64_t C, DType dtype) {
  return {{input({N, C}, dtype), Tensor::rand({N, C}) > 0.2, number({N, C}, dtype)}};
}
Tensors softmax(const Inputs& in) {
  const auto &x = in.t[0], &mask = in.t[1], &v = in.t[2];
  const Tensor scores = ops::where(mask, x / 0.7, -1e9);
  const Tensor e = ops::exp(scores - ops::max(scores, {-1}, true).detach());
  return {ops::mean(e / ops::sum(e, {-1}, true) * v)};
}

Inputs focal_inputs(int64_t N, int64_t C, DType dtype) {
  return {{input({N, C}, dtype), (Tensor::rand({N, C}) > 0.9).to(dtype)}};
}
Tensors focal(const Inputs& in) {
  const auto &x = in.t[0], &y = in.t[1];
  const Tensor p = ops::sigmoid(x), right = p * y + (1 - p) * (1 - y), weights = 0.25 * y + 0.75 * (1 - y);
  return {ops::mean(weights * ops::pow(1 - right, 2.0) * (ops::softplus(x) - x * y))};
}

Inputs vae_inputs(int64_t N, int64_t C, DType dtype) {
  return {{input({N, C}, dtype), number({N, C}, dtype, 0.1).requires_grad_(), number({N, C}, dtype),
           number({N, C}, dtype)}};
}
Tensors vae(const Inputs& in) {
  const auto &mu = in.t[0], &log_var = in.t[1], &eps = in.t[2], &x = in.t[3];
  const Tensor z = mu + ops::exp(0.5 * log_var) * eps, d = ops::tanh(z) - x;
  const Tensor kl = -0.5 * ops::sum(1 + log_var - mu * mu - ops::exp(log_var), {-1});
  return {ops::mean(ops::sum(d * d, {-1}) + kl)};
}

Inputs rotary_inputs(int64_t N, int64_t C, DType dtype) {
  const int64_t D = 64;
  return {{input({N, C / D, D}, dtype), number({N, 1, D / 2}, dtype), number({N, 1, D / 2}, dtype),
           number({N, C / D, D}, dtype)}};
}
Tensors rotary(const Inputs& in) {
  const auto &x = in.t[0], &cos = in.t[1], &sin = in.t[2], &k = in.t[3];
  const int64_t half = x.size(-1) / 2;
  const Tensor a = ops::slice(x, -1, {0, half}), b = ops::slice(x, -1, {half, 2 * half});
  return {ops::mean(ops::cat({a * cos - b * sin, b * cos + a * sin}, -1) * k)};
}

Inputs moe_inputs(int64_t N, int64_t C, DType dtype) {
  return {{input({N, C}, dtype), weight({8, C}, dtype), weight({8, C}, dtype)}};
}
Tensors moe(const Inputs& in) {
  const auto &x = in.t[0], &router = in.t[1], &experts = in.t[2];
  const Tensor logits = ops::linear(x, router, {});
  const Tensor e = ops::exp(logits - ops::max(logits, {-1}, true).detach()), p = e / ops::sum(e, {-1}, true);
  const Tensor chosen = p.detach(), best = ops::max(chosen, {-1}, true);
  const Tensor second = ops::max(ops::where(chosen >= best, -1.0, chosen), {-1}, true);
  const Tensor kept = ops::where(chosen >= second, p, 0.0), gates = kept / ops::sum(kept, {-1}, true);
  const Tensor share = ops::mean((chosen >= second).to(p.dtype()), {0}),
               balance = 8.0 * ops::sum(share * ops::mean(p, {0}));
  return {mean_square(x * ops::matmul(gates, experts)) + 0.01 * balance};
}

Inputs lstm_inputs(int64_t N, int64_t C, DType dtype) {
  return {{input({N, C}, dtype), input({N, C}, dtype), input({N, C}, dtype), weight({4 * C, C}, dtype),
           weight({4 * C, C}, dtype), weight({4 * C}, dtype)}};
}
Tensors lstm(const Inputs& in) {
  const auto &x = in.t[0], &h = in.t[1], &c = in.t[2], &w = in.t[3], &u = in.t[4], &b = in.t[5];
  const Tensors gates = ops::chunk(ops::linear(x, w, b) + ops::linear(h, u, {}), 4, -1);
  const Tensor now = ops::sigmoid(gates[1]) * c + ops::sigmoid(gates[0]) * ops::tanh(gates[2]);
  return {mean_square(ops::sigmoid(gates[3]) * ops::tanh(now))};
}

Inputs messages_inputs(int64_t N, int64_t C, DType dtype) {
  const int64_t edges = 4 * N;
  const Tensor to = ops::reshape(indices({edges}, N), {edges, 1}) + Tensor::zeros({1, C}, {kI64});
  return {{input({N, C}, dtype), number({edges, 1}, dtype), indices({edges}, N), to, weight({C, C}, dtype),
           Tensor::zeros({N, C}, {dtype})}};
}
Tensors messages(const Inputs& in) {
  const auto &x = in.t[0], &strength = in.t[1], &from = in.t[2], &to = in.t[3], &w = in.t[4], &none = in.t[5];
  const Tensor sums = ops::scatter_add(none, 0, to, ops::index_select(x, 0, from) * strength);
  return {mean_square(ops::relu(ops::linear(sums, w, {}) + x))};
}

Inputs batch_norm_inputs(int64_t N, int64_t C, DType dtype) {
  return {{input({N, C}, dtype), weight({C}, dtype), weight({C}, dtype)}};
}
Tensors batch_norm(const Inputs& in) {
  const auto &x = in.t[0], &scale = in.t[1], &bias = in.t[2];
  const Tensor d = x - ops::mean(x, {0}, true);
  return {mean_square(ops::relu(d * ops::rsqrt(ops::mean(d * d, {0}, true) + 1e-5) * scale + bias))};
}

Inputs diffusion_inputs(int64_t N, int64_t C, DType dtype) {
  return {{number({N, C}, dtype), number({N, C}, dtype), (Tensor::rand({N, 1}) * 0.9 + 0.05).to(dtype),
           weight({C, C}, dtype), weight({C}, dtype)}};
}
Tensors diffusion(const Inputs& in) {
  const auto &x = in.t[0], &noise = in.t[1], &a = in.t[2], &w = in.t[3], &b = in.t[4];
  const Tensor noisy = ops::sqrt(a) * x + ops::sqrt(1 - a) * noise, h = ops::linear(noisy, w, b);
  const Tensor error = h * ops::sigmoid(h) - noise, snr = ops::clamp(a / (1 - a), 0.0, 5.0);
  return {ops::mean(snr * error * error)};
}

Inputs adam_inputs(int64_t N, int64_t C, DType dtype) {
  return {{number({N, C}, dtype), number({N, C}, dtype), number({N, C}, dtype, 0.1), Tensor::rand({N, C}).to(dtype)}};
}
// A formula of one's own, whose corrections of bias change at every step.
Tensors adam(const Inputs& in) {
  const auto &p = in.t[0], &g = in.t[1], &m = in.t[2], &v = in.t[3];
  const double lr = 3e-4, b1 = 0.9, b2 = 0.95, t = static_cast<double>(in.step);
  const Tensor m1 = b1 * m + (1 - b1) * g, v1 = b2 * v + (1 - b2) * g * g;
  const Tensor change = (m1 / (1 - std::pow(b1, t))) / (ops::sqrt(v1 / (1 - std::pow(b2, t))) + 1e-8);
  return {p - lr * (change + 0.1 * p), m1, v1};
}

constexpr PlainBlock kBlocks[] = {
    {"mlp", mlp_inputs, mlp},
    {"swiglu", swiglu_inputs, swiglu},
    {"softmax", softmax_inputs, softmax},
    {"focal", focal_inputs, focal},
    {"vae", vae_inputs, vae},
    {"rotary", rotary_inputs, rotary},
    {"moe", moe_inputs, moe},
    {"lstm", lstm_inputs, lstm},
    {"messages", messages_inputs, messages},
    {"batch_norm", batch_norm_inputs, batch_norm},
    {"diffusion", diffusion_inputs, diffusion},
    {"adam", adam_inputs, adam, /*trains=*/false},
};

}  // namespace

std::span<const PlainBlock> plain_blocks() { return kBlocks; }
const PlainBlock& find_block(const std::string& name) {
  for (const PlainBlock& block : kBlocks)
    if (name == block.name) return block;
  throw Error("no block \"" + name + "\"");
}

}  // namespace rondo::bench
