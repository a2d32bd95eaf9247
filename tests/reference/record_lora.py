#!/usr/bin/env python3
"""Records what PEFT and transformers compute for LoRA on tiny models.

    record_lora.py [folder [case...]]
                                writes lora_<model>/ (default: beside this file): the base, PEFT's own adapter folder, and
                                what a fine-tuning run gives. The same torch, transformers and peft give the same bytes.
    record_lora.py --check FOLDER
                                loads the adapter that Rondo saved to FOLDER/<model>/ on the recorded base and compares
                                the logits with those in FOLDER/<model>.safetensors

values.safetensors (computed in float64): `base.<name>` the base's parameters under transformers' names, F32, which is
exact;
`ids`, `targets` (and `mask`); `logits` of the adapter as it is in the folder; `losses` [10], the loss before each of ten
AdamW steps (lr 1e-2, betas 0.9 0.999, eps 1e-8, no weight decay) on this one batch, starting from the adapter in the
folder, which PEFT wrote; `losses_f32` the same in float32; `trained.<name>` the adapter after the ten steps, under the
names of its file.
"""
import json
import os
import sys

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch  # noqa: E402
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import (BertConfig, BertForSequenceClassification, GPT2Config, GPT2LMHeadModel,  # noqa: E402
                          LlamaConfig, LlamaForCausalLM, ViTConfig, ViTForImageClassification)

HERE = os.path.dirname(os.path.abspath(__file__))


def gpt2(attention="eager"):
    config = GPT2Config(vocab_size=65, n_positions=16, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
                        attn_pdrop=0.0, attn_implementation=attention)
    return GPT2LMHeadModel(config)


def in_own_dtype(model):
    """Transformers computes Llama's norms and angles in float32 whatever the model's dtype. Here: in the model's own."""
    def norm(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))

    def angles(self, x, position_ids):
        d = model.config.hidden_size // model.config.num_attention_heads
        rate = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = position_ids[..., None].double() * rate
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    for module in model.modules():
        kind = type(module).__name__
        if kind == "LlamaRMSNorm":
            module.forward = norm.__get__(module)
        elif kind == "LlamaRotaryEmbedding":
            module.forward = angles.__get__(module)
    return model


def llama(attention="sdpa"):  # "eager" has its softmax in float32
    config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=16, rms_norm_eps=1e-5, rope_theta=10000.0,
                         tie_word_embeddings=False, attn_implementation=attention)
    return in_own_dtype(LlamaForCausalLM(config))


def bert(attention="eager"):
    config = BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64,
                        max_position_embeddings=16, num_labels=3, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0, attn_implementation=attention)
    return BertForSequenceClassification(config)


def vit(attention="sdpa"):  # "eager" has its softmax in float32
    config = ViTConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24, image_size=16,
                       patch_size=8, num_labels=3, attn_implementation=attention)
    return ViTForImageClassification(config)


# name: (model, vocabulary, sequence length, LoraConfig's arguments)
CASES = {
    "gpt2": (gpt2, 65, 16, dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], task_type="CAUSAL_LM")),
    "gpt2_embedding": (gpt2, 65, 16, dict(r=3, lora_alpha=6, target_modules=["wte", "wpe", "mlp.c_fc"])),
    "llama": (llama, 50, 12, dict(r=4, lora_alpha=4, target_modules=r".*\.self_attn\.(q|v)_proj", use_rslora=True,
                                  task_type="CAUSAL_LM")),
    "llama_norm": (llama, 50, 12, dict(r=2, lora_alpha=3, target_modules=["v_proj"], modules_to_save=["norm"])),
    "vit": (vit, 0, 0, dict(r=2, lora_alpha=3, target_modules=["q_proj", "v_proj", "o_proj", "fc2"],
                            modules_to_save=["classifier", "layernorm"])),
    "bert": (bert, 50, 12, dict(r=2, lora_alpha=8, target_modules=["query", "value"],
                                modules_to_save=["classifier"])),
}


