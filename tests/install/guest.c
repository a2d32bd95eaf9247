/* A C99 program that fine-tunes a model and writes with it.   guest MODEL_FOLDER WORK_FOLDER */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rondo/rondo_c.h"

static int failures = 0;
static void check(int holds, const char* what) {
  if (holds) return;
  ++failures;
  printf("%s; the latest error: %s\n", what, rondo_last_error());
}
#define CHECK(x) check((x), #x)
#define OK(x) check((x) == RONDO_OK, #x)

/* Collects the pieces, and stops after `wanted` of them. */
struct pieces {
  char text[4096];
  size_t bytes;
  int count, wanted;
};
static int32_t on_text(void* user, const char* piece, size_t bytes) {
  struct pieces* all = user;
  if (strlen(piece) != bytes || all->bytes + bytes >= sizeof all->text) return 1;
  memcpy(all->text + all->bytes, piece, bytes + 1);
  all->bytes += bytes;
  return ++all->count == all->wanted;
}

int main(int argc, char** argv) {
  const char* const texts[] = {"the water of the people", "the people went into the water, and we looked about"};
  rondo_model *model = NULL, *again = NULL;
  rondo_lora_options lora = {.size = sizeof lora, .rank = 4, .alpha = 8, .targets = "c_attn,c_proj,c_fc"};
  rondo_optimizer_options adamw = {.size = sizeof adamw, .lr = 1e-2, .max_grad_norm = 1};
  rondo_generate_options longer = {.size = sizeof longer, .max_new_tokens = 20};
  double first = NAN, last = NAN, same = NAN;
  int step;
  char *text = NULL, *streamed_text = NULL;
  struct pieces pieces = {.wanted = 0};
  rondo_finish_reason reason = -1;
  int32_t ids[64];
  int64_t count = 0, in_use = -1, kept = -1;
  char folder[4096];
  if (argc != 3) return 2;
  CHECK(rondo_version()[0] != 0);
  CHECK(rondo_last_error()[0] == 0);

  OK(rondo_model_create(argv[1], NULL, &model));
  OK(rondo_add_lora(model, &lora));
  OK(rondo_set_optimizer(model, &adamw));
  OK(rondo_evaluate_text(model, texts, 2, &first));
  for (step = 0; step < 30; ++step) OK(rondo_train_text(model, texts, 2, NULL));
  OK(rondo_set_learning_rate(model, 1e-3));
  OK(rondo_train_text(model, texts, 2, &last));
  CHECK(last < first - 0.4);
  printf("loss %.3f -> %.3f\n", first, last);

  OK(rondo_generate_text(model, "the people", &longer, &text, &reason));
  CHECK(text != NULL && text[0] != 0);
  CHECK(reason == RONDO_FINISH_LENGTH);
  longer.on_text = on_text;
  longer.user = &pieces;
  OK(rondo_generate_text(model, "the people", &longer, &streamed_text, NULL));
  CHECK(strcmp(text, streamed_text) == 0 && strcmp(text, pieces.text) == 0);
  printf("the people%s\n", text);
  rondo_free(text);
  rondo_free(streamed_text);
  pieces = (struct pieces){.wanted = 2};
  OK(rondo_generate_text(model, "the people", &longer, &text, &reason));
  CHECK(reason == RONDO_FINISH_CANCELLED && pieces.count <= 3);
  rondo_free(text);

  OK(rondo_encode(model, texts[1], ids, 64, &count));
  OK(rondo_decode(model, ids, count, &text));
  CHECK(strcmp(text, texts[1]) == 0);
  rondo_free(text);

  snprintf(folder, sizeof folder, "%s/adapter", argv[2]);
  OK(rondo_save_adapter(model, folder));
  OK(rondo_evaluate_text(model, texts, 2, &last));
  OK(rondo_model_create(argv[1], NULL, &again));
  OK(rondo_load_adapter(again, folder));
  OK(rondo_evaluate_text(again, texts, 2, &same));
  CHECK(same == last);
  OK(rondo_merge_adapter(again));
  snprintf(folder, sizeof folder, "%s/merged", argv[2]);
  OK(rondo_save_model(again, folder));
  OK(rondo_model_destroy(again));
  OK(rondo_model_create(folder, NULL, &again));
  OK(rondo_evaluate_text(again, texts, 2, &same));
  CHECK(fabs(same - last) < 1e-4);

  CHECK(rondo_add_lora(NULL, &lora) == RONDO_BAD_ARGUMENT);
  CHECK(rondo_model_create("/nowhere", NULL, &again) == RONDO_BAD_FILE);
  CHECK(strstr(rondo_last_error(), "/nowhere") != NULL);
  OK(rondo_model_destroy(again));
  OK(rondo_model_destroy(model));
  CHECK(rondo_train_text(model, texts, 2, &last) == RONDO_BAD_ARGUMENT);
  OK(rondo_trim_memory());
  OK(rondo_memory(&in_use, &kept));
  CHECK(in_use == 0);
  return failures != 0;
}
