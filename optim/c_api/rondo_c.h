/* Rondo's C API: a published language model is fine-tuned inside your process, and writes text. For C programs and for
 * languages that call C, such as Python's ctypes. Plain C99, and valid C++; C++ programs have more in rondo/rondo.h.
 *
 *   rondo_model* model = NULL;
 *   rondo_lora_options lora = {.size = sizeof lora, .rank = 8};
 *   double loss = 0;
 *   if (rondo_model_create("models/gpt2", NULL, &model) != RONDO_OK) return fail(rondo_last_error());
 *   rondo_add_lora(model, &lora);                                       // every call returns a status: check it
 *   for (int step = 0; step < 100; ++step) rondo_train_text(model, texts, 4, &loss);
 *   char* text = NULL;
 *   rondo_generate_text(model, "Once upon a time", NULL, &text, NULL);
 *   puts(text);
 *   rondo_free(text);
 *   rondo_save_adapter(model, "adapter");
 *   rondo_model_destroy(model);
 *
 * Errors. Every call returns RONDO_OK or the kind of the error, and rondo_last_error() returns the message. No call
 * ends the process or throws. A null pointer where an object is required, and a handle that was destroyed, are
 * RONDO_BAD_ARGUMENT. A call that fails changes no output argument. A training call that fails has changed no weight.
 *
 * Options. A null pointer means all defaults. Set `size` to the size of the struct; a field that is 0 has its default.
 * So later versions can append fields, and programs that were built before still work. A program that sets a field
 * which this library does not know gets RONDO_BAD_ARGUMENT. In C++: `rondo_lora_options lora{}; lora.size = sizeof
 * lora;`
 *
 * Threads. Any thread may make any call. Calls with one handle run one at a time, in the order in which they came: a
 * call waits for those before it. A callback may not use the handle whose call is running it: RONDO_BUSY. Calls with
 * different handles run at the same time and give the results that they give alone. Note [Threads] in
 * runtime/base/parallel.h says which threads Rondo starts.
 *
 * Loading. A program may dlopen() the shared library. dlclose() leaves the library loaded, because its threads and
 * compiled code live as long as the process; another dlopen() finds its state unchanged.
 *
 * Text is UTF-8 and ends with a NUL byte. Token ids are int32_t. Folders are in Hugging Face's layout.
 */
#ifndef RONDO_C_H_
#define RONDO_C_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RONDO_API __attribute__((visibility("default")))
#else
#define RONDO_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t rondo_status;
enum {
  RONDO_OK = 0,
  RONDO_BAD_ARGUMENT = 1,  /* a null pointer, an option out of range, a shape, a handle that was destroyed */
  RONDO_BAD_FILE = 2,      /* a file cannot be read or written */
  RONDO_BAD_MODEL = 3,     /* config.json is not supported, or tensors of a model or adapter do not fit */
  RONDO_OUT_OF_MEMORY = 4, /* the host or a GPU has none left, or rondo_set_memory_limit() is reached */
  RONDO_BUSY = 5,          /* a callback used the handle whose call is running it */
  RONDO_OTHER = 6          /* anything else, such as a processor that lacks an instruction set */
};

/* A model with its tokenizer and its optimizer. */
typedef struct rondo_model rondo_model;

/* Returns the version of the library, such as "0.1.0". */
RONDO_API const char* rondo_version(void);

/* Returns the message of this thread's latest failed call, or "" if none has failed. Never null. The text is valid
 * until another call of this thread fails. */
RONDO_API const char* rondo_last_error(void);

/* Frees a text that a call returned. Null: does nothing. */
RONDO_API void rondo_free(char* text);

/* ---- Models ---- */

typedef struct rondo_model_options {
  size_t size;
  const char* dtype;            /* of the weights: "float32" (default), "bfloat16", "float16", "float64"; "auto": as in
                                   the files */
  uint64_t seed;                /* of adapters, dropout and sampling. The same calls then give the same bits */
  int32_t compile;              /* 1: the block that the model repeats is compiled. Needs a build with LLVM */
  int32_t bf16;                 /* 1: products in bfloat16; weights keep their dtype */
  int32_t allow_unknown_fields; /* 1: fields of config.json that this version does not know are ignored */
  int32_t reserved;             /* 0 */
  const char* device;           /* where it trains and generates: "cpu" (default), "cuda", or "cuda:1" for the second
                                   GPU. Without such a device the call fails and rondo_last_error() says why */
} rondo_model_options;

/* Reads a language model (GPT-2, Llama, Qwen, Mistral) from its folder, and its tokenizer if the folder has one. */
RONDO_API rondo_status rondo_model_create(const char* folder, const rondo_model_options* options, rondo_model** model);

/* Frees everything that the handle holds, after the calls that came before. Null: does nothing. */
RONDO_API rondo_status rondo_model_destroy(rondo_model* model);

