#!/usr/bin/env python3
"""Records tiny checkpoints of published model families, and what transformers computes with them.

    record_pretrained.py [folder [case]]     writes pretrained/<case>/ (default: all, beside this file)
    record_pretrained.py --check FOLDER     loads FOLDER/<case>/<any>, which Rondo saved, and compares with the case

    record_pretrained.py --embed MODEL OUT  writes ids, mask and embeddings of some sentences by the MiniLM in MODEL

Needs torch and transformers. Each case has config.json and model.safetensors as transformers writes them, and
expected.safetensors: the inputs (input.*), the output and the losses before each of ten AdamW steps on this one batch
(lr 1e-3, betas 0.9 0.95, eps 1e-8, weight decay 0.1), in float64 and float32 (output, losses; output_f32, losses_f32).
Weights are random and large enough that every part matters. The same versions give the same bytes.

transformers computes some steps in float32 whatever the model's dtype: RMSNorm and the tables of rotary positions.
For the float64 values they are replaced by the same formulas in float64.
"""
import math
import os
import shutil
import sys
import types

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers as tr  # noqa: E402

from record import save  # noqa: E402

torch.set_num_threads(1)
tr.logging.set_verbosity_error()
tr.logging.disable_progress_bar()

VOCAB, B, T = 61, 2, 12
SMALL = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=32)
LLAMA3 = {"rope_type": "llama3", "rope_theta": 50000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16}
# T is above what the first training had.
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 8,
        "beta_fast": 2.0, "beta_slow": 0.5}
DYNAMIC = {"type": "dynamic", "factor": 3.0}
FEW = {**SMALL, "max_position_embeddings": 8}
NO_TOKENS = dict(bos_token_id=None, eos_token_id=None)


def gpt2(**more):
    return tr.GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=2, n_head=4, **NO_TOKENS, **more)


def bert(kind=tr.BertConfig, **more):
    return kind(**SMALL, **more)


def distilbert(**more):
    return tr.DistilBertConfig(vocab_size=VOCAB, dim=16, hidden_dim=24, n_layers=2, n_heads=4, max_position_embeddings=32,
                               **more)


