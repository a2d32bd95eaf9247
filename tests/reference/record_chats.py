#!/usr/bin/env python3
"""Records what transformers makes of conversations with chat templates.

    record_chats.py        (needs transformers 5.23.0; the tokenizers are those of record_tokenizers.py)

Writes tests/reference/chats/NAME.json (the tokenizer, with the template's markers) and NAME.txt. A line is one
conversation, its fields between tabs: messages as JSON, ids and the assistant's mask (lists between spaces), and the ids
of the prompt that asks for the next words. The mask is transformers' own: {% generation %} stands around the words and
their end marker.
"""
import json
import pathlib

import transformers
from tokenizers import Tokenizer

assert transformers.__version__ == "5.23.0", transformers.__version__
HERE = pathlib.Path(__file__).resolve().parent
OUT = HERE / "chats"

CHATML = """{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' }}{% if m['role'] == 'assistant' %}\
{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + '<|im_end|>' }}{% endif %}\
{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA3 = """{{ '<|begin_of_text|>' }}{% for m in messages %}\
{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' }}{% if m['role'] == 'assistant' %}\
{% generation %}{{ m['content'] | trim + '<|eot_id|>' }}{% endgeneration %}{% else %}\
{{ m['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
ZEPHYR = """{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' }}{% if m['role'] == 'assistant' %}\
{% generation %}{{ m['content'] + '</s>' }}{% endgeneration %}{% else %}{{ m['content'] + '</s>' }}{% endif %}{{ '\\n' }}\
{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""

CASES = {
    "chatml": ("qwen2", CHATML, ["<|im_start|>", "<|im_end|>"]),
    "llama3": ("llama3", LLAMA3, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]),
    "zephyr": ("llama2", ZEPHYR, []),  # its markers but </s> are text
}
CONVERSATIONS = [
    [("user", "the number"), ("assistant", "is 42.")],
    [("system", "You are the runner."), ("user", "Hi!\n\nWho?"), ("assistant", "  naïve\n"), ("user", " again "),
     ("assistant", "Привет 世界")],
    [("user", "a\n"), ("assistant", "\nb"), ("user", "1 2 3"), ("assistant", "c {content} \\n")],
    [("system", "x"), ("assistant", "first"), ("user", "y")],
    [("user", "don't"), ("assistant", "'ll")],
]


def main():
    OUT.mkdir(exist_ok=True)
    for name, (base, template, markers) in CASES.items():
        tokenizer = Tokenizer.from_file(str(HERE / "tokenizers" / f"{base}.json"))
        tokenizer.add_special_tokens(markers)
        path = OUT / f"{name}.json"
        tokenizer.save(str(path), pretty=False)
        fast = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
        lines = []
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": content} for role, content in conversation]
            whole = fast.apply_chat_template(messages, chat_template=template, return_dict=True,
                                             return_assistant_tokens_mask=True)
            prompt = fast.apply_chat_template(messages, chat_template=template, add_generation_prompt=True)
            prompt = prompt["input_ids"] if hasattr(prompt, "keys") else prompt
            lists = [whole["input_ids"], whole["assistant_masks"], prompt]
            lines.append("\t".join([json.dumps({"messages": messages}, ensure_ascii=False)] +
                                   [" ".join(map(str, one)) for one in lists]))
        (OUT / f"{name}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