def randomise(model, generator):
    """Nothing is 0 or 1 exactly: a forgotten bias or gain changes every number."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            gain = p.dim() == 1 and name.endswith("weight")
            p.copy_(((1.0 if gain else 0.0) + (0.2 if p.dim() > 1 else 0.1) * noise).float())


def run(model, name, inputs):
    if name == "vit":
        logits = model(pixel_values=inputs["images"].to(model.dtype)).logits
        return logits, torch.nn.functional.cross_entropy(logits, inputs["targets"])
    if name == "bert":
        out = model(input_ids=inputs["ids"], attention_mask=inputs["mask"].long(), token_type_ids=inputs["ids"] * 0)
        return out.logits, torch.nn.functional.cross_entropy(out.logits, inputs["targets"])
    logits = model(input_ids=inputs["ids"]).logits
    return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), inputs["targets"].flatten())


def train(model, name, inputs):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0,
                                  foreach=False)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = run(model, name, inputs)[1]
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
    return torch.stack(losses)


def make_base(name, dtype=torch.float64):
    torch.manual_seed(7)
    model = CASES[name][0]().to(torch.float64)
    randomise(model, torch.Generator().manual_seed(11))
    return model.to(dtype).eval()


def in_files(name):
    """The name of ViT's parameters in published files: transformers 5 has others in memory, and PEFT's adapters have those."""
    for now, then in (("vit.layers.", "vit.encoder.layer."), (".attention.o_proj.", ".attention.output.dense."),
                      (".attention.q_proj.", ".attention.attention.query."),
                      (".attention.k_proj.", ".attention.attention.key."),
                      (".attention.v_proj.", ".attention.attention.value."), (".mlp.fc1.", ".intermediate.dense."),
                      (".mlp.fc2.", ".output.dense.")):
        if name.startswith("vit."):
            name = name.replace(now, then)
    return name


def record(folder, name):
    _, vocabulary, length, arguments = CASES[name]
    generator = torch.Generator().manual_seed(13)
    if name == "vit":
        inputs = {"images": torch.randn(2, 3, 16, 16, generator=generator, dtype=torch.float64),
                  "targets": torch.randint(3, (2,), generator=generator)}
    else:
        inputs = {"ids": torch.randint(vocabulary, (2, length), generator=generator)}
    if name == "bert":
        inputs["targets"] = torch.randint(3, (2,), generator=generator)
        inputs["mask"] = torch.arange(length)[None] < torch.tensor([[length], [7]])
    elif name != "vit":
        inputs["targets"] = torch.randint(vocabulary, (2, length), generator=generator)
    out = {k: v for k, v in inputs.items()}
    base = make_base(name)
    seen = set()
    for key, p in base.named_parameters():
        if p.data_ptr() not in seen:
            out["base." + in_files(key)] = p.detach().float()
        seen.add(p.data_ptr())
    model = get_peft_model(base, LoraConfig(**arguments), autocast_adapter_dtype=False).to(torch.float64)
    with torch.no_grad():  # PEFT starts half of the matrices at zero
        for key, p in model.named_parameters():
            if "lora_" in key:
                p.copy_(0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
            elif "modules_to_save" in key:
                p.add_(0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    case = os.path.join(folder, "lora_" + name)
    model.save_pretrained(case, save_embedding_layers=False)
    for extra in ("README.md",):
        if os.path.exists(os.path.join(case, extra)):
            os.remove(os.path.join(case, extra))
    config = os.path.join(case, "adapter_config.json")
    with open(config) as f:
        fields = json.load(f)
    if isinstance(fields["target_modules"], list):
        fields["target_modules"].sort()  # a set in PEFT: the order changes from run to run
    with open(config, "w") as f:
        json.dump(fields, f, indent=2, sort_keys=True)
    model.eval()
    out["logits"] = run(model, name, inputs)[0].detach()
    out["losses"] = train(model, name, inputs)
    for key, value in get_peft_model_state_dict(model, save_embedding_layers=False).items():
        out["trained." + key] = value.detach().clone()
    narrow = PeftModel.from_pretrained(make_base(name, torch.float32), case, is_trainable=True).eval()
    out["losses_f32"] = train(narrow, name, inputs).double()
    save_file({k: v.contiguous() for k, v in sorted(out.items())}, os.path.join(case, "values.safetensors"))
    os.chmod(os.path.join(case, "values.safetensors"), 0o644)
    os.chmod(os.path.join(case, "adapter_model.safetensors"), 0o644)
    size = sum(os.path.getsize(os.path.join(case, f)) for f in os.listdir(case))
    print(f"{name}: {size} bytes, loss {out['losses'][0]:.6f} -> {out['losses'][-1]:.6f}; torch's own f32 is off by "
          f"{(out['losses_f32'] - out['losses']).abs().max():.1e}")


def check(folder):
    worst = 0.0
    for name in CASES:
        saved = os.path.join(folder, name)
        if not os.path.isdir(saved):
            continue
        given = load_file(saved + ".safetensors")
        inputs = load_file(os.path.join(HERE, "lora_" + name, "values.safetensors"))
        model = PeftModel.from_pretrained(make_base(name), saved, autocast_adapter_dtype=False).to(torch.float64).eval()
        # Every tensor of the file must have arrived.
        loaded = get_peft_model_state_dict(model, save_embedding_layers=False)
        file = load_file(os.path.join(saved, "adapter_model.safetensors"))
        assert set(loaded) == set(file), (sorted(set(loaded) ^ set(file)))
        for key, value in file.items():
            assert torch.equal(loaded[key].double(), value.double()), key
        logits = run(model, name, inputs)[0].detach()
        off = float((logits - given["logits"]).abs().max() / given["logits"].abs().max())
        print(f"{name}: logits differ by {off:.1e} of the largest")
        worst = max(worst, off)
    return 0 if worst <= 1e-10 else 1


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if len(sys.argv) > 2 and sys.argv[1] == "--check":
        sys.exit(check(sys.argv[2]))
    folder = sys.argv[1] if len(sys.argv) > 1 else HERE
    for name in sys.argv[2:] or CASES:
        record(folder, name)


if __name__ == "__main__":
    main()
