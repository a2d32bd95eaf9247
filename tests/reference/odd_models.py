#!/usr/bin/env python3
"""Compares Rondo with transformers and PEFT on random, odd configurations of all families.

    cmake --build build/release --target odd_models
    odd_models.py build/release/bin/odd_models [--count 80] [--seed 1] [--keep FOLDER]

Each configuration is a tiny published folder with odd fields, names of tensors or shards, and an adapter or two. Compared
are logits, ten losses of training, what save_pretrained and save_adapter write (loaded by transformers and PEFT), greedy
tokens, PEFT's adapters in Rondo and Rondo's in PEFT, and merged models. Each stage is `equal`, `refused` by Rondo with a
message, `loose` (the reference refuses, Rondo does not), or SILENT: both compute, and they differ. Exit status 1 if
there is a silent difference, or an error that is no refusal. Needs torch, transformers and peft; not part of CTest.
"""
import argparse
import collections
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
import transformers as tr  # noqa: E402
import peft  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

torch.set_num_threads(1)
tr.logging.set_verbosity_error()
tr.logging.disable_progress_bar()
warnings.simplefilter("ignore")

VOCAB = 61
HEADS = {"base": tr.AutoModel, "causal": tr.AutoModelForCausalLM, "sequence": tr.AutoModelForSequenceClassification,
         "token": tr.AutoModelForTokenClassification, "masked": tr.AutoModelForMaskedLM, "image": tr.AutoModelForImageClassification}