/* Writes config.json, model.safetensors and the tokenizer's files. An adapter must be merged first. */
RONDO_API rondo_status rondo_save_model(rondo_model* model, const char* folder);

/* ---- Adapters (LoRA) ---- */

typedef struct rondo_lora_options {
  size_t size;
  int64_t rank;        /* default 8 */
  double alpha;        /* default 8; the update is scaled by alpha / rank */
  double dropout;      /* probability, default 0 */
  const char* targets; /* names of modules with commas between; default "all-linear" */
  int32_t rslora;      /* 1: the update is scaled by alpha / sqrt(rank) */
  int32_t reserved;    /* 0 */
} rondo_lora_options;

/* Adds an adapter. The base is frozen from here on, and the optimizer starts anew, with the settings of
 * rondo_set_optimizer(). A rate set by rondo_set_learning_rate() is lost: set it again. */
RONDO_API rondo_status rondo_add_lora(rondo_model* model, const rondo_lora_options* options);
/* Reads an adapter that rondo_save_adapter() or PEFT has written, and makes it the adapter to train. */
RONDO_API rondo_status rondo_load_adapter(rondo_model* model, const char* folder);
/* Writes the adapter in files that PEFT reads, too. */
RONDO_API rondo_status rondo_save_adapter(rondo_model* model, const char* folder);
/* Adds the adapter to the weights for good and removes it. From then on all weights are trained. */
RONDO_API rondo_status rondo_merge_adapter(rondo_model* model);

/* ---- Training ---- */

typedef struct rondo_optimizer_options { /* AdamW */
  size_t size;
  double lr;            /* default 1e-3 */
  double weight_decay;  /* default 0 */
  double beta1;         /* default 0.9 */
  double beta2;         /* default 0.999 */
  double eps;           /* default 1e-8 */
  double max_grad_norm; /* gradients are clipped to this norm; default: not clipped */
  int32_t no_masters;   /* 0: weights of 16 bits have an f32 weight in the optimizer, which steps update (4 bytes each).
                           1: steps update the 16 bits themselves, and small updates are lost */
  int32_t reserved;     /* 0 */
} rondo_optimizer_options;

/* Starts a new optimizer with these settings. Without this call, the first step starts one with the defaults. */
RONDO_API rondo_status rondo_set_optimizer(rondo_model* model, const rondo_optimizer_options* options);
/* Sets the learning rate from the next step on, and keeps the moments. Use it for schedules. */
RONDO_API rondo_status rondo_set_learning_rate(rondo_model* model, double lr);

/* Makes one step on `batch` rows of `length` tokens: forward, backward, update. `labels` are the targets: label i of a
 * row is compared with the prediction from the tokens before i; -100 is not compared. Null: the tokens themselves. Pad
 * rows on the right, with label -100. `loss` gets the mean cross-entropy in nats before the update, and may be null. */
RONDO_API rondo_status rondo_train_tokens(rondo_model* model, const int32_t* tokens, const int32_t* labels,
                                          int64_t batch, int64_t length, double* loss);
/* Like rondo_train_tokens(), but on `count` texts, one row each. Texts are not cut: a text with more tokens than the
 * model takes is an error. The text of a special token, such as <|endoftext|>, becomes that token, and no end-of-text
 * token is added. If only a part of a text is to count in the loss, use rondo_encode() and rondo_train_tokens() with
 * labels. */
RONDO_API rondo_status rondo_train_text(rondo_model* model, const char* const* texts, int64_t count, double* loss);

/* These two only compute the loss: they change nothing, and dropout is off. */
RONDO_API rondo_status rondo_evaluate_tokens(rondo_model* model, const int32_t* tokens, const int32_t* labels,
                                             int64_t batch, int64_t length, double* loss);
RONDO_API rondo_status rondo_evaluate_text(rondo_model* model, const char* const* texts, int64_t count, double* loss);

/* ---- Generation, also between training steps ---- */

typedef struct rondo_generate_options {
  size_t size;
  int64_t max_new_tokens;    /* default 128 */
  double temperature;        /* default 0: always the most likely token */
  int64_t top_k;             /* only the k most likely tokens; default: all */
  double top_p;              /* only the most likely tokens that together have this probability; default: all */
  double repetition_penalty; /* default 1: none */
  const char* const* stop;   /* texts that end the generation and are not part of the result */
  int64_t stop_count;
  int32_t ignore_end; /* 1: goes on after end tokens, which otherwise end the text: eos_token_id of
                         generation_config.json, or else of config.json, and the tokenizer's end-of-text token */
  int32_t slide;      /* 1: beyond the model's length, goes on with the last tokens that fit */
  /* Called on this thread with each new token, and with each new piece of text as soon as it is certain: whole
   * characters, never the start of a stop text. The pieces together are the result. `bytes` counts without the NUL
   * byte at the end. Returning anything but 0 ends the generation. */
  int32_t (*on_token)(void* user, int32_t token);
  int32_t (*on_text)(void* user, const char* piece, size_t bytes);
  void* user; /* for the callbacks */
} rondo_generate_options;

