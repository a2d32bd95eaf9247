// image_captioning --study: every row of the published study (study_rows.h), ours and, with --study_peer, another
// framework's, in turns.
//
//   image_captioning --study                               # ours, f32 and bf16; leaves captioning_study/
//   image_captioning --study --study_rows=eager,marked --study_peer="python3 tests/bench/peers/captioning.py"
//   image_captioning --study --full --device=cuda          # the study's own size
//
// A row is a process of its own with an empty cache: this program once more, with the row's options. It runs
// --untimed_steps steps, --study_steps timed ones, and the first ones' batches again (run_report.h). Both frameworks
// start with the same weights and see the same batches, in the same order.
//
// The folder gets runs/, a JSON file and a log for each process, and study.txt and study.html after each row. What has
// its file is not measured again: a study that was killed goes on, and a row that failed is tried again. --study_peer
// is a command, with settings in front of it if need be: "OMP_NUM_THREADS=1 python3 peer.py".
//
// A peer is called with --row=NAME --report=FILE --initial=FOLDER --batch_size=N --untimed_steps=N --timed_steps=N
// --threads=N --dtype=float32|bfloat16 --device=D --learning_rate=X --processes=N --artifact=FILE --fill=0|1, and
// writes the report. FOLDER holds the model (model.safetensors, config.json, as transformers names them) and
// data.safetensors: labels i64 (N, T) with -100 behind each caption, and pixels as slices of one field: starts i64 (N),
// field f32.
// --fill=1: only leave compiled code in the cache, or in the artifact. The cache is empty or filled, and given by
// TORCHINDUCTOR_CACHE_DIR and TRITON_CACHE_DIR.
#pragma once

#include "rondo/examples/image_captioning/options.h"

namespace rondo::examples {

// Returns the exit status: 1 if a row failed. `one_dtype`: only options.dtype; else bf16, too, where the CPU has it.
// Throws Error if the folder holds another study.
int run_study(const CaptioningOptions& options, bool one_dtype);

}  // namespace rondo::examples
