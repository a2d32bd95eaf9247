#!/usr/bin/env python3
"""Records what jinja2 3.1.6, set up as transformers 5.23.0 does, makes of small templates.

    record_jinja.py

Reads jinja/snippets.txt (templates divided by lines of ===) and writes jinja/snippets.jsonl: lines of {"template", "text",
"generation"} (what generation blocks cover, in bytes) or {"template", "error"}. The variables are in the first line.
"""
import datetime
import json
import pathlib

import jinja2
import transformers.utils.chat_template_utils as utils

assert jinja2.__version__ == "3.1.6", jinja2.__version__
FOLDER = pathlib.Path(__file__).resolve().parent / "jinja"
VARIABLES = {
    "messages": [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yo é\n x",
         "tool_calls": [{"type": "function",
                         "function": {"name": "f", "arguments": {"a": 1, "b": [1.5, None, True, "q\"'\n"]}}}]},
        {"role": "user", "content": "bye", "n": 3},
    ],
    "s": "Hello, Wörld  foo\tbar\n baz", "l": [3, 1, 2, 1], "d": {"b": 1, "A": 2, "items": 5, "c": {"x": [1, {"y": "z"}]}},
    "f": 2.5, "n": None, "t": True, "e": [], "i": 7, "neg": -7, "mixed": ["b", "A", "a", "C"], "bos_token": "<s>",
    "eos_token": "</s>", "deg": "ΑΣ ΑΣΑ ß ǆ İ ﬁ", "ws": "  \u00a0 a b \u2003\x1c",
}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime.datetime(2024, 7, 26)


def record(template):
    try:
        compiled = utils._cached_compile_jinja_template(template)
        blocks, generation = [], []
        with compiled.environment.activate_tracker(blocks, generation):
            for block in compiled.generate(**VARIABLES):
                blocks.append(block)
    except Exception as error:
        return {"template": template, "error": f"{type(error).__name__}: {error}"}
    text = "".join(blocks)
    spans = [[len(text[:begin].encode()), len(text[:end].encode())] for begin, end in generation]
    return {"template": template, "text": text, "generation": spans}


def main():
    utils.datetime = Clock
    snippets = (FOLDER / "snippets.txt").read_text().removesuffix("\n").split("\n===\n")
    lines = [{"variables": VARIABLES}] + [record(template) for template in snippets]
    (FOLDER / "snippets.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


if __name__ == "__main__":
    main()
