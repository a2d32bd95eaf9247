#include "rondo/runtime/cpu/product.h"

#include <list>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "rondo/runtime/parallel.h"
#include "rondo/runtime/storage.h"

namespace rondo::cpu {

template <class H> H AbslHashValue(H h, const MatmulCall& c) {
  return H::combine(std::move(h), c.dtype, c.wide, c.batch, c.m, c.n, c.k, c.a_strides[0], c.a_strides[1],
                    c.a_strides[2], c.b_strides[0], c.b_strides[1], c.b_strides[2], c.c_strides[0], c.c_strides[1],
                    c.bias, c.epilogues, c.in_place);
}

namespace {

using dnnl::memory;

dnnl::engine& engine() {
  static auto* engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *engine;
}
dnnl::stream& stream() {
  static thread_local dnnl::stream stream(engine());
  return stream;
}

// Where a column of B meets few sets of the caches, a product is up to a fifth faster if B is first copied into the
// library's own layout, and copying costs a twentieth. Measured on Zen 5 in f32, GFLOP/s with the copy counted: (256 x
// 2304)(2304 x 768) 404 -> 443, (256 x 768)(768 x 3072) 426 -> 465, (1024 x 1024)(1024 x 1024) 430 -> 479; A
// transposed, (3072 x 256)(256 x 768) 417 -> 487. Rows of 384 and 1600 gain nothing. bf16 is always copied by the
// library itself.
bool packs_first(const MatmulCall& call) {
  constexpr int64_t kPage = 4096, kOwnCache = 4 << 20, kTooMuchMemory = 32 << 20, kRowsThatPay = 128;
  if (call.dtype != kF32 || call.batch > 1 || call.b_strides[2] != 1 || call.m < kRowsThatPay) return false;
  const int64_t row = call.b_strides[1] * 4, apart = row & -row, whole = call.k * call.n * 4;
  if (whole > kTooMuchMemory) return false;
  return apart >= kPage || (apart >= kPage / 4 && whole >= kOwnCache && call.a_strides[2] == 1);
}

// Binds memory whose address is set before each run.
memory unbound(const memory::desc& desc) { return memory(desc, engine(), nullptr); }

}  // namespace

struct Product::Plan {
  dnnl::matmul product;
  memory::desc a, b, bias, c, scratchpad;
  memory::desc packed_a, packed_b;  // as `a` and `b` where they are read as they are
  dnnl::reorder pack_a, pack_b;     // empty there
  bool one_thread = false;
  std::array<int, kMaxEpilogues> added = {};  // argument of each epilogue's operand, 0 where it has none
};

struct Product::Arguments {
  struct Bound {
    int argument;
    memory data;
  };
  std::vector<Bound> bound;
  std::vector<dnnl_exec_arg_t> list;

