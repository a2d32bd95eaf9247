#pragma once
namespace rondo::scalar {
template <class T> inline T rsqrt(T x) { return constant(x, 1.0) / sqrt(x); }
template <class T> inline T sigmoid(T x) { return constant(x, 1.0) / (constant(x, 1.0) + exp(-x)); }
template <class T> inline T tanh(T x) { return constant(x, 1.0) - constant(x, 2.0) / (exp(x + x) + constant(x, 1.0)); }
template <class T> inline T relu(T x) { return select(lt(constant(x, 0.0), x), x, constant(x, 0.0)); }
template <class T> inline T relu_grad(T x, T g) { return select(lt(constant(x, 0.0), x), g, constant(x, 0.0)); }
template <class T> inline T log(T x) {
  T e = exponent(x), m = mantissa(x);
  T s = (m - constant(x, 1.4142135)) ;
  s = (m - constant(x, 1.0)) / (m + constant(x, 1.0));
  T z = s * s;
  T p = polynomial(z, {2.0, 2.0/3, 2.0/5, 2.0/7, 2.0/9, 2.0/11, 2.0/13, 2.0/15, 2.0/17});
  return fma(e, constant(x, 0.6931471805599453), s * p);
}
template <class T> inline T erf(T x) {
  T a = abs(x);
  T t = constant(x, 1.0) / fma(a, constant(x, 0.3275911), constant(x, 1.0));
  T p = polynomial(t, {0.0, 0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429});
  T y = constant(x, 1.0) - p * exp(-(a * a));
  return select(lt(x, constant(x, 0.0)), -y, y);
}
template <class T> inline T gelu_tanh(T x) {
  T u = constant(x, 0.7978845608028654) * (x + constant(x, 0.044715) * x * x * x);
  return constant(x, 0.5) * x * (constant(x, 1.0) + tanh(u));
}
template <class T> inline T gelu_tanh_grad(T x, T g) {
  T u = constant(x, 0.7978845608028654) * (x + constant(x, 0.044715) * x * x * x);
  T t = tanh(u);
  T du = constant(x, 0.7978845608028654) * (constant(x, 1.0) + constant(x, 3 * 0.044715) * x * x);
  return g * (constant(x, 0.5) * (constant(x, 1.0) + t) + constant(x, 0.5) * x * (constant(x, 1.0) - t * t) * du);
}
template <class T> inline T gelu_erf(T x) { return constant(x, 0.5) * x * (constant(x, 1.0) + erf(x * constant(x, 0.7071067811865476))); }
template <class T> inline T gelu_erf_grad(T x, T g) {
  return g * (constant(x, 0.5) * (constant(x, 1.0) + erf(x * constant(x, 0.7071067811865476))) + x * exp(x * x * constant(x, -0.5)) * constant(x, 0.3989422804014327));
}
}