class Case:
    """A random configuration. `config` is what config.json will say; odd fields are set after transformers wrote it."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.family = self.r.choice(["gpt2", "llama", "llama", "qwen2", "qwen3", "mistral", "bert", "roberta", "distilbert",
                                     "vit"])
        self.changes, self.embedded = {}, False
        self.B, self.T = self.r.choice([1, 2, 3]), 12
        getattr(self, {"qwen2": "llama", "qwen3": "llama", "mistral": "llama", "roberta": "bert"}.get(
            self.family, self.family))()

    def maybe(self, share, **changes):
        if self.r.random() < share:
            self.changes.update(changes)

    # ---- Families

    def gpt2(self):
        r = self.r
        self.task = r.choice(["causal", "causal", "causal", "base"])
        self.config = dict(vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=2, n_head=r.choice([2, 4]))
        self.maybe(0.3, n_inner=r.choice([None, 24, 40]))
        self.maybe(0.4, activation_function=r.choice(["gelu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "relu"]))
        self.maybe(0.3, layer_norm_epsilon=r.choice([1e-3, 1e-6, 1]))
        self.maybe(0.2, n_ctx=r.choice([32, 16]))
        self.maybe(0.1, tie_word_embeddings=r.choice([True, False]))
        self.maybe(0.1, scale_attn_weights=r.choice([True, True, False]))
        self.maybe(0.1, scale_attn_by_inverse_layer_idx=r.choice([True, False]))
        self.maybe(0.2, reorder_and_upcast_attn=True)
        self.maybe(0.2, pad_token_id=r.choice([-1, 3, None]))
        self.targets = ["c_attn", "c_proj", "c_fc", "wte", "wpe", "attn.c_proj", "h.0.attn.c_attn"]
        self.saves = ["ln_f", "ln_1", "c_fc", "wte", "wpe", "mlp.c_proj", "f", "attn"] + ["lm_head"] * (self.task != "base")
        self.pattern = r".*h\.1\.(attn|mlp)\.c_proj"

    def rope(self):
        r = self.r
        kind = r.choice(["linear", "llama3", "llama3", "yarn", "yarn", "yarn", "dynamic", "dynamic", "default",
                         r.choice(["longrope", "mrope"])])
        rope = {r.choice(["rope_type", "type"]): kind}
        if r.random() < 0.95:
            rope["factor"] = r.choice([1, 1.0, 1.5, 2, 4.0, 8])
        if kind in ("llama3", "yarn") and r.random() < 0.7:
            rope["original_max_position_embeddings"] = r.choice([4, 8, 16])
        if kind == "llama3":
            if r.random() < 0.95:
                rope["low_freq_factor"] = r.choice([1, 1.0, 0.5])
            if r.random() < 0.95:
                rope["high_freq_factor"] = r.choice([4, 4.0, 2])
        if kind == "yarn":
            for name, values in (("beta_fast", [32, 4.0, None]), ("beta_slow", [1, 0.5]), ("attention_factor", [1.2, None]),
                                 ("mscale", [1.0, 0.7]), ("mscale_all_dim", [1.0, 0.5, 0]), ("truncate", [True, False])):
                if r.random() < 0.3:
                    rope[name] = r.choice(values)
        if kind in ("linear", "dynamic", "yarn") and rope.get("factor", 1) >= 2:  # most texts are longer than the first length
            self.config["max_position_embeddings"] = r.choice([8, 8, 32])
            if kind == "yarn":
                rope["original_max_position_embeddings"] = 8
        if r.random() < 0.3:
            rope["rope_theta"] = r.choice([500.0, 1e6, 10000])
        if r.random() < 0.03:
            rope["partial_rotary_factor"] = r.choice([1.0, 0.5])
        where = r.choice(["rope_scaling", "rope_parameters"])
        self.changes[where] = rope
        if r.random() < 0.25:  # both
            other = {"rope_scaling": "rope_parameters", "rope_parameters": "rope_scaling"}[where]
            self.changes[other] = r.choice([None, {}, {"rope_type": "linear", "factor": 3.0}, {"rope_type": "default",
                                                                                          "rope_theta": 77.0}])
        elif where == "rope_scaling":
            self.changes["rope_parameters"] = "absent"
        self.maybe(0.1, original_max_position_embeddings=r.choice([8, 16]))
        self.maybe(0.3, rope_theta=r.choice([300.0, 20000]))

    def llama(self):
        r, family = self.r, self.family
        self.task = r.choice(["causal", "causal", "causal", "sequence", "sequence", "base"])
        heads = r.choice([2, 4])
        self.config = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                           num_attention_heads=heads, num_key_value_heads=r.choice([1, heads, 2, None]),
                           max_position_embeddings=32, tie_word_embeddings=r.choice([True, False, False]),
                           bos_token_id=None, eos_token_id=None)
        if family == "qwen3" or (family != "qwen2" and r.random() < 0.4):
            self.config["head_dim"] = r.choice([4, 6, 8])
        if family in ("llama", "qwen3"):
            self.config["attention_bias"] = r.choice([True, False])
        if family == "llama":
            self.config["mlp_bias"] = r.choice([True, False])
        if family in ("qwen2", "qwen3"):
            self.config.update(use_sliding_window=r.choice([True, False]), sliding_window=r.choice([4, 100, None]),
                               max_window_layers=r.choice([0, 1, 2]))
        if family == "mistral":
            self.config["sliding_window"] = r.choice([4, None, 100])
            self.maybe(0.3, layer_types=r.choice([["full_attention"] * 2, ["sliding_attention"] * 2]))
        self.T = r.choice([6, 12, 12, 16])
        if r.random() < 0.7:
            self.rope()
        self.maybe(0.3, pad_token_id=r.choice([-1, -1, 3, 3, None, None, VOCAB, -VOCAB]))
        if self.task == "sequence":
            self.config["num_labels"] = r.choice([1, 2, 3])
            self.maybe(0.7, pad_token_id=r.choice([3, 3, 0]))
            self.problem()
        self.maybe(0.2, rms_norm_eps=r.choice([1e-2, 1e-5, 1e-8]))
        self.maybe(0.1, hidden_act=r.choice(["silu", "swish", "gelu"]))
        self.maybe(0.05, attention_dropout=0.1)
        self.maybe(0.1, partial_rotary_factor=r.choice([1.0, 1.0, None, 0.5]))
        self.maybe(0.1, pretraining_tp=2)
        self.targets = ["q_proj", "v_proj", "k_proj", "o_proj", "up_proj", "down_proj", "embed_tokens", "self_attn.v_proj",
                        {"causal": "lm_head", "sequence": "score", "base": "norm"}[self.task]]
        self.saves = ["norm", self.targets[-1], "embed_tokens", "input_layernorm", "layernorm", "up_proj", "mlp", "model.norm"]
        self.pattern = r"(.*\.)?layers\.1\.self_attn\.[qk]_proj"

    def problem(self):
        r = self.r
        self.maybe(0.5, problem_type=r.choice(["regression", "single_label_classification", "multi_label_classification"] * 3 +
                                              [None, "ranking"]))
        self.labels = r.choice(["natural", "float", "float", "integer"])

    def bert(self):
        r = self.r
        self.task = r.choice(["sequence", "sequence", "sequence", "token", "masked", "masked", "base"])
        self.config = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                           num_attention_heads=r.choice([2, 4]), max_position_embeddings=32,
                           type_vocab_size=r.choice([1, 2]), num_labels=r.choice([1, 1, 2, 3, 5]))
        self.problem()
        self.maybe(0.3, pad_token_id=r.choice([-1, 0, 2, None, 5]))
        self.maybe(0.3, hidden_act=r.choice(["gelu", "gelu_new", "gelu_new", "relu", "gelu_pytorch_tanh"]))
        self.maybe(0.2, layer_norm_eps=r.choice([1e-5, 1e-2]))
        self.maybe(0.2, classifier_dropout=r.choice([None, 0.3]))
        self.maybe(0.05, position_embedding_type=r.choice(["absolute", "absolute", "relative_key"]))
        self.maybe(0.05, is_decoder=r.choice([True, False, False]))
        self.maybe(0.1, num_labels=r.choice([2, 3, None]))
        self.maybe(0.1, pruned_heads={})
        self.maybe(0.1, tie_word_embeddings=r.choice([True, False]))
        self.targets = ["query", "value", "key", "dense", "output.dense", "word_embeddings", "intermediate.dense"]
        self.saves = ["classifier", "pooler", "LayerNorm", "score", "position_embeddings", "embeddings", "output.dense"]
        self.pattern = r".*layer\.1\.attention\.self\.(query|key)"
        if self.task == "masked":
            self.saves += ["decoder", "transform" if self.family == "bert" else "lm_head.dense"]

    def distilbert(self):
        self.bert()
        names = {"hidden_size": "dim", "intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers",
                 "num_attention_heads": "n_heads", "hidden_act": "activation", "classifier_dropout": "seq_classif_dropout"}
        others = ("type_vocab_size", "layer_norm_eps", "position_embedding_type")
        self.config, self.changes = ({names.get(k, k): v for k, v in fields.items() if k not in others}
                                     for fields in (self.config, self.changes))
        self.maybe(0.2, sinusoidal_pos_embds=self.r.choice([True, False]))
        self.targets = ["q_lin", "v_lin", "k_lin", "out_lin", "lin1", "lin2", "attention.q_lin", "word_embeddings"]
        self.saves = ["LayerNorm", "sa_layer_norm", "layer_norm", "position_embeddings", "embeddings", "lin1"] + {
            "sequence": ["classifier", "pre_classifier"], "token": ["classifier"],
            "masked": ["vocab_transform", "vocab_projector", "vocab_layer_norm"]}.get(self.task, [])
        self.pattern = r".*layer\.1\.attention\.[qk]_lin"

    def vit(self):
        r = self.r
        self.task = "image"
        self.config = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=r.choice([2, 4]), intermediate_size=24,
                           image_size=r.choice([16, 16, [16, 16], [16, 16], [16, 8]]), patch_size=r.choice([4, [4, 4], 8, [8, 8], [4, 8]]),
                           num_channels=r.choice([1, 3]), qkv_bias=r.choice([True, True, False]),
                           num_labels=r.choice([1, 2, 7]))
        self.maybe(0.5, problem_type=r.choice(["regression", "single_label_classification", "multi_label_classification",
                                               None]))
        self.labels = r.choice(["natural", "float", "integer"])
        self.maybe(0.2, hidden_act=r.choice(["gelu", "gelu_new", "relu"]))
        self.maybe(0.2, layer_norm_eps=r.choice([1e-5, 1e-2]))
        self.maybe(0.1, encoder_stride=8)
        self.targets = ["q_proj", "v_proj", "k_proj", "o_proj", "fc1", "fc2", "attention.q_proj", "projection"]
        self.saves = ["classifier", "layernorm", "fc1", "layernorm_before", "o_proj", "q_proj", "attention", "norm"]
        self.pattern = r".*layers\.1\.attention\.[qv]_proj"

    # ---- The folder

    def write(self, folder):
        """Returns whether transformers could make a model of the configuration before the odd fields."""
        model_dir = os.path.join(folder, "model")
        os.makedirs(model_dir)
        config = tr.AutoConfig.for_model(self.family, **self.config)
        for name in ("activation_function", "activation", "hidden_act", "n_inner", "num_labels"):  # shapes and heads of the odd ones
            if self.changes.get(name) is not None and name != "num_labels":
                setattr(config, name, self.changes[name])
        model = HEADS[self.task].from_config(config, attn_implementation="eager")
        with torch.no_grad():
            for name, p in model.named_parameters():
                noise = torch.randn(p.shape, generator=self.torch)
                p.copy_(1 + 0.2 * noise if p.dim() == 1 and not name.endswith("bias") else 0.25 * noise)
        model.save_pretrained(model_dir, max_shard_size=self.r.choice(["5GB", "5GB", "5GB", "4KB"]))
        path = os.path.join(model_dir, "config.json")
        with open(path) as f:
            fields = json.load(f)
        for name, value in self.changes.items():
            if value == "absent":
                fields.pop(name, None)
            else:
                fields[name] = value
        fields.pop("n_ctx", None) if "n_ctx" not in self.changes else None
        for name, value in self.config.items():  # what transformers leaves out of the file is said here
            if name not in self.changes and name not in fields and name != "num_labels":
                fields[name] = value
        with open(path, "w") as f:
            json.dump(fields, f, indent=2)
        self.rename_tensors(model_dir)
        self.write_inputs(folder, config)
        with open(os.path.join(folder, "task"), "w") as f:
            f.write(self.task)

    def rename_tensors(self, model_dir):
        path = os.path.join(model_dir, "model.safetensors")
        if not os.path.exists(path):
            return
        tensors, r = load_file(path), self.r
        decoder = {"bert": "cls.predictions.decoder", "roberta": "lm_head.decoder"}.get(self.family)
        if self.task == "masked" and decoder and r.random() < 0.4:  # a second copy, or the only one
            body, bias = self.family, decoder.removesuffix("decoder") + "bias"
            tensors[decoder + ".weight"] = tensors[f"{body}.embeddings.word_embeddings.weight"].clone()
            tensors[decoder + ".bias"] = tensors[bias].clone()
            if r.random() < 0.5:
                del tensors[bias]
        if self.family in ("bert", "roberta") and r.random() < 0.4:
            tensors = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
                       for k, v in tensors.items()}
        if self.family == "gpt2" and r.random() < 0.3:
            tensors = {k.removeprefix("transformer."): v for k, v in tensors.items()}
        if r.random() < 0.2:
            tensors = {k: v.to(r.choice([torch.bfloat16, torch.float16])) for k, v in tensors.items()}
        save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata={"format": "pt"})

    def classes(self, n, labels):
        """Targets of a classifier, of a kind that suits the problem or one that may not."""
        problem = self.changes.get("problem_type")
        if labels == "natural":
            kinds = {"regression": "float", "multi_label_classification": "many"}
            labels = kinds.get(problem, "float" if n == 1 else "integer")
        if labels == "many" or (labels == "float" and problem != "regression" and n > 1):
            return torch.randint(2, (self.B, n), generator=self.torch).float()
        if labels == "float":
            return torch.randn(self.B, n, generator=self.torch).squeeze(-1) if n == 1 else \
                torch.randn(self.B, n, generator=self.torch)
        return torch.randint(max(n, 2), (self.B,), generator=self.torch)

    def write_inputs(self, folder, config):
        g, inputs = self.torch, {}
        n = self.config.get("num_labels", 2)
        if self.family == "vit":
            size = self.config["image_size"]
            height, width = size if isinstance(size, list) else (size, size)
            inputs["images"] = torch.randn(self.B, self.config["num_channels"], height, width, generator=g)
            inputs["targets"] = self.classes(n, self.labels)
        else:
            inputs["ids"] = torch.randint(0, VOCAB, (self.B, self.T), generator=g)
            if self.family in ("bert", "roberta", "distilbert") or self.task == "sequence":
                lengths = torch.randint(3, self.T + 1, (self.B, 1), generator=g)
                inputs["mask"] = torch.arange(self.T)[None] < lengths
                if "score" in self.targets and self.r.random() < 0.7:  # padding is padding, on either side
                    if self.r.random() < 0.5:
                        inputs["mask"] = inputs["mask"].flip(1)
                    inputs["ids"][~inputs["mask"]] = max(0, self.changes.get("pad_token_id") or 0) % VOCAB
                if self.config.get("type_vocab_size", 1) > 1:
                    inputs["segments"] = (torch.arange(self.T) >= 5).long().expand(self.B, self.T).contiguous()
                if self.task == "token":
                    inputs["targets"] = torch.randint(n, (self.B, self.T), generator=g)
                elif self.task == "masked":
                    inputs["targets"] = torch.where(torch.arange(self.T) % 4 == 1, inputs["ids"], -100)
                    inputs["ids"] = torch.where(inputs["targets"] >= 0, 4, inputs["ids"])
                elif self.task == "sequence":
                    inputs["targets"] = self.classes(n, self.labels)
            else:
                inputs["targets"] = torch.randint(VOCAB, (self.B, self.T), generator=g)
                inputs["prompt"] = inputs["ids"][0, :self.r.choice([1, 5, self.T])].clone()
        self.inputs = inputs
        save_file(inputs, os.path.join(folder, "inputs.safetensors"))

    def lora_words(self):
        """Targets and modules to save: [(key, value)]."""
        r = self.r
        words = [("pattern", self.pattern)] if r.random() < 0.2 else [("target", "all-linear")] if r.random() < 0.1 else \
            [("target", t) for t in r.sample(self.targets, r.choice([1, 2, 3]))]
        if r.random() < 0.6:
            words += [("save", s) for s in r.sample(self.saves, r.choice([1, 1, 2]))]
        if r.random() < 0.2:
            words.append(("rslora", "1"))
        return words

    def peft_config(self, words):
        targets = [v for k, v in words if k == "target"]
        pattern = [v for k, v in words if k == "pattern"]
        saves = [v for k, v in words if k == "save"]
        return peft.LoraConfig(r=2, lora_alpha=3, target_modules=pattern[0] if pattern else
                               "all-linear" if targets == ["all-linear"] else targets,
                               modules_to_save=saves or None, use_rslora=("rslora", "1") in words)


# ---- The reference

def load(case, folder):
    model, info = HEADS[case.task].from_pretrained(folder, dtype=torch.float32, attn_implementation="eager",
                                                   output_loading_info=True)
    bad = {k for k in info["missing_keys"] if "pooler" not in k} | set(info.get("mismatched_keys", ()))
    if bad:
        raise ValueError(f"transformers starts tensors fresh: {sorted(bad)[:4]}")
    return model.eval()


def outputs(case, model, labels=None):
    i = case.inputs
    if case.family == "vit":
        return model(pixel_values=i["images"], labels=labels)
    arguments = {"input_ids": i["ids"]}
    if "mask" in i:
        arguments["attention_mask"] = i["mask"].long()
    if "segments" in i:
        arguments["token_type_ids"] = i["segments"]
    if labels is not None:
        arguments["labels"] = labels
    return model(**arguments)


def logits(case, model):
    with torch.no_grad():
        out = outputs(case, model.eval())
    return out.last_hidden_state if case.task == "base" else out.logits


def ten_losses(case, model):
    model.eval()
    if case.embedded:  # transformers loads it frozen
        for name, p in model.named_parameters():
            p.requires_grad_("lora_" in name or ".modules_to_save." in name)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for _ in range(10):
        if case.task == "causal":
            out = outputs(case, model).logits
            loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), case.inputs["targets"].flatten())
        else:
            loss = outputs(case, model, case.inputs["targets"]).loss
        if loss is None:
            raise ValueError("transformers computes no loss")
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.tensor(losses)


def greedy(case, model):
    prompt = case.inputs["prompt"][None]
    made = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=12,
                          eos_token_id=None, pad_token_id=0)
    return made[0, prompt.shape[1]:]


def adapted(case, base, adapter, **more):
    """The model with an adapter. Rondo's GPT2 is a language model whatever the task, and so are its adapters."""
    if (case.family, case.task) != ("gpt2", "base"):
        return peft.PeftModel.from_pretrained(load(case, base), adapter, **more)
    whole = tr.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager").eval()
    return peft.PeftModel.from_pretrained(whole, adapter, **more).base_model.model.transformer


