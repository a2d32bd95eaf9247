#include "rondo/optim/c_api/session.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "rondo/compile/compile.h"
#include "rondo/modules/lora/lora.h"
#include "rondo/modules/pretrained/end_tokens.h"
#include "rondo/optim/c_api/text_stream.h"
#include "rondo/optim/compile.h"
#include "rondo/runtime/autograd/autograd.h"
#include "rondo/runtime/data/chat_template.h"
#include "rondo/runtime/data/text_encoder.h"
#include "rondo/runtime/data/token_data.h"
#include "rondo/runtime/device/backend.h"
#include "rondo/runtime/op/amp.h"
#include "rondo/runtime/random/random.h"

namespace rondo::optim::c_api {
namespace {

nn::PretrainedOptions pretrained_options(const rondo_model_options& options) {
  nn::PretrainedOptions out{.allow_unknown_fields = options.allow_unknown_fields != 0};
  if (options.dtype == nullptr) return out;
  const std::string name = options.dtype;
  if (name == "auto") out.dtype = std::nullopt;
  else if (name == "float32") out.dtype = kF32;
  else if (name == "bfloat16") out.dtype = kBF16;
  else if (name == "float16") out.dtype = kF16;
  else if (name == "float64") out.dtype = kF64;
  else
    throw Error(absl::StrCat("dtype \"", name, "\": there are float32, bfloat16, float16, float64, and auto, which is ",
                             "that of the files"));
  return out;
}

// Returns the device that the options name. Called before the files are read. Throws Error if there is no such device.
Device device_of(const rondo_model_options& options) {
  const Device device = options.device == nullptr ? kCPU : parse_device(options.device);
  require_device(device);
  return device;
}

std::string from_root(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(folder, error);
  return error ? folder : path.string();
}

double or_default(double value, double usual) { return value == 0 ? usual : value; }

void check_not_negative(const char* name, double value) {
  if (!std::isfinite(value) || value < 0) throw Error(absl::StrCat(name, " is ", value, ": it must be 0 or more"));
}

}  // namespace

// In this scope, this thread draws its random numbers from the session's stream; afterwards from its own stream again.
class Session::RandomScope {
 public:
  explicit RandomScope(Session& session)
      : session_(session),
        generator_(default_generator()),
        seed_before_(generator_.seed()),
        offset_before_(generator_.offset()) {
    generator_.set_state(session.options_.seed, session.random_offset_);
  }
  ~RandomScope() {
    session_.random_offset_ = generator_.offset();
    generator_.set_state(seed_before_, offset_before_);
  }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  Session& session_;
  Generator& generator_;
  const uint64_t seed_before_, offset_before_;
};

Session::Session(const std::string& folder, const rondo_model_options& options)
    : folder_(folder),
      tokenizer_folder_(from_root(folder)),
      options_(options),
      device_(device_of(options)),
      model_(nn::AutoModelForCausalLM::from_pretrained(folder, pretrained_options(options))),
      vocab_size_(model_.vocab_size()),
      positions_(model_.max_length()) {
  if (text::AutoTokenizer::is_in(folder)) tokenizer_.emplace(text::AutoTokenizer::from_pretrained(folder));
  end_tokens_ = nn::end_tokens(folder, tokenizer_ ? &*tokenizer_ : nullptr);
  // The model cannot generate an id outside of its vocabulary, so such an end token would end nothing.
  std::erase_if(end_tokens_, [&](int64_t id) { return id >= vocab_size_; });
  model_->to(device_);
  if (options.compile != 0) compile::compile_regions(*model_);
}

void Session::save_model(const std::string& folder) {
  // The tokenizer's files are copied first. config.json is written last, so a folder with a config.json is complete.
  if (tokenizer_) text::AutoTokenizer::copy_files(tokenizer_folder_, folder);
  model_.save_pretrained(folder);
}

// ---- Adapters. They change which parameters are trained, so each of these functions drops the optimizer.

void Session::add_lora(const rondo_lora_options& options) {
  const RandomScope random(*this);
  nn::add_lora(*model_, {.rank = options.rank == 0 ? 8 : options.rank,
                         .alpha = or_default(options.alpha, 8),
                         .dropout = options.dropout,
                         .targets = absl::StrSplit(options.targets == nullptr ? "all-linear" : options.targets, ','),
                         .rslora = options.rslora != 0});
  optimizer_.reset();
}

void Session::load_adapter(const std::string& folder) {
  nn::load_adapter(*model_, folder);
  optimizer_.reset();
}

void Session::save_adapter(const std::string& folder) {
  nn::save_adapter(*model_, folder, {.base_model_name_or_path = folder_});
}

void Session::merge_adapter() {
  nn::merge_and_unload(*model_);
  model_->requires_grad_();
  optimizer_.reset();
}

// ---- Training

void Session::set_optimizer(const rondo_optimizer_options& options) {
  check_not_negative("lr", options.lr);
  check_not_negative("weight_decay", options.weight_decay);
  check_not_negative("eps", options.eps);
  check_not_negative("max_grad_norm", options.max_grad_norm);
  for (const double beta : {options.beta1, options.beta2})
    if (!(beta >= 0 && beta < 1))
      throw Error(absl::StrCat("beta1 or beta2 is ", beta, ": it must be from 0 to below 1"));
  optimizer_options_ = options;
  optimizer_.reset();
}

void Session::set_learning_rate(double lr) {
  check_not_negative("lr", lr);
  optimizer().set_lr(lr);
}

Optimizer& Session::optimizer() {
  if (optimizer_ != nullptr) return *optimizer_;
  const rondo_optimizer_options& o = optimizer_options_;
  auto made = std::make_unique<AdamW>(model_->parameters(),
                                      AdamWOptions{.lr = or_default(o.lr, 1e-3),
                                                   .betas = {or_default(o.beta1, 0.9), or_default(o.beta2, 0.999)},
                                                   .eps = or_default(o.eps, 1e-8),
                                                   .weight_decay = o.weight_decay,
                                                   .masters = o.no_masters == 0});
  if (options_.compile != 0) optim::compile(*made);
  optimizer_ = std::move(made);
  return *optimizer_;
}

Session::Rows Session::rows_of(const int32_t* tokens, const int32_t* labels, int64_t batch, int64_t length) const {
  constexpr int64_t kMostRows = 1 << 24;
  if (batch < 1 || batch > kMostRows)
    throw Error(absl::StrCat("batch is ", batch, ": there may be 1 to ", kMostRows, " rows"));
  if (length < 2) throw Error(absl::StrCat("length is ", length, ": a row needs two tokens, to predict one of them"));
  if (length > positions_ + 1)
    throw Error(absl::StrCat("length is ", length, ", but the model has ", positions_, " positions: cut the rows"));
  const int64_t count = batch * length;
  const int32_t* const wanted = labels == nullptr ? tokens : labels;
  return {batch, length, {tokens, tokens + count}, {wanted, wanted + count}};
}

Session::Rows Session::rows_of(std::span<const std::string> texts) const {
  std::vector<std::vector<int32_t>> rows;
  size_t length = 0;
  for (const std::string& text : texts) {
    rows.push_back(encode(text));
    const size_t tokens = rows.back().size();
    if (tokens < 2)
      throw Error(
          absl::StrCat("text ", rows.size() - 1, " has ", tokens, " tokens: it needs two, to predict one of them"));
    if (static_cast<int64_t>(tokens) > positions_ + 1)
      throw Error(absl::StrCat("text ", rows.size() - 1, " has ", tokens, " tokens, but the model has ", positions_,
                               " positions: cut it"));
    length = std::max(length, tokens);
  }
  if (rows.empty()) throw Error("count is 0: there must be a text");
  Rows out{static_cast<int64_t>(rows.size()), static_cast<int64_t>(length), {}, {}};
  for (const std::vector<int32_t>& row : rows) {
    const size_t padding = length - row.size();
    out.tokens.insert(out.tokens.end(), row.begin(), row.end());
    out.tokens.insert(out.tokens.end(), padding, 0);
    out.labels.insert(out.labels.end(), row.begin(), row.end());
    out.labels.insert(out.labels.end(), padding, data::kIgnoreIndex);
  }
  return out;
}

Tensor Session::loss_of(const Rows& rows) {
  // Position i predicts label i + 1.
  const int64_t B = rows.batch, T = rows.length - 1;
  std::vector<int64_t> x, y;
  x.reserve(static_cast<size_t>(B * T));
  y.reserve(static_cast<size_t>(B * T));
  for (int64_t b = 0; b < B; ++b)
    for (int64_t t = 0; t < T; ++t) {
      const auto at = static_cast<size_t>(b * rows.length + t);
      x.push_back(rows.tokens[at]);
      y.push_back(rows.labels[at + 1]);
    }
  const auto check = [&](int64_t id, const char* what) {
    if (id < 0 || id >= vocab_size_)
      throw Error(absl::StrCat(what, " ", id, " is not one of the model's ", vocab_size_, " tokens"));
  };
  for (const int64_t id : x) check(id, "token");
  bool any = false;
  for (const int64_t id : y)
    if (id != data::kIgnoreIndex) check(id, "label"), any = true;
  if (!any) throw Error("no label is compared: all but the first of each row are -100");
  std::optional<amp::Autocast> lower;
  if (options_.bf16 != 0) lower.emplace(kBF16);
  return model_.loss(Tensor::from(x, {B, T}, device_), Tensor::from(y, {B, T}, device_));
}

double Session::train(const Rows& rows) {
  const RandomScope random(*this);
  Optimizer& update = optimizer();
  model_->train();
  try {
    const Tensor loss = loss_of(rows);
    loss.backward();
    const double max_norm = optimizer_options_.max_grad_norm;
    update.step({.max_norm = max_norm == 0 ? std::numeric_limits<double>::infinity() : max_norm, .zero_grad = true});
    return loss.item();
  } catch (...) {
    model_->zero_grad();  // what backward has added so far is no part of the next step
    throw;
  }
}

double Session::evaluate(const Rows& rows) {
  const RandomScope random(*this);
  const NoGrad off;
  model_->eval();
  return loss_of(rows).item();
}

// ---- Generation

nn::Generation Session::generate(std::span<const int32_t> prompt, const rondo_generate_options& o) {
  if (o.stop_count < 0 || (o.stop_count > 0 && o.stop == nullptr))
    throw Error(absl::StrCat("stop_count is ", o.stop_count, (o.stop == nullptr ? ", and stop is null" : "")));
  std::vector<std::string> stops;
  for (int64_t i = 0; i < o.stop_count; ++i) {
    if (o.stop[i] == nullptr) throw Error(absl::StrCat("stop text ", i, " is a null pointer"));
    stops.emplace_back(o.stop[i]);
  }
  for (const int32_t id : prompt)
    if (id < 0 || id >= vocab_size_)
      throw Error(absl::StrCat("token ", id, " of the prompt is not one of the model's ", vocab_size_, " tokens"));
  nn::GenerationOptions options{.max_new_tokens = o.max_new_tokens == 0 ? 128 : o.max_new_tokens,
                                .repetition_penalty = or_default(o.repetition_penalty, 1),
                                .temperature = o.temperature,
                                .top_k = o.top_k,
                                .top_p = or_default(o.top_p, 1),
                                .stop_strings = stops,
                                .slide = o.slide != 0};
  if (o.ignore_end == 0) options.stop_tokens = end_tokens_;
  if (tokenizer_) options.decode = [&](std::span<const int64_t> tokens) { return text_after(prompt, tokens); };
  std::optional<TextStream> stream;
  if (o.on_text != nullptr) {
    tokenizer();  // throws if the model has no tokenizer
    stream.emplace(options.decode, stops,
                   [&](const std::string& piece) { return o.on_text(o.user, piece.c_str(), piece.size()) == 0; });
  }
  if (o.on_token != nullptr || stream)
    options.on_token = [&](int64_t, int64_t token) {
      const bool go_on = o.on_token == nullptr || o.on_token(o.user, static_cast<int32_t>(token)) == 0;
      return (!stream || stream->add(token)) && go_on;
    };
  const RandomScope random(*this);
  std::optional<amp::Autocast> lower;
  if (options_.bf16 != 0) lower.emplace(kBF16);
  nn::Generation made = nn::generate(model_.causal_lm(), prompt, options);
  if (stream) stream->finish(made.text);
  return made;
}

// ---- Encoding and decoding text

const text::PreTrainedTokenizer& Session::tokenizer() const {
  if (!tokenizer_) throw Error(absl::StrCat(folder_, " has no tokenizer: use the calls that take token ids"));
  return *tokenizer_;
}

void Session::check_ids(std::span<const int32_t> ids) const {
  if (const auto largest = std::max_element(ids.begin(), ids.end()); largest != ids.end() && *largest >= vocab_size_)
    throw Error(absl::StrCat("the tokenizer in ", folder_, " is not this model's: it makes id ", *largest,
                             ", and the model has ", vocab_size_, " tokens"));
}

std::vector<int32_t> Session::encode(const std::string& text) const {
  // Encodes the whole text: truncation and padding of tokenizer.json are ignored.
  std::vector<int32_t> ids = tokenizer().encode(text, data::plain_encoding(true, false));
  check_ids(ids);
  return ids;
}

Session::Chat Session::encode_chat(const std::string& conversation, const rondo_chat_options& options,
                                   bool with_labels) const {
  if (options.add_generation_prompt != 0 && with_labels)
    throw Error("labels with add_generation_prompt: a prompt has none");
  const data::ChatEncoder encoder = data::ChatEncoder::of_jinja(
      tokenizer(), options.chat_template == nullptr ? "" : options.chat_template);
  Chat out;
  if (with_labels) {
    data::Example example = encoder.example_of_json(conversation);
    out.ids = std::move(example.ids);
    for (size_t i = 0; i < out.ids.size(); ++i)
      out.labels.push_back(example.targets[i] ? out.ids[i] : static_cast<int32_t>(data::kIgnoreIndex));
  } else {
    out.ids = encoder.ids_of_json(conversation, options.add_generation_prompt != 0);
  }
  check_ids(out.ids);
  return out;
}

std::string Session::decode(std::span<const int32_t> ids) const { return tokenizer().decode(ids); }

std::string Session::text_after(std::span<const int32_t> prompt, std::span<const int64_t> tokens) const {
  std::vector<int32_t> ids(prompt.begin(), prompt.end());
  const std::string before = tokenizer_->decode(ids);
  ids.insert(ids.end(), tokens.begin(), tokens.end());
  const std::string all = tokenizer_->decode(ids);
  // A decoder may drop the space at the start of a text. So this takes what the new tokens add to the prompt's text:
  // the text of the new tokens alone may lack a space.
  if (all.starts_with(before)) return all.substr(before.size());
  return tokenizer_->decode(std::span(ids).subspan(prompt.size()));
}

}  // namespace rondo::optim::c_api
