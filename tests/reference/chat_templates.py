#!/usr/bin/env python3
"""Chat templates against transformers 5.23.0: what it makes of conversations, recorded or compared.

    chat_templates.py record                        writes chat_templates/*.jsonl and the tokenizers, which CTest reads
    chat_templates.py compare PROGRAM [--count N] [--seed N]
        N random conversations (default 2000) for the templates together, through fuzz_chat_template --serve

The templates (chat_templates/NAME.jinja) are in the manner of published families. A line of NAME.jsonl is {"conversation",
"add_generation_prompt", "text", "ids", "mask"}, or {"conversation", "add_generation_prompt", "error"} where the template
refuses it. The tokenizers are those of record_tokenizers.py with the markers of all families.
"""
import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile

import transformers
from tokenizers import Tokenizer

assert transformers.__version__ == "5.23.0", transformers.__version__
HERE = pathlib.Path(__file__).resolve().parent
FOLDER = HERE / "chat_templates"
SENTENCE_PIECE = {"llama2", "mistral_tools", "gemma", "zephyr"}
SPECIAL = """<|im_start|> <|im_end|> <|begin_of_text|> <|start_header_id|> <|end_header_id|> <|eot_id|> [INST] [/INST]
[TOOL_CALLS] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] <start_of_turn> <end_of_turn> <|system|>
<|user|> <|assistant|> <|end|> <｜User｜> <｜Assistant｜> <｜sep｜> <|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|>
<|USER_TOKEN|> <|CHATBOT_TOKEN|> <|SYSTEM_TOKEN|> <|start_of_role|> <|end_of_role|> <|end_of_text|> <s> </s>""".split()
ORDINARY = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
WORDS = ["the", "number", "is", "42.", "naïve", "Привет", "世界", "don't", "x = {1: 'y'}", "\n", "\n\n", "  ", "\t", "😀",
         "<b>", '"quoted"', "a\\b", "{{ x }}", "{% y %}", "</think>", "<think>", "İ", "1e5", "-"]


def tokenizer_path(name):
    return FOLDER / ("llama.json" if name in SENTENCE_PIECE else "qwen.json")


def write_tokenizers():
    for base, out in [("qwen2", "qwen.json"), ("llama2", "llama.json")]:
        tokenizer = Tokenizer.from_file(str(HERE / "tokenizers" / f"{base}.json"))
        tokenizer.add_special_tokens(SPECIAL)
        tokenizer.add_tokens(ORDINARY)
        tokenizer.save(str(FOLDER / out), pretty=False)


def reference(name):
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tokenizer_path(name)), **config)
    tokenizer.chat_template = (FOLDER / f"{name}.jinja").read_text()
    return tokenizer


def sentence(rng, most=8):
    return rng.choice(["", "", " "]) + " ".join(rng.choice(WORDS) for _ in range(rng.randrange(most))) + rng.choice(["", "", "\n"])


def value(rng, depth=0):
    kind = rng.randrange(8 if depth < 2 else 6)
    if kind == 6:
        return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
    if kind == 7:
        return {rng.choice(["a", "b", "items", "é"]): value(rng, depth + 1) for _ in range(rng.randrange(3))}
    return [None, True, rng.randrange(-9, 99), rng.random() * 10 ** rng.randrange(-6, 20), sentence(rng, 3), "x"][kind]


def tool(rng):
    properties = {
        rng.choice(["city", "Unit", "n", "when"]): {
            "type": rng.choice(["string", "integer", "boolean", "object", ["string", "null"], "array"]),
            "items": {"type": "number"},
            "description": sentence(rng, 4),
        }
        for _ in range(rng.randrange(4))
    }
    function = {"name": rng.choice(["get", "put_it"]), "description": "Does\n\n" + sentence(rng, 4),
                "parameters": {"type": "object", "properties": properties}}
    if rng.random() < 0.5:
        function["parameters"]["required"] = sorted(properties)[:1]
    return {"type": "function", "function": function}


def assistant(rng, calls):
    message = {"role": "assistant", "content": sentence(rng)}
    if rng.random() < 0.2:
        message["content"] = "<think>\n" + sentence(rng, 4) + "\n</think>\n\n" + message["content"]
    elif rng.random() < 0.15:
        message[rng.choice(["reasoning_content", "thinking", "reasoning"])] = sentence(rng, 4)
    if calls and rng.random() < 0.4:
        message["tool_calls"] = [
            {"id": "abcdefghi", "type": "function",
             "function": {"name": "get", "arguments": {"city": value(rng), "k": value(rng)}}}
            for _ in range(rng.choice([1, 1, 1, 2]))
        ]
        if rng.random() < 0.3:
            message["content"] = None
    return message