CASES = {
    "gpt2": (tr.GPT2LMHeadModel, gpt2(n_inner=40, layer_norm_epsilon=1e-4)),
    "gpt2_gelu": (tr.GPT2LMHeadModel, gpt2(activation_function="gelu")),
    "llama2": (tr.LlamaForCausalLM, tr.LlamaConfig(**SMALL, **NO_TOKENS)),
    "llama3": (tr.LlamaForCausalLM, tr.LlamaConfig(**SMALL, **NO_TOKENS, num_key_value_heads=2, pad_token_id=3,
                                                   tie_word_embeddings=True, rope_parameters=LLAMA3)),
    "llama_bias": (tr.LlamaForCausalLM, tr.LlamaConfig(**SMALL, **NO_TOKENS, num_key_value_heads=1, head_dim=6,
                                                       attention_bias=True, mlp_bias=True, rope_parameters={
                                                           "rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0})),
    "qwen2": (tr.Qwen2ForCausalLM, tr.Qwen2Config(**SMALL, num_key_value_heads=2, use_sliding_window=True,
                                                  sliding_window=5, max_window_layers=1)),
    "qwen3": (tr.Qwen3ForCausalLM, tr.Qwen3Config(**SMALL, num_key_value_heads=2, head_dim=8, tie_word_embeddings=True)),
    "mistral": (tr.MistralForCausalLM, tr.MistralConfig(**SMALL, **NO_TOKENS, num_key_value_heads=2, sliding_window=4)),
    "bert_sequence": (tr.BertForSequenceClassification, bert(num_labels=3)),
    "bert_token": (tr.BertForTokenClassification, bert(num_labels=5, hidden_act="gelu_new")),
    "minilm": (tr.BertModel, bert(type_vocab_size=1)),
    "roberta_sequence": (tr.RobertaForSequenceClassification, bert(tr.RobertaConfig, num_labels=3, type_vocab_size=1)),
    "roberta_token": (tr.RobertaForTokenClassification, bert(tr.RobertaConfig, num_labels=4, pad_token_id=2)),
    "vit": (tr.ViTForImageClassification, tr.ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                                                       intermediate_size=24, image_size=16, patch_size=4, num_labels=7)),
    "llama_dynamic": (tr.LlamaForCausalLM, tr.LlamaConfig(**FEW, **NO_TOKENS, rope_scaling=DYNAMIC, head_dim=6)),
    "qwen2_yarn": (tr.Qwen2ForCausalLM, tr.Qwen2Config(**{**FEW, "num_attention_heads": 2}, num_key_value_heads=2,
                                                       rope_parameters=YARN)),
    "bert_regression_sequence": (tr.BertForSequenceClassification, bert(num_labels=1, pad_token_id=-1)),
    "roberta_multilabel_sequence": (tr.RobertaForSequenceClassification, bert(tr.RobertaConfig, num_labels=3,
                                                                              type_vocab_size=1)),
    "vit_regression": (tr.ViTForImageClassification, tr.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=24, image_size=[16, 16],
        patch_size=[4, 4], num_labels=2, problem_type="regression")),
    "segformer": (tr.SegformerForSemanticSegmentation, tr.SegformerConfig(
        hidden_sizes=[8, 8, 16, 16], num_attention_heads=[1, 2, 2, 4], depths=[1, 2, 1, 1], sr_ratios=[4, 2, 1, 1],
        mlp_ratios=[2, 3, 2, 2], decoder_hidden_size=16, num_labels=5, semantic_loss_ignore_index=4)),
    "distilbert_sequence": (tr.DistilBertForSequenceClassification, distilbert(num_labels=3)),
    "distilbert_token": (tr.DistilBertForTokenClassification, distilbert(num_labels=4, pad_token_id=2)),
    "distilbert_masked": (tr.DistilBertForMaskedLM, distilbert()),
    "bert_masked": (tr.BertForMaskedLM, bert(hidden_act="gelu_new")),
    # Its head has the exact gelu in any case.
    "roberta_masked": (tr.RobertaForMaskedLM, bert(tr.RobertaConfig, hidden_act="gelu_new", type_vocab_size=1)),
    "llama_sequence": (tr.LlamaForSequenceClassification, tr.LlamaConfig(
        **SMALL, **NO_TOKENS, num_key_value_heads=2, num_labels=3, pad_token_id=3)),
    "qwen2_left_sequence": (tr.Qwen2ForSequenceClassification, tr.Qwen2Config(
        **SMALL, num_key_value_heads=2, use_sliding_window=True, sliding_window=5, max_window_layers=1, num_labels=4,
        pad_token_id=0, tie_word_embeddings=True)),
    "mistral_regression_sequence": (tr.MistralForSequenceClassification, tr.MistralConfig(
        **SMALL, **NO_TOKENS, num_key_value_heads=2, sliding_window=4, num_labels=1, pad_token_id=2)),
}



def captioner(encoder_width, end):
    encoder = tr.ViTConfig(hidden_size=encoder_width, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
                           image_size=16, patch_size=4)
    return tr.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        encoder, gpt2(n_inner=40), decoder_start_token_id=1, pad_token_id=3, eos_token_id=end)


CASES["captioner"] = (tr.VisionEncoderDecoderModel, captioner(16, end=6))
CASES["captioner_projected"] = (tr.VisionEncoderDecoderModel, captioner(24, end=43))

# Their outputs below the first training's length are recorded too, and the tokens of a greedy continuation across it.
BELOW_AND_ABOVE, SHORT = ("llama_dynamic", "qwen2_yarn"), 6


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.dim() == 1 and not name.endswith("bias"):  # a gain
                p.copy_(1 + 0.2 * noise)
            else:
                p.copy_(0.25 * noise)
        for name, b in model.named_buffers():
            if "running" in name:
                noise = torch.randn(b.shape, generator=generator)
                b.copy_(0.2 * noise if name.endswith("mean") else 1 + 0.2 * noise.abs())


