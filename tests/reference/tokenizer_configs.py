#!/usr/bin/env python3
"""tokenizer.json beside a tokenizer_config.json that disagrees with it, against AutoTokenizer of transformers 5.23.0.

    tokenizer_configs.py compare PROGRAM      (fuzz_chat_template; not in CI)
    tokenizer_configs.py record               writes tokenizers/configs.jsonl, which CTest reads

For each tokenizer of record_tokenizers.py, each class and each field: ids of some texts. Equal, or an error that names a
field, here. A line of configs.jsonl is {"base", "config", "ids": a list for each of "texts"}, which the first line has.
"""
import json
import logging
import pathlib
import shutil
import subprocess
import sys
import tempfile

import transformers

assert transformers.__version__ == "5.23.0", transformers.__version__
logging.disable(logging.CRITICAL)
FOLDER = pathlib.Path(__file__).resolve().parent / "tokenizers"
TEXTS = ["Hello World", "  two spaces", "naïve CAFÉ", "世界 hello", "a [SEP] b <s> c </s> [MASK] <|endoftext|>", "the number is 42.",
         "the the  the", " ", "a<extra>b <img> <newbos>the", "x\n\ny <mask> z"]
CLASSES = {
    "bert_uncased": ["BertTokenizer", "DistilBertTokenizerFast", "PreTrainedTokenizerFast"],
    "bert_cased": ["BertTokenizer", "PreTrainedTokenizerFast"],
    "gpt2": ["GPT2Tokenizer", "PreTrainedTokenizerFast"],
    "roberta": ["RobertaTokenizer", "RobertaTokenizerFast"],
    "llama2": ["LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast"],
    "metaspace": ["LlamaTokenizer", "PreTrainedTokenizerFast"],
    "llama3": ["PreTrainedTokenizerFast", "LlamaTokenizer"],
    "qwen2": ["Qwen2Tokenizer", "PreTrainedTokenizerFast"],
}
TOKEN = {"special": True, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
FIELDS = [
    {}, {"do_lower_case": True}, {"do_lower_case": False}, {"strip_accents": True}, {"strip_accents": False},
    {"tokenize_chinese_chars": False}, {"do_lower_case": False, "strip_accents": True}, {"add_prefix_space": True},
    {"add_prefix_space": False}, {"add_prefix_space": None}, {"split_special_tokens": True}, {"add_bos_token": True},
    {"add_bos_token": False, "add_eos_token": True}, {"legacy": True}, {"legacy": False}, {"legacy": True, "add_prefix_space": False},
    {"pad_token": "[NEWPAD]"}, {"bos_token": "<newbos>"}, {"unk_token": "the"}, {"eos_token": "</s>"}, {"mask_token": "<mask>"},
    {"mask_token": {**TOKEN, "content": "<mask>", "lstrip": True, "__type": "AddedToken"}},
    {"additional_special_tokens": ["<extra>"]}, {"extra_special_tokens": {"image_token": "<img>"}}, {"extra_special_tokens": ["<extra>"]},
    {"added_tokens_decoder": {"5": {**TOKEN, "content": "the"}}},
    {"added_tokens_decoder": {"9999": {**TOKEN, "content": "<extra>", "lstrip": True}}},
    {"added_tokens_decoder": {"9999": {**TOKEN, "content": "<img>", "special": False}, "10": {**TOKEN, "content": "<extra>"}}},
]


def reference(folder):
    """Ids of the texts, or a string: why transformers refuses the folder."""
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
        return [list(tokenizer(text)["input_ids"]) for text in TEXTS]
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:120]


def make_folder(scratch, name, base, config):
    folder = pathlib.Path(scratch) / name
    folder.mkdir()
    shutil.copy(FOLDER / f"{base}.json", folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def record():
    lines = [{"texts": TEXTS}]
    with tempfile.TemporaryDirectory() as scratch:
        for base, classes in CLASSES.items():
            for i, fields in enumerate(FIELDS):
                config = {"tokenizer_class": classes[0], **fields}
                ids = reference(make_folder(scratch, f"{base}-{i}", base, config))
                if not isinstance(ids, str):
                    lines.append({"base": base, "config": config, "ids": ids})
    text = "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines)
    (FOLDER / "configs.jsonl").write_text(text)


def compare(program):
    requests, wanted = [], []
    with tempfile.TemporaryDirectory() as scratch:
        for base, classes in CLASSES.items():
            for name in classes:
                for i, fields in enumerate(FIELDS):
                    folder = make_folder(scratch, f"{base}-{name}-{i}", base, {"tokenizer_class": name, **fields})
                    ids = reference(folder)
                    ids = [ids] * len(TEXTS) if isinstance(ids, str) else ids
                    for text, one in zip(TEXTS, ids):
                        requests.append({"folder": str(folder), "text": text})
                        wanted.append((f"{base} {name} {json.dumps(fields)}", text, one))
        lines = "".join(json.dumps(one) + "\n" for one in requests)
        run = subprocess.run([program, "--serve"], input=lines, capture_output=True, text=True, check=True)
        answers = [json.loads(line) for line in run.stdout.splitlines()]
    counts, named = {"equal": 0, "error here": 0, "error there only": 0, "DIFFERENT": 0}, set()
    for (what, text, want), have in zip(wanted, answers, strict=True):
        if "error" in have:
            kind = "error here"
        elif isinstance(want, str):
            kind = "error there only"
        else:
            kind = "equal" if have["ids"] == want else "DIFFERENT"
        counts[kind] += 1
        if kind == "DIFFERENT":
            print(f"{what}: {text!r}\n  wanted {want}\n  got    {have['ids']}")
        if kind == "error here" and (what, have["error"]) not in named:
            named.add((what, have["error"]))
            print(f"{what}: {have['error'][-200:]}")
    print(counts)
    return 1 if counts["DIFFERENT"] else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        record()
    elif len(sys.argv) == 3 and sys.argv[1] == "compare":
        sys.exit(compare(sys.argv[2]))
    else:
        sys.exit(__doc__)
