#!/usr/bin/env python3
"""Fine-tunes a model through the C API with nothing but Python's ctypes.   ctypes_test.py LIBRARY MODEL_FOLDER WORK_FOLDER"""
import ctypes as c
import sys
import threading

library, model_folder, work = sys.argv[1:]
rondo = c.CDLL(library)
rondo.rondo_last_error.restype = c.c_char_p
rondo.rondo_version.restype = c.c_char_p
OK, BAD_ARGUMENT, BAD_FILE, BAD_MODEL, OUT_OF_MEMORY, BUSY = range(6)


class LoraOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("rank", c.c_int64), ("alpha", c.c_double), ("dropout", c.c_double),
                ("targets", c.c_char_p), ("rslora", c.c_int32), ("reserved", c.c_int32)]


class OptimizerOptions(c.Structure):
    _fields_ = [("size", c.c_size_t)] + [(name, c.c_double) for name in (
        "lr", "weight_decay", "beta1", "beta2", "eps", "max_grad_norm")]


OnToken = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_int32)
OnText = c.CFUNCTYPE(c.c_int32, c.c_void_p, c.c_char_p, c.c_size_t)


class GenerateOptions(c.Structure):
    _fields_ = [("size", c.c_size_t), ("max_new_tokens", c.c_int64), ("temperature", c.c_double), ("top_k", c.c_int64),
                ("top_p", c.c_double), ("repetition_penalty", c.c_double), ("stop", c.POINTER(c.c_char_p)),
                ("stop_count", c.c_int64), ("ignore_end", c.c_int32), ("slide", c.c_int32), ("on_token", OnToken),
                ("on_text", OnText), ("user", c.c_void_p)]


def options(kind, **fields):
    return kind(size=c.sizeof(kind), **fields)


def call(status):
    if status != OK:
        raise RuntimeError(rondo.rondo_last_error().decode())


def refused(status, wanted, part):
    assert status == wanted, (status, wanted)
    assert part in rondo.rondo_last_error().decode(), rondo.rondo_last_error()


def create(folder):
    model = c.c_void_p()
    call(rondo.rondo_model_create(folder.encode(), None, c.byref(model)))
    return model


def train(model, texts, steps):
    rows = (c.c_char_p * len(texts))(*[text.encode() for text in texts])
    loss, losses = c.c_double(), []
    for _ in range(steps):
        call(rondo.rondo_train_text(model, rows, c.c_int64(len(texts)), c.byref(loss)))
        losses.append(loss.value)
    return losses


def generate(model, prompt, **fields):
    text, reason = c.c_void_p(), c.c_int32()
    call(rondo.rondo_generate_text(model, prompt.encode(), c.byref(options(GenerateOptions, **fields)), c.byref(text),
                                   c.byref(reason)))
    made = c.string_at(text).decode()
    rondo.rondo_free(text)
    return made, reason.value


TEXTS = ["the water of the people", "the people went into the water, and we looked about"]


def trained():
    """The losses of a fresh model's first steps."""
    model = create(model_folder)
    call(rondo.rondo_add_lora(model, c.byref(options(LoraOptions, rank=4, targets=b"c_attn"))))
    call(rondo.rondo_set_optimizer(model, c.byref(options(OptimizerOptions, lr=1e-2))))
    losses = train(model, TEXTS, 8)
    return model, losses


assert rondo.rondo_version()
model, losses = trained()
assert losses[-1] < losses[0], losses
print("losses", losses[0], "->", losses[-1])

# Text, whole and in pieces; a callback ends it.
whole, reason = generate(model, "the people", max_new_tokens=16)
assert reason == 0
pieces = []
on_text = OnText(lambda user, piece, size: pieces.append(piece.decode()) or 0)
assert generate(model, "the people", max_new_tokens=16, on_text=on_text) == (whole, 0)
assert "".join(pieces) == whole and len(pieces) > 1
on_token = OnToken(lambda user, token: 1)
assert generate(model, "the people", max_new_tokens=16, on_token=on_token)[1] == 4
stops = (c.c_char_p * 1)(whole[3:6].encode())
cut, reason = generate(model, "the people", max_new_tokens=16, stop=stops, stop_count=1)
assert reason == 2 and cut == whole[:whole.index(whole[3:6])]

# A callback may not call with its own model; it may with another.
other = create(model_folder)
inside = []
def call_inside(user, token):
    inside.append(rondo.rondo_set_learning_rate(model, c.c_double(1e-3)))
    inside.append(rondo.rondo_set_learning_rate(other, c.c_double(1e-3)))
    return 1
generate(model, "the", on_token=OnToken(call_inside))
assert inside == [BUSY, OK], inside
call(rondo.rondo_model_destroy(other))

# Two models in two threads: each as alone.
results = {}
threads = [threading.Thread(target=lambda i=i: results.update({i: trained()})) for i in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert results[0][1] == losses and results[1][1] == losses
for i in range(2): call(rondo.rondo_model_destroy(results[i][0]))

# The adapter comes back.
adapter = work + "/adapter_of_python"
call(rondo.rondo_save_adapter(model, adapter.encode()))
again = create(model_folder)
call(rondo.rondo_load_adapter(again, adapter.encode()))
assert generate(again, "the people", max_new_tokens=16)[0] == whole

# Errors have a kind and a sentence, and harm nothing.
refused(rondo.rondo_model_create(b"/nowhere", None, c.byref(c.c_void_p())), BAD_FILE, "/nowhere")
refused(rondo.rondo_train_text(None, None, c.c_int64(1), None), BAD_ARGUMENT, "model is a null pointer")
refused(rondo.rondo_add_lora(again, c.byref(LoraOptions())), BAD_ARGUMENT, "size")
refused(rondo.rondo_add_lora(again, None), BAD_ARGUMENT, "an adapter 'default' already")
fresh = create(model_folder)
refused(rondo.rondo_add_lora(fresh, c.byref(options(LoraOptions, targets=b"q_proj"))), BAD_ARGUMENT, "c_attn")
call(rondo.rondo_model_destroy(fresh))
call(rondo.rondo_model_destroy(again))
refused(rondo.rondo_model_destroy(again), BAD_ARGUMENT, "destroyed")
call(rondo.rondo_trim_memory())
call(rondo.rondo_set_memory_limit(c.c_int64(1)))
refused(rondo.rondo_model_create(model_folder.encode(), None, c.byref(c.c_void_p())), OUT_OF_MEMORY, "limit")
call(rondo.rondo_set_memory_limit(c.c_int64(0)))
train(model, TEXTS, 1)
call(rondo.rondo_model_destroy(model))
in_use = c.c_int64(-1)
call(rondo.rondo_memory(c.byref(in_use), None))
assert in_use.value == 0, in_use.value

# dlclose() leaves the library where it is: its threads go on, and a second load finds it at work.
import _ctypes
handle = rondo._handle
for _ in range(3): _ctypes.dlclose(handle)
assert "librondo.so" in open("/proc/self/maps").read()
rondo = c.CDLL(library)
call(rondo.rondo_memory(c.byref(in_use), None))
print("ctypes: all calls behave")