def classes_of(name, config, generator):
    """Targets of a classifier: what kind they are decides on the loss, unless config.json does."""
    if "regression" in name:
        return torch.randn(B, config.num_labels, generator=generator, dtype=torch.float64).squeeze(-1)
    if "multilabel" in name:
        return torch.randint(2, (B, config.num_labels), generator=generator).double()
    return torch.randint(config.num_labels, (B,), generator=generator)


def inputs_of(name, model, seed):
    generator = torch.Generator().manual_seed(seed)
    config = model.config
    if name.startswith("captioner"):
        labels = torch.randint(5, VOCAB, (B, T), generator=generator)
        labels[1, T - 5:] = -100  # padding behind a shorter caption
        labels[1, T - 6] = labels[0, T - 1] = config.eos_token_id
        ids = torch.randint(5, VOCAB, (B, T), generator=generator)
        mask = torch.arange(T)[None, :] < torch.tensor([T, T - 4])[:, None]
        return {"images": torch.randn(B, 3, 16, 16, generator=generator, dtype=torch.float64), "ids": ids, "mask": mask,
                "targets": labels}
    if name.startswith("vit"):
        return {"images": torch.randn(B, 3, 16, 16, generator=generator, dtype=torch.float64),
                "targets": classes_of(name, config, generator)}
    if name.startswith("segformer"):
        return {"images": torch.randn(B, 3, 37, 32, generator=generator, dtype=torch.float64),
                "targets": torch.randint(config.num_labels, (B, 37, 32), generator=generator)}
    ids = torch.randint(5, VOCAB, (B, T), generator=generator)
    if name.startswith(("bert", "minilm", "roberta", "distilbert")) or name.endswith("_sequence"):
        lengths = torch.tensor([T, T - 4])
        mask = torch.arange(T)[None, :] < lengths[:, None]
        if "left" in name:  # padding is on the left
            mask = mask.flip(1)
        ids = torch.where(mask, ids, torch.tensor(config.pad_token_id % VOCAB))
        inputs = {"ids": ids, "mask": mask}
        if getattr(config, "type_vocab_size", 1) > 1:
            inputs["segments"] = (torch.arange(T) >= T // 2).long().expand(B, T).contiguous()
        if "sequence" in name:
            inputs["targets"] = classes_of(name, config, generator)
        if "token" in name:
            targets = torch.randint(config.num_labels, (B, T), generator=generator)
            inputs["targets"] = torch.where(mask, targets, torch.tensor(-100))
        if "masked" in name:
            chosen = mask & (torch.arange(T) % 3 == 1)
            inputs["targets"] = torch.where(chosen, ids, torch.tensor(-100))
            inputs["ids"] = torch.where(chosen, torch.tensor(4), ids)
        return inputs
    targets = torch.randint(VOCAB, (B, T), generator=generator)
    targets[0, :2] = -100
    if config.pad_token_id is not None:
        ids[1, 4] = config.pad_token_id
    return {"ids": ids, "targets": targets}


def output_of(name, model, inputs):
    """Logits; of minilm the mean of the features of real tokens, normalised."""
    if name.startswith("captioner"):
        return model(pixel_values=inputs["images"].to(model.dtype), decoder_input_ids=inputs["ids"],
                     decoder_attention_mask=inputs["mask"].long()).logits
    if "images" in inputs:
        return model(pixel_values=inputs["images"].to(model.dtype)).logits
    if "mask" not in inputs:
        return model(input_ids=inputs["ids"]).logits
    arguments = {"input_ids": inputs["ids"], "attention_mask": inputs["mask"].long()}
    if "segments" in inputs:
        arguments["token_type_ids"] = inputs["segments"]
    result = model(**arguments)
    if name != "minilm":
        return result.logits
    weights = inputs["mask"].unsqueeze(-1).to(model.dtype)
    return F.normalize((result.last_hidden_state * weights).sum(1) / weights.sum(1))


def loss_of(name, output, inputs):
    if name == "minilm":  # pulls the two sentences apart
        return (output[0] * output[1]).sum()
    n = output.shape[-1]
    return F.cross_entropy(output.reshape(-1, n), inputs["targets"].reshape(-1))


def in_float64(model):
    """Replaces what transformers computes in float32."""
    model = model.double()
    rope = getattr(model.config, "rope_parameters", None)
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            def norm(self, x):
                return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.variance_epsilon) * self.weight
            module.forward = types.MethodType(norm, module)
        if type(module).__name__.endswith("RotaryEmbedding"):
            def tables(self, x, position_ids, *_):
                config = model.config
                D = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
                rate = rope["rope_theta"] ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
                if rope["rope_type"] == "linear":
                    rate = rate / rope["factor"]
                if rope["rope_type"] == "llama3":
                    old, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor",
                                                        "high_freq_factor"))
                    length = 2 * torch.pi / rate
                    smooth = (old / length - low) / (high - low)
                    middle = (1 - smooth) * rate / rope["factor"] + smooth * rate
                    rate = torch.where(length > old / low, rate / rope["factor"],
                                       torch.where(length < old / high, rate, middle))
                scale = 1.0
                if rope["rope_type"] == "dynamic":
                    n = config.max_position_embeddings
                    grown = max(1.0, rope["factor"] * (position_ids.max().item() + 1) / n - (rope["factor"] - 1))
                    theta = rope["rope_theta"] * grown ** (D / (D - 2))
                    rate = theta ** (-torch.arange(0, D, 2, dtype=torch.float64) / D)
                if rope["rope_type"] == "yarn":
                    def pair(turns):
                        old = rope["original_max_position_embeddings"]
                        return D * math.log(old / (turns * 2 * math.pi)) / (2 * math.log(rope["rope_theta"]))
                    low, high = max(math.floor(pair(rope["beta_fast"])), 0), min(math.ceil(pair(rope["beta_slow"])), D - 1)
                    ramp = ((torch.arange(D // 2, dtype=torch.float64) - low) / (high - low)).clamp(0, 1)
                    rate = ramp * rate / rope["factor"] + (1 - ramp) * rate
                    scale = 0.1 * math.log(rope["factor"]) + 1
                angle = position_ids[..., None].double() * rate
                angle = torch.cat((angle, angle), -1)
                return angle.cos() * scale, angle.sin() * scale
            module.forward = types.MethodType(tables, module)
    return model


def load(kind, folder, dtype):
    model = kind.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32).eval()
    return in_float64(model) if dtype == torch.float64 else model


def own_loss(name, model, inputs):
    """The loss that transformers chooses by problem_type, or by the number of labels and their dtype."""
    labels = inputs["targets"].to(model.dtype)
    if name.startswith(("segformer", "captioner")):
        return model(pixel_values=inputs["images"].to(model.dtype), labels=inputs["targets"]).loss
    if "images" in inputs:
        return model(pixel_values=inputs["images"].to(model.dtype), labels=labels).loss
    segments = {"token_type_ids": inputs["segments"]} if "segments" in inputs else {}
    return model(input_ids=inputs["ids"], attention_mask=inputs["mask"].long(), labels=labels, **segments).loss


def train(name, model, inputs):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    losses = []
    for _ in range(10):
        own = any(kind in name for kind in ("regression", "multilabel", "segformer", "captioner"))
        loss = own_loss(name, model, inputs) if own else loss_of(name, output_of(name, model, inputs), inputs)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def record(root, only=None):
    for seed, (name, (kind, config)) in enumerate(CASES.items()):
        if only not in (None, name):
            continue
        folder = os.path.join(root, name)
        shutil.rmtree(folder, ignore_errors=True)
        torch.manual_seed(seed)
        model = kind(config)
        randomise(model, seed)
        model.save_pretrained(folder)
        for extra in os.listdir(folder):
            if extra not in ("config.json", "model.safetensors"):
                os.remove(os.path.join(folder, extra))
        os.chmod(os.path.join(folder, "model.safetensors"), 0o644)
        inputs = inputs_of(name, model, 100 + seed)
        expected = {f"input.{key}": value for key, value in inputs.items()}
        for dtype, end in ((torch.float64, ""), (torch.float32, "_f32")):
            with torch.no_grad():
                expected["output" + end] = output_of(name, load(kind, folder, dtype), inputs)
                if name in BELOW_AND_ABOVE:
                    short = {"ids": inputs["ids"][:, :SHORT]}
                    expected["output_short" + end] = output_of(name, load(kind, folder, dtype), short)
            expected["losses" + end] = train(name, load(kind, folder, dtype), inputs)
        if name in BELOW_AND_ABOVE:
            expected["generated"] = load(kind, folder, torch.float32).generate(
                inputs["ids"][:1, :SHORT], do_sample=False, max_new_tokens=14, pad_token_id=0, eos_token_id=None)
        if name.startswith("captioner"):
            expected |= captions_of(load(kind, folder, torch.float32), inputs)
        save(os.path.join(folder, "expected.safetensors"), expected)
        print(name, expected["losses"][0].item(), expected["losses"][-1].item())


# The ways in which captions are written, as arguments of generate().
CAPTIONS = {"greedy": {}, "penalised": {"repetition_penalty": 1.7}, "beams": {"num_beams": 3},
            "short_beams": {"num_beams": 4, "length_penalty": -1.0}, "early_beams": {"num_beams": 3, "early_stopping": True}}
MOST_NEW = 20


def captions_of(model, inputs):
    """caption.<way> (B, 1 + MOST_NEW): the start token and what follows it, with padding behind the end."""
    captions = {}
    for way, arguments in CAPTIONS.items():
        ids = model.generate(inputs["images"].to(model.dtype), do_sample=False, max_new_tokens=MOST_NEW, **arguments)
        captions["caption." + way] = F.pad(ids, (0, 1 + MOST_NEW - ids.shape[1]), value=model.config.pad_token_id)
    return captions


def check(saved, root, name):
    """What Rondo saved gives transformers the same tensors and the same output."""
    from safetensors.torch import load_file
    kind, _ = CASES[name]
    folder = os.path.join(root, name)
    expected = load_file(os.path.join(folder, "expected.safetensors"))
    inputs = {key[6:]: value for key, value in expected.items() if key.startswith("input.")}
    model, info = kind.from_pretrained(saved, attn_implementation="sdpa", dtype=torch.float32, output_loading_info=True)
    problems = {key: value for key, value in info.items() if value}
    assert not problems, problems
    original = kind.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float32)
    had, state = original.state_dict(), model.state_dict()
    assert had.keys() == state.keys(), had.keys() ^ state.keys()
    for key, value in had.items():
        assert torch.equal(value, state[key]), key
    # In this process: the recorded output is of another processor. The last bits depend on where a tensor lies in memory.
    with torch.no_grad():
        output, wanted = (output_of(name, m.eval(), inputs) for m in (model, original))
    assert torch.allclose(output, wanted, rtol=0, atol=1e-6), (output - wanted).abs().max()
    if name.startswith("captioner"):
        assert model.generation_config.eos_token_id == original.config.eos_token_id
        for way, ids in captions_of(model, inputs).items():
            assert torch.equal(ids, expected[way]), way
    print(f"{saved}: equal in transformers {tr.__version__}")


def embed(folder, out):
    """Mean of the features of real tokens, normalised: how sentence-transformers uses this model."""
    sentences = ["Rondo is a piece whose theme keeps coming back.", "A dog runs.",
                 "The quick brown fox jumps over the lazy dog, twice; then it sleeps until the next morning.", "42"]
    batch = tr.AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    model = tr.AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
    mask = batch["attention_mask"]
    with torch.no_grad():
        features = model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
    weights = mask.unsqueeze(-1).float()
    save(out, {"input.ids": batch["input_ids"], "input.mask": mask.bool(),
               "embeddings": F.normalize((features * weights).sum(1) / weights.sum(1))})


if __name__ == "__main__":
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pretrained")
    if sys.argv[1:2] == ["--check"]:
        for case in CASES:
            for part in sorted(os.listdir(os.path.join(sys.argv[2], case))):
                check(os.path.join(sys.argv[2], case, part), here, case)
    elif sys.argv[1:2] == ["--embed"]:
        embed(sys.argv[2], sys.argv[3])
    else:
        record(sys.argv[1] if len(sys.argv) > 1 else here, sys.argv[2] if len(sys.argv) > 2 else None)