def conversation(rng):
    out = {"messages": []}
    messages = out["messages"]
    calls = rng.random() < 0.5
    if calls:
        out["tools"] = [tool(rng) for _ in range(rng.choice([1, 1, 2]))]
    if rng.random() < 0.15:
        out["documents"] = [{"title": sentence(rng, 3), "text": sentence(rng)} for _ in range(rng.randrange(1, 3))]
    if rng.random() < 0.2:
        out["chat_template_kwargs"] = rng.choice([{"enable_thinking": False}, {"date_string": "1 May"}, {"controls": {"a": 1}}])
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": sentence(rng)})
    for _ in range(rng.randrange(1, 4)):
        content = sentence(rng)
        if rng.random() < 0.05:
            content = [{"type": "text", "text": content}, {"type": "image"}]
        messages.append({"role": "user", "content": content})
        if rng.random() < 0.9:
            messages.append(assistant(rng, calls))
            if "tool_calls" in messages[-1] and rng.random() < 0.9:
                messages.append({"role": "tool", "content": sentence(rng), "tool_call_id": "abcdefghi"})
                messages.append(assistant(rng, False))
    return out


def expected(tokenizer, chat, prompt):
    kwargs = chat.get("chat_template_kwargs", {})
    try:
        with_mask = "generation" in tokenizer.chat_template and "{%- generation" in tokenizer.chat_template
        out = tokenizer.apply_chat_template(
            chat["messages"], tools=chat.get("tools"), documents=chat.get("documents"), add_generation_prompt=prompt,
            return_dict=True, return_assistant_tokens_mask=with_mask, **kwargs)
        text = tokenizer.apply_chat_template(
            chat["messages"], tools=chat.get("tools"), documents=chat.get("documents"), add_generation_prompt=prompt,
            tokenize=False, **kwargs)
    except Exception as error:  # of the template, or of the reference on a value that the template does not expect
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    ids = list(out["input_ids"])
    return {"text": text, "ids": ids, "mask": list(out["assistant_masks"]) if with_mask else [0] * len(ids)}


def names():
    return sorted(path.stem for path in FOLDER.glob("*.jinja"))


def record():
    write_tokenizers()
    rng = random.Random(7)
    for name in names():
        tokenizer = reference(name)
        lines, refused = [], 0
        while len(lines) < 12:
            chat, prompt = conversation(rng), rng.random() < 0.5
            made = expected(tokenizer, chat, prompt)
            if "error" in made:
                refused += 1
                if refused > 3:
                    continue
                made = {"error": True}
            lines.append(json.dumps({"conversation": chat, "add_generation_prompt": prompt, **made}, ensure_ascii=False))
        (FOLDER / f"{name}.jsonl").write_text("\n".join(lines) + "\n")


def compare(program, count, seed):
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as scratch:
        folders, tokenizers = {}, {}
        for name in names():
            folder = pathlib.Path(scratch) / name
            folder.mkdir()
            shutil.copy(tokenizer_path(name), folder / "tokenizer.json")
            shutil.copy(FOLDER / f"{name}.jinja", folder / "chat_template.jinja")
            (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "</s>"}')
            folders[name], tokenizers[name] = str(folder), reference(name)
        requests, wanted = [], []
        for i in range(count):
            name = names()[i % len(names())]
            chat, prompt = conversation(rng), rng.random() < 0.5
            requests.append({"folder": folders[name], "conversation": chat, "add_generation_prompt": prompt, "mask": "blocks"})
            wanted.append((name, expected(tokenizers[name], chat, prompt)))
        lines = "".join(json.dumps(one) + "\n" for one in requests)
        run = subprocess.run([program, "--serve"], input=lines, capture_output=True, text=True)
        if run.returncode:
            sys.exit(f"{program} ended with {run.returncode}: {run.stderr[-2000:]}")
        answers = [json.loads(line) for line in run.stdout.splitlines()]
    same = refused = differ = lacking = 0
    for request, (name, want), have in zip(requests, wanted, answers, strict=True):
        if "error" in want and "error" in have:
            refused += 1
        elif "error" not in want and have == want:
            same += 1
        elif "error" in have:
            lacking += 1
            print(f"{name}: refused here only: {have['error'][:300]}")
        else:
            differ += 1
            print(f"{name}: DIFFERENT for {json.dumps(request['conversation'])[:600]}\n  wanted {str(want)[:600]}\n  got    {str(have)[:600]}")
    print(f"{count} conversations: {same} equal, {refused} refused by both, {lacking} refused here only, {differ} different")
    return 1 if differ else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("program", nargs="?")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.what == "record":
        return record()
    return compare(args.program, args.count, args.seed)


if __name__ == "__main__":
    sys.exit(main())