def write_peft(case, folder):
    """PEFT's adapter with random values, sometimes with an odd config; its logits and losses."""
    r, words = case.r, case.lora_words()
    model = peft.get_peft_model(load(case, os.path.join(folder, "model")), case.peft_config(words))
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn(p.shape, generator=case.torch))
    path = os.path.join(folder, "peft")
    model.save_pretrained(path, save_embedding_layers=False)
    config = os.path.join(path, "adapter_config.json")
    with open(config) as f:
        fields = json.load(f)
    odd = r.random()
    if odd < 0.06:
        fields["layers_to_transform"] = r.choice([0, [0], []])
    elif odd < 0.10:
        fields["modules_to_save"] = (fields["modules_to_save"] or []) + [r.choice(["../../x", "score", "a\nb"])]
    elif odd < 0.14:
        fields["ensure_weight_tying"] = True
    elif odd < 0.18:
        fields["alpha_pattern"] = {case.targets[0]: 7}
    elif odd < 0.22:
        fields["task_type"] = r.choice(["SEQ_CLS", "CAUSAL_LM", "FEATURE_EXTRACTION"])
    elif odd < 0.26:
        fields["lora_alpha"] = r.choice([2.5, 0, -1])
    with open(config, "w") as f:
        json.dump(fields, f)