typedef int32_t rondo_finish_reason;
enum {
  RONDO_FINISH_LENGTH = 0,     /* max_new_tokens are made */
  RONDO_FINISH_END = 1,        /* an end token */
  RONDO_FINISH_STOP = 2,       /* a stop text */
  RONDO_FINISH_MODEL_FULL = 3, /* the model has no position for another token */
  RONDO_FINISH_CANCELLED = 4   /* a callback returned something else than 0 */
};

/* Generates text after the prompt. `text` gets the new text, without the prompt: give it to rondo_free(). `reason` may
 * be null. */
RONDO_API rondo_status rondo_generate_text(rondo_model* model, const char* prompt,
                                           const rondo_generate_options* options, char** text,
                                           rondo_finish_reason* reason);
/* Like rondo_generate_text(), but on token ids. Needs no tokenizer, except for `stop` and `on_text`. `tokens` has room
 * for `capacity` ids, at least max_new_tokens; `count` gets the number of new ids. */
RONDO_API rondo_status rondo_generate_tokens(rondo_model* model, const int32_t* prompt, int64_t prompt_length,
                                             const rondo_generate_options* options, int32_t* tokens, int64_t capacity,
                                             int64_t* count, rondo_finish_reason* reason);

/* ---- The tokenizer ---- */

/* Encodes a text. `count` gets the number of ids, and `ids` the first `capacity` of them. With capacity 0, `ids` may be
 * null. This call and the calls above neither truncate nor pad texts, whatever tokenizer.json says. */
RONDO_API rondo_status rondo_encode(rondo_model* model, const char* text, int32_t* ids, int64_t capacity,
                                    int64_t* count);
/* Decodes token ids. `text` gets the text, without special tokens: give it to rondo_free(). */
RONDO_API rondo_status rondo_decode(rondo_model* model, const int32_t* ids, int64_t count, char** text);

/* ---- Chats ---- */

typedef struct rondo_chat_options {
  size_t size;
  const char* chat_template;     /* one of the folder's templates by its name, or a whole Jinja template; default: the
                                    folder's own (chat_template.jinja, or chat_template in tokenizer_config.json) */
  int32_t add_generation_prompt; /* 1: ends where the assistant's reply begins, for rondo_generate_tokens() */
  int32_t reserved;              /* 0 */
} rondo_chat_options;

/* Encodes a conversation with the model's chat template. `conversation` is JSON: an array of messages such as
 * [{"role": "user", "content": "Hello!"}], or an object with "messages", and with "tools", "documents" and
 * "chat_template_kwargs" if there are any. The text of a special token in a message stays ordinary text. `ids` and
 * `count` are as in rondo_encode(). `labels` gets labels for rondo_train_tokens(): the ids of what the assistant says,
 * and -100 for all other ids. `labels` may be null, and must be null with add_generation_prompt. If labels are wanted
 * and the template does not show exactly which ids are the assistant's, the call returns RONDO_BAD_ARGUMENT, and the
 * message says what to do. */
RONDO_API rondo_status rondo_encode_chat(rondo_model* model, const char* conversation,
                                         const rondo_chat_options* options, int32_t* ids, int32_t* labels,
                                         int64_t capacity, int64_t* count);

/* ---- Settings of the process, for all models ---- */

/* Sets how many threads one call uses for its arithmetic, the calling thread included. Default: the cores that the
 * process may use. Results do not depend on the number. */
RONDO_API rondo_status rondo_set_num_threads(int32_t threads);
/* Sets the most bytes of host memory that Rondo's tensors and its cache of freed memory take together; a call that
 * needs more returns RONDO_OUT_OF_MEMORY. 0: no limit, which is the default. A GPU's memory is neither limited nor
 * counted. */
RONDO_API rondo_status rondo_set_memory_limit(int64_t bytes);
/* Sets the most bytes of freed memory that are kept for reuse; 0 keeps none of the large blocks. Default: half of the
 * memory that the process may use. */
RONDO_API rondo_status rondo_set_cache_limit(int64_t bytes);
/* Gets bytes of host memory: `in_use` by tensors, and `kept` for reuse after they were freed. Either may be null. */
RONDO_API rondo_status rondo_memory(int64_t* in_use, int64_t* kept);
/* Gives memory that is kept for reuse back to the system. */
RONDO_API rondo_status rondo_trim_memory(void);
/* Sends warnings of the compiler to `log`, one message per call, from any thread. By default and if `log` is null they
 * go to stderr. `log` may not call Rondo. The environment variable RONDO_LOGS chooses topics. */
RONDO_API rondo_status rondo_set_log(void (*log)(void* user, const char* message), void* user);

#ifdef __cplusplus
}
#endif

#endif /* RONDO_C_H_ */
