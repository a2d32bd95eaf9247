#!/usr/bin/env python3
"""What PyTorch reaches on the files of examples/classify: a linear probe on frozen embeddings, and fine-tuning.

    classify.py MODEL TRAIN.tsv VALIDATION.tsv [SAVED]

Needs torch and transformers. Options are those of the run in tests/bench/README.md. With SAVED, the folder that
examples/classify has written, transformers loads it and its accuracy is printed as well.
"""
import os
import sys
import time

import torch
import transformers as tr

EPOCHS, BATCH, LR, WARMUP, LENGTH, SEEDS = 5, 16, 1e-4, 0.1, 32, 2
model_path, train_path, val_path, *saved = sys.argv[1:]
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
tr.logging.set_verbosity_error()


def read(path):
    return [line.split("\t", 1) for line in open(path, encoding="utf-8").read().splitlines()]


train, val = read(train_path), read(val_path)
names = sorted({label for label, _ in train})
tokenizer = tr.AutoTokenizer.from_pretrained(model_path)


def encode(rows):
    texts = tokenizer([text for _, text in rows], padding=True, truncation=True, max_length=LENGTH, return_tensors="pt")
    return texts, torch.tensor([names.index(label) for label, _ in rows])


@torch.no_grad()
def accuracy(model, rows):
    model.eval()
    right = 0
    for at in range(0, len(rows), 32):
        texts, labels = encode(rows[at:at + 32])
        right += int((model(**texts).logits.argmax(-1) == labels).sum())
    return right / len(rows)


@torch.no_grad()
def embed(model, rows):
    parts = []
    for at in range(0, len(rows), 64):
        texts, _ = encode(rows[at:at + 64])
        mask = texts["attention_mask"].unsqueeze(-1).float()
        features = model(**texts).last_hidden_state
        parts.append(torch.nn.functional.normalize((features * mask).sum(1) / mask.sum(1), dim=-1))
    return torch.cat(parts)


# ---- A linear probe
body = tr.AutoModel.from_pretrained(model_path).eval()
x, y = embed(body, train), encode(train)[1]
probe = torch.nn.Linear(x.size(1), len(names))
optimizer = torch.optim.Adam(probe.parameters(), lr=0.05, weight_decay=1e-5)
for _ in range(500):
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(probe(x), y).backward()
    optimizer.step()
right = (probe(embed(body, val)).argmax(-1) == encode(val)[1]).float().mean().item()
print(f"linear probe on frozen mean-pooled embeddings: accuracy {right:.4f}")

# ---- Fine-tuning
for seed in range(SEEDS):
    torch.manual_seed(seed)
    model = tr.AutoModelForSequenceClassification.from_pretrained(model_path, num_labels=len(names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0)
    steps = EPOCHS * -(-len(train) // BATCH)
    schedule = tr.get_linear_schedule_with_warmup(optimizer, int(WARMUP * steps), steps)
    start = time.time()
    for _ in range(EPOCHS):
        model.train()
        order = torch.randperm(len(train)).tolist()
        for at in range(0, len(train), BATCH):
            texts, labels = encode([train[i] for i in order[at:at + BATCH]])
            model(**texts, labels=labels).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    seconds = time.time() - start
    print(f"fine-tuned by PyTorch, seed {seed}: accuracy {accuracy(model, val):.4f}, {seconds:.0f} s of training", flush=True)

if saved:
    model = tr.AutoModelForSequenceClassification.from_pretrained(saved[0])
    tokenizer = tr.AutoTokenizer.from_pretrained(saved[0])
    assert [model.config.id2label[i] for i in range(len(names))] == names
    print(f"what examples/classify saved, in transformers: accuracy {accuracy(model, val):.4f}")