def from_peft(case, folder):
    return peft.PeftModel.from_pretrained(load(case, os.path.join(folder, "model")), os.path.join(folder, "peft"),
                                          is_trainable=True)


# ---- Comparing

def close(a, b, scale):
    if a.shape != b.shape:
        return False
    if not torch.isfinite(b).all():
        return torch.equal(torch.isfinite(a), torch.isfinite(b))
    return bool((a.double() - b.double()).abs().max() <= scale * max(1e-3, float(b.abs().max())))


class Report:
    def __init__(self):
        self.counts = collections.Counter()
        self.bad = []
        self.refusals = collections.Counter()

    def note(self, case, seed, stage, result, text=""):
        self.counts[stage, result] += 1
        if result in ("SILENT", "ERROR"):
            self.bad.append(f"{result} seed {seed} {case.family}/{case.task} {stage}: {text}")
        if result == "refused":
            self.refusals[text] += 1


def attempt(run):
    try:
        return run(), None
    except Exception as error:  # whatever the reference throws is its refusal
        return None, f"{type(error).__name__}: {error}"


def compare(case, seed, folder, report):
    stages = {}
    with open(os.path.join(folder, "out", "stages")) as f:
        for line in f:
            name, kind, *text = line.rstrip("\n").split(" ", 2)
            stages[name] = (kind, text[0] if text else "")
    ours = load_file(os.path.join(folder, "out", "values.safetensors"))

    def judge(stage, reference, got, scale):
        kind, text = stages[stage]
        if kind == "internal":
            return report.note(case, seed, stage, "ERROR", text)
        if kind == "refused":
            return report.note(case, seed, stage, "refused", (text.partition("  ")[2] or text)[:110].strip())
        want, refusal = attempt(reference)
        if refusal is not None:
            return report.note(case, seed, stage, "loose", refusal)
        got, failure = attempt(got)
        if failure is not None:
            return report.note(case, seed, stage, "SILENT", failure[:300])
        same = torch.equal(want, got) if scale == 0 else close(got, want, scale)
        text = "" if same else f"{(got.double() - want.double()).abs().max() if got.shape == want.shape else got.shape}"
        report.note(case, seed, stage, "equal" if same else "SILENT", text)

    model = os.path.join(folder, "model")
    judge("logits", lambda: logits(case, load(case, model)), lambda: ours["logits"], 2e-4)
    if "losses" in stages:
        judge("losses", lambda: ten_losses(case, load(case, model)), lambda: ours["losses"], 2e-3)
    judge("saved", lambda: logits(case, load(case, model)),
          lambda: logits(case, load(case, os.path.join(folder, "out", "saved"))), 1e-6)
    if "generated" in stages:
        # A row ends, with its reason, where Rondo's model has no further position.
        judge("generated", lambda: greedy(case, load(case, model))[:len(ours["generated"])], lambda: ours["generated"], 0)
    if "peft" in stages:
        judge("peft", lambda: logits(case, from_peft(case, folder)), lambda: ours["peft"], 2e-4)
        if "peft_losses" in ours:
            stages["peft_losses"] = ("ok", "")
            judge("peft_losses", lambda: ten_losses(case, from_peft(case, folder)), lambda: ours["peft_losses"], 2e-3)
        stages["peft_again"] = stages["peft"]
        judge("peft_again", lambda: logits(case, from_peft(case, folder)), lambda: logits(
            case, adapted(case, model, os.path.join(folder, "out", "peft"))), 1e-5)
    if "lora" in stages:
        judge("lora", lambda: logits(case, load(case, model)) * 0 + ours["lora"], lambda: logits(
            case, adapted(case, model, os.path.join(folder, "out", "adapter"))), 2e-4)
        judge("merged", lambda: logits(case, load(case, model)) * 0 + ours["merged"],
              lambda: logits(case, load(case, os.path.join(folder, "out", "merged"))), 2e-4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=80)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep")
    options = parser.parse_args()
    root = options.keep or tempfile.mkdtemp()
    cases, tries = {}, 0
    while len(cases) < options.count:
        seed = options.seed * 10000 + tries
        tries += 1
        case, folder = Case(seed), os.path.join(root, str(seed))
        shutil.rmtree(folder, ignore_errors=True)
        if attempt(lambda: case.write(folder))[1] is not None:  # no model is like this even before its odd fields
            shutil.rmtree(folder, ignore_errors=True)
            continue
        cases[seed] = (case, folder)
        if attempt(lambda: write_peft(case, folder))[1] is not None:
            shutil.rmtree(os.path.join(folder, "peft"), ignore_errors=True)
        elif case.r.random() < 0.15:  # beside full weights: the folder's own adapter
            for name in os.listdir(os.path.join(folder, "peft")):
                shutil.copy(os.path.join(folder, "peft", name), os.path.join(folder, "model"))
            shutil.rmtree(os.path.join(folder, "peft"))
            case.embedded = True
        if not case.embedded:
            with open(os.path.join(folder, "lora"), "w") as f:
                f.writelines(f"{k} {v}\n" for k, v in case.lora_words())
    subprocess.run([options.program, *(folder for _, folder in cases.values())], check=True)
    report = Report()
    for seed, (case, folder) in cases.items():
        compare(case, seed, folder, report)
    names = list(dict.fromkeys(stage for stage, _ in report.counts))
    for stage in names:
        print(f"{stage:12}", *(f"{result} {report.counts[stage, result]:3}" for result in
                               ("equal", "refused", "loose", "SILENT", "ERROR")))
    print("\nrefused by name:")
    for text, n in report.refusals.most_common():
        print(f"{n:4} {text}")
    print(*report.bad, sep="\n")
    if not options.keep:
        shutil.rmtree(root)
    sys.exit(1 if report.bad else 0)


if __name__ == "__main__":
    main()