  memory& add(int argument, const memory::desc& desc) {
    bound.push_back({argument, unbound(desc)});
    list.push_back({argument, bound.back().data.get()});
    return bound.back().data;
  }
  void set(int argument, const void* data) {
    for (Bound& b : bound)
      if (b.argument == argument) return b.data.set_data_handle(const_cast<void*>(data), stream());
  }
};

Product::Product(const MatmulCall& call, int variant) {
  const auto library_type = [](DType dtype) {
    return dtype == kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
  };
  const auto type = library_type(call.dtype);
  const bool batched = call.batch > 1;
  auto desc = [&](int64_t rows, int64_t cols, const int64_t(&s)[3], memory::data_type type) {
    if (!batched) return memory::desc({rows, cols}, type, memory::dims{s[1], s[2]});
    // A stride of 0 is not a layout oneDNN knows; a shared operand is a batch of one, which it broadcasts.
    const int64_t batch = s[0] == 0 ? 1 : call.batch;
    return memory::desc({batch, rows, cols}, type, memory::dims{batch == 1 ? rows * cols : s[0], s[1], s[2]});
  };
  auto any = [&](const memory::desc& given) { return memory::desc(given.dims(), type, memory::format_tag::any); };
  auto plan = std::make_unique<Plan>();
  plan->a = desc(call.m, call.k, call.a_strides, type);
  plan->b = desc(call.k, call.n, call.b_strides, type);
  plan->c = desc(call.m, call.n, call.c_strides, library_type(call.result_dtype()));
  if (call.bias)
    plan->bias = batched ? memory::desc({1, 1, call.n}, type, memory::dims{call.n, call.n, 1})
                         : memory::desc({1, call.n}, type, memory::dims{call.n, 1});
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops post;
  for (size_t i = 0; i < kMaxEpilogues; ++i) {
    switch (call.epilogues[i]) {
      case Epilogue::kNone: break;
      case Epilogue::kWiden: break;  // call.wide
      case Epilogue::kAdd:
        if (call.in_place[i]) {
          post.append_sum(1.0f);
        } else {
          plan->added[i] = DNNL_ARG_ATTR_MULTIPLE_POST_OP(post.len()) | DNNL_ARG_SRC_1;
          post.append_binary(dnnl::algorithm::binary_add, plan->c);
        }
        break;
      case Epilogue::kGelu: post.append_eltwise(1.0f, dnnl::algorithm::eltwise_gelu_erf, 0, 0); break;
      case Epilogue::kGeluTanh: post.append_eltwise(1.0f, dnnl::algorithm::eltwise_gelu_tanh, 0, 0); break;
    }
  }
  if (post.len() > 0) attributes.set_post_ops(post);
  // The library plans for the threads that there are when the primitive is made.
  std::optional<OneThread> alone;
  if ((plan->one_thread = variant == 3)) alone.emplace();
  const bool pack_a = variant == 2, pack_b = variant == 1 || variant == 2 || packs_first(call);
  const memory::desc a = pack_a ? any(plan->a) : plan->a, b = pack_b ? any(plan->b) : plan->b;
  const dnnl::matmul::desc product = call.bias ? dnnl::matmul::desc(a, b, plan->bias, plan->c)
                                               : dnnl::matmul::desc(a, b, plan->c);
  const dnnl::matmul::primitive_desc chosen(product, attributes, engine());
  plan->scratchpad = chosen.scratchpad_desc();
  plan->product = dnnl::matmul(chosen);
  plan->packed_a = chosen.src_desc();
  plan->packed_b = chosen.weights_desc();
  const auto reorder = [&](const memory::desc& from, const memory::desc& to) {
    dnnl::primitive_attr own_scratchpad;
    own_scratchpad.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return dnnl::reorder(dnnl::reorder::primitive_desc(engine(), from, engine(), to, own_scratchpad));
  };
  if (plan->packed_a != plan->a) plan->pack_a = reorder(plan->a, plan->packed_a);
  if (plan->packed_b != plan->b) plan->pack_b = reorder(plan->b, plan->packed_b);
  plan_ = std::move(plan);
}

Product::~Product() = default;

std::unique_ptr<Product::Arguments> Product::lease() const {
  {
    std::lock_guard lock(mutex_);
    if (!spare_.empty()) {
      std::unique_ptr<Arguments> arguments = std::move(spare_.back());
      spare_.pop_back();
      return arguments;
    }
  }
  auto arguments = std::make_unique<Arguments>();
  arguments->bound.reserve(5 + kMaxEpilogues);  // `list` points into it
  arguments->add(DNNL_ARG_SRC, plan_->packed_a);
  arguments->add(DNNL_ARG_WEIGHTS, plan_->packed_b);
  arguments->add(DNNL_ARG_DST, plan_->c);
  if (plan_->bias.get_size() > 0) arguments->add(DNNL_ARG_BIAS, plan_->bias);
  for (int argument : plan_->added)
    if (argument != 0) arguments->add(argument, plan_->c);
  if (plan_->scratchpad.get_size() > 0) arguments->add(DNNL_ARG_SCRATCHPAD, plan_->scratchpad);
  return arguments;
}

void Product::run(const MatmulOperands& operands) const {
  std::optional<OneThread> alone;
  if (plan_->one_thread) alone.emplace();
  const void *a = operands.a, *b = operands.b;
  // Each run brings its scratchpad: the library's own belongs to the thread that made the primitive.
  Storage scratchpad, packed_a, packed_b;
  const auto pack = [&](const dnnl::reorder& by, const memory::desc& from, const memory::desc& to, const void* data,
                        Storage& packed) {
    if (!by) return data;
    packed = Storage::allocate(to.get_size());
    memory source(from, engine(), const_cast<void*>(data)), target(to, engine(), packed.data());
    by.execute(stream(), source, target);
    return static_cast<const void*>(packed.data());
  };
  a = pack(plan_->pack_a, plan_->a, plan_->packed_a, a, packed_a);
  b = pack(plan_->pack_b, plan_->b, plan_->packed_b, b, packed_b);
  std::unique_ptr<Arguments> arguments = lease();
  arguments->set(DNNL_ARG_SRC, a);
  arguments->set(DNNL_ARG_WEIGHTS, b);
  arguments->set(DNNL_ARG_DST, operands.c);
  if (plan_->bias.get_size() > 0) arguments->set(DNNL_ARG_BIAS, operands.bias);
  for (size_t i = 0; i < kMaxEpilogues; ++i)
    if (plan_->added[i] != 0) arguments->set(plan_->added[i], operands.added[i]);
  if (const size_t bytes = plan_->scratchpad.get_size(); bytes > 0) {
    scratchpad = Storage::allocate(bytes);
    arguments->set(DNNL_ARG_SCRATCHPAD, scratchpad.data());
  }
  dnnl::error::wrap_c_api(dnnl_primitive_execute(plan_->product.get(), stream().get(),
                                                 static_cast<int>(arguments->list.size()), arguments->list.data()),
                          "a matrix product failed");
  std::lock_guard lock(mutex_);
  spare_.push_back(std::move(arguments));
}

namespace {

// The most recent first, over all threads.
class ProductCache {
 public:
  using Key = std::pair<MatmulCall, int>;
  template <class Make> std::shared_ptr<const Product> get(const Key& key, Make make) {
    // Held while a primitive is made, too: two threads that meet a new shape want one.
    std::lock_guard lock(mutex_);
    if (auto found = entries_.find(key); found != entries_.end()) {
      order_.splice(order_.begin(), order_, found->second.position);
      return found->second.product;
    }
    std::shared_ptr<const Product> product = make();
    if (entries_.size() >= kCapacity) {
      entries_.erase(order_.back());
      order_.pop_back();
    }
    order_.push_front(key);
    entries_[key] = {product, order_.begin()};
    return product;
  }

 private:
  static constexpr size_t kCapacity = 1024;
  struct Slot {
    std::shared_ptr<const Product> product;
    std::list<Key>::iterator position;
  };
  std::mutex mutex_;
  std::list<Key> order_;
  absl::flat_hash_map<Key, Slot> entries_;
};

}  // namespace

std::shared_ptr<const Product> Product::get(const MatmulCall& call, int variant) {
  static auto* cache = new ProductCache;
  if (variant < 0 || variant > 3) return nullptr;
  return cache->get({call, variant}, [&]() -> std::shared_ptr<const Product> {
    std::shared_ptr<const Product> product(new Product(call, variant));
    if (variant == 1 && (!product->plan_->pack_b || packs_first(call))) return nullptr;
    if (variant == 2 && !product->plan_->pack_a) return nullptr;
    return product;
  });
}

}  // namespace rondo::cpu
