// The boundary between C and C++: checks C's pointers and structs, and returns statuses. No exception crosses it.
#include "rondo/rondo_c.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "rondo/compile/log.h"
#include "rondo/modules/pretrained/config_error.h"
#include "rondo/optim/c_api/handles.h"
#include "rondo/optim/c_api/session.h"
#include "rondo/runtime/base/parallel.h"
#include "rondo/runtime/device/allocator.h"
#include "rondo/runtime/device/memory.h"

namespace rondo::optim::c_api {
namespace {

// No padding: what a later version appends must not lie in bytes that an older program left undefined.
static_assert(sizeof(rondo_model_options) == sizeof(size_t) + 2 * sizeof(char*) + 8 + 4 * 4);
static_assert(sizeof(rondo_lora_options) == sizeof(size_t) + 3 * 8 + sizeof(char*) + 2 * 4);
static_assert(sizeof(rondo_optimizer_options) == sizeof(size_t) + 6 * 8 + 2 * 4);
static_assert(sizeof(rondo_chat_options) == sizeof(size_t) + sizeof(char*) + 2 * 4);
static_assert(sizeof(rondo_generate_options) == sizeof(size_t) + 6 * 8 + 2 * 4 + 4 * sizeof(void*));
// The values of rondo_finish_reason are those of nn::FinishReason.
static_assert(RONDO_FINISH_LENGTH == static_cast<int>(nn::FinishReason::kMaxTokens) &&
              RONDO_FINISH_END == static_cast<int>(nn::FinishReason::kStopToken) &&
              RONDO_FINISH_STOP == static_cast<int>(nn::FinishReason::kStopString) &&
              RONDO_FINISH_MODEL_FULL == static_cast<int>(nn::FinishReason::kModelFull) &&
              RONDO_FINISH_CANCELLED == static_cast<int>(nn::FinishReason::kCancelled));

// ---- Errors

struct LastError {
  std::string text;
  const char* fixed = "";  // if not null: the message, in place of `text`, which could not be stored
};
LastError& last_error() {
  static thread_local LastError error;
  return error;
}

rondo_status note(rondo_status status, const char* what) noexcept {
  LastError& error = last_error();
  try {
    error.text = what;
    error.fixed = nullptr;
  } catch (...) {
    error.fixed = "out of memory";
  }
  return status;
}

// Stores the message of the current exception, and returns its status. REQUIRES: called in a catch clause.
rondo_status note_current_exception() noexcept {
  try {
    throw;
  } catch (const BusyError& e) {
    return note(RONDO_BUSY, e.what());
  } catch (const nn::ConfigError& e) {
    return note(RONDO_BAD_MODEL, e.what());
  } catch (const nn::StateDictError& e) {
    return note(RONDO_BAD_MODEL, e.what());
  } catch (const FileError& e) {
    return note(RONDO_BAD_FILE, e.what());
  } catch (const OutOfMemoryError& e) {
    return note(RONDO_OUT_OF_MEMORY, e.what());
  } catch (const std::bad_alloc&) {
    return note(RONDO_OUT_OF_MEMORY, "out of memory");
  } catch (const StaleTensorError& e) {
    return note(RONDO_OTHER, e.what());
  } catch (const UnsupportedCpuError& e) {
    return note(RONDO_OTHER, e.what());
  } catch (const Error& e) {
    return note(RONDO_BAD_ARGUMENT, e.what());
  } catch (const std::exception& e) {
    return note(RONDO_OTHER, e.what());
  } catch (...) {
    return note(RONDO_OTHER, "a callback has thrown something that is no std::exception");
  }
}

template <class F> rondo_status guarded(F body) noexcept {
  try {
    body();
    return RONDO_OK;
  } catch (...) {
    return note_current_exception();
  }
}

// Runs body(session) when it is this call's turn.
template <class F> rondo_status with_session(const rondo_model* model, F body) noexcept {
  return guarded([&] {
    const Handle::Turn session(find_handle(model));
    body(session);
  });
}

// ---- Checking arguments and copying results

template <class T> T* required(T* pointer, const char* name) {
  if (pointer == nullptr) throw Error(absl::StrCat(name, " is a null pointer"));
  return pointer;
}

// Copies `options`, whose struct may be that of another version, to the struct of this version. REQUIRES: `options` is
// null, or points to options->size bytes.
template <class T> T read_options(const T* options, const char* name) {
  static_assert(std::is_trivially_copyable_v<T> && offsetof(T, size) == 0);
  T read{};
  if (options == nullptr) return read;
  constexpr size_t kMost = 4096;  // a larger size is a field that was never set
  const size_t size = options->size;
  if (size < sizeof(size_t) || size > kMost)
    throw Error(absl::StrCat(name, ".size is ", size, ": set it to sizeof(", name, ")"));
  const auto* bytes = reinterpret_cast<const unsigned char*>(options);
  std::memcpy(&read, bytes, std::min(size, sizeof(T)));
  if (size > sizeof(T) && std::any_of(bytes + sizeof(T), bytes + size, [](unsigned char byte) { return byte != 0; }))
    throw Error(absl::StrCat(name, " sets a field that this library (", RONDO_VERSION, ") does not know"));
  if constexpr (requires { read.reserved; })
    if (read.reserved != 0) throw Error(absl::StrCat(name, ".reserved must be 0"));
  return read;
}

// Returns a copy that the caller frees with rondo_free().
char* copy_text(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

std::vector<std::string> read_texts(const char* const* texts, int64_t count) {
  required(texts, "texts");
  std::vector<std::string> read;
  for (int64_t i = 0; i < count; ++i) {
    if (texts[i] == nullptr) throw Error(absl::StrCat("text ", i, " is a null pointer"));
    read.emplace_back(texts[i]);
  }
  return read;
}

template <class T> void set(T* out, T value) {
  if (out != nullptr) *out = value;
}

}  // namespace
}  // namespace rondo::optim::c_api

using namespace rondo;
using namespace rondo::optim::c_api;

const char* rondo_version(void) { return RONDO_VERSION; }

const char* rondo_last_error(void) {
  const LastError& error = last_error();
  return error.fixed != nullptr ? error.fixed : error.text.c_str();
}

void rondo_free(char* text) { std::free(text); }

// ---- Models

rondo_status rondo_model_create(const char* folder, const rondo_model_options* options, rondo_model** model) {
  return guarded([&] {
    required(model, "model");
    const auto read = read_options(options, "rondo_model_options");
    *model = add_handle(std::make_unique<Session>(required(folder, "folder"), read));
  });
}

rondo_status rondo_model_destroy(rondo_model* model) {
  if (model == nullptr) return RONDO_OK;
  return guarded([&] {
    Handle::Turn session(find_handle(model));
    remove_handle(model);
    session.end_session();
  });
}

rondo_status rondo_save_model(rondo_model* model, const char* folder) {
  return with_session(model, [&](auto& session) { session->save_model(required(folder, "folder")); });
}

// ---- Adapters

rondo_status rondo_add_lora(rondo_model* model, const rondo_lora_options* options) {
  return with_session(model, [&](auto& session) { session->add_lora(read_options(options, "rondo_lora_options")); });
}

rondo_status rondo_load_adapter(rondo_model* model, const char* folder) {
  return with_session(model, [&](auto& session) { session->load_adapter(required(folder, "folder")); });
}

rondo_status rondo_save_adapter(rondo_model* model, const char* folder) {
  return with_session(model, [&](auto& session) { session->save_adapter(required(folder, "folder")); });
}

rondo_status rondo_merge_adapter(rondo_model* model) {
  return with_session(model, [&](auto& session) { session->merge_adapter(); });
}

// ---- Training

rondo_status rondo_set_optimizer(rondo_model* model, const rondo_optimizer_options* options) {
  return with_session(model,
                      [&](auto& session) { session->set_optimizer(read_options(options, "rondo_optimizer_options")); });
}

rondo_status rondo_set_learning_rate(rondo_model* model, double lr) {
  return with_session(model, [&](auto& session) { session->set_learning_rate(lr); });
}

rondo_status rondo_train_tokens(rondo_model* model, const int32_t* tokens, const int32_t* labels, int64_t batch,
                                int64_t length, double* loss) {
  return with_session(model, [&](auto& session) {
    set(loss, session->train(session->rows_of(required(tokens, "tokens"), labels, batch, length)));
  });
}

rondo_status rondo_train_text(rondo_model* model, const char* const* texts, int64_t count, double* loss) {
  return with_session(model,
                      [&](auto& session) { set(loss, session->train(session->rows_of(read_texts(texts, count)))); });
}

rondo_status rondo_evaluate_tokens(rondo_model* model, const int32_t* tokens, const int32_t* labels, int64_t batch,
                                   int64_t length, double* loss) {
  return with_session(model, [&](auto& session) {
    set(required(loss, "loss"), session->evaluate(session->rows_of(required(tokens, "tokens"), labels, batch, length)));
  });
}

rondo_status rondo_evaluate_text(rondo_model* model, const char* const* texts, int64_t count, double* loss) {
  return with_session(model, [&](auto& session) {
    set(required(loss, "loss"), session->evaluate(session->rows_of(read_texts(texts, count))));
  });
}

// ---- Generation

rondo_status rondo_generate_text(rondo_model* model, const char* prompt, const rondo_generate_options* options,
                                 char** text, rondo_finish_reason* reason) {
  return with_session(model, [&](auto& session) {
    required(text, "text");
    const std::vector<int32_t> ids = session->encode(required(prompt, "prompt"));
    const nn::Generation made = session->generate(ids, read_options(options, "rondo_generate_options"));
    *text = copy_text(made.text);
    set(reason, static_cast<rondo_finish_reason>(made.reason));
  });
}

rondo_status rondo_generate_tokens(rondo_model* model, const int32_t* prompt, int64_t prompt_length,
                                   const rondo_generate_options* options, int32_t* tokens, int64_t capacity,
                                   int64_t* count, rondo_finish_reason* reason) {
  return with_session(model, [&](auto& session) {
    required(tokens, "tokens");
    required(count, "count");
    auto read = read_options(options, "rondo_generate_options");
    if (read.max_new_tokens == 0) read.max_new_tokens = 128;
    if (capacity < read.max_new_tokens)
      throw Error(absl::StrCat("capacity is ", capacity, ", but max_new_tokens is ", read.max_new_tokens));
    if (prompt_length < 0) throw Error(absl::StrCat("prompt_length is ", prompt_length));
    const std::span ids(required(prompt, "prompt"), static_cast<size_t>(prompt_length));
    const nn::Generation made = session->generate(ids, read);
    std::copy(made.tokens.begin(), made.tokens.end(), tokens);
    *count = static_cast<int64_t>(made.tokens.size());
    set(reason, static_cast<rondo_finish_reason>(made.reason));
  });
}

// ---- The tokenizer

rondo_status rondo_encode(rondo_model* model, const char* text, int32_t* ids, int64_t capacity, int64_t* count) {
  return with_session(model, [&](auto& session) {
    required(count, "count");
    if (capacity < 0) throw Error(absl::StrCat("capacity is ", capacity));
    if (capacity > 0) required(ids, "ids");
    const std::vector<int32_t> all = session->encode(required(text, "text"));
    std::copy_n(all.begin(), std::min<int64_t>(capacity, static_cast<int64_t>(all.size())), ids);
    *count = static_cast<int64_t>(all.size());
  });
}

rondo_status rondo_decode(rondo_model* model, const int32_t* ids, int64_t count, char** text) {
  return with_session(model, [&](auto& session) {
    required(text, "text");
    if (count < 0) throw Error(absl::StrCat("count is ", count));
    if (count > 0) required(ids, "ids");
    *text = copy_text(session->decode({ids, static_cast<size_t>(count)}));
  });
}

// ---- Chats

rondo_status rondo_encode_chat(rondo_model* model, const char* conversation, const rondo_chat_options* options,
                               int32_t* ids, int32_t* labels, int64_t capacity, int64_t* count) {
  return with_session(model, [&](auto& session) {
    required(count, "count");
    if (capacity < 0) throw Error(absl::StrCat("capacity is ", capacity));
    if (capacity > 0) required(ids, "ids");
    const Session::Chat chat = session->encode_chat(required(conversation, "conversation"),
                                                    read_options(options, "rondo_chat_options"), labels != nullptr);
    const auto kept = std::min<int64_t>(capacity, static_cast<int64_t>(chat.ids.size()));
    std::copy_n(chat.ids.begin(), kept, ids);
    if (labels != nullptr) std::copy_n(chat.labels.begin(), kept, labels);
    *count = static_cast<int64_t>(chat.ids.size());
  });
}

// ---- Settings of the process

rondo_status rondo_set_num_threads(int32_t threads) {
  return guarded([&] { set_num_threads(threads); });
}

rondo_status rondo_set_memory_limit(int64_t bytes) {
  return guarded([&] { memory::set_limit(bytes); });
}

rondo_status rondo_set_cache_limit(int64_t bytes) {
  return guarded([&] { allocator::set_cache_limit(bytes); });
}

rondo_status rondo_memory(int64_t* in_use, int64_t* kept) {
  return guarded([&] {
    const AllocatorStats stats = allocator::stats();
    set(in_use, stats.bytes_in_use);
    set(kept, stats.bytes_reserved - stats.bytes_in_use);
  });
}

rondo_status rondo_trim_memory(void) {
  return guarded([] { memory::trim(); });
}

rondo_status rondo_set_log(void (*log)(void* user, const char* message), void* user) {
  return guarded([&] {
    compile::log::Sink sink;
    if (log != nullptr) sink = [=](std::string_view message) { log(user, std::string(message).c_str()); };
    compile::log::set_log_sink(std::move(sink));
  });
}
