#!/usr/bin/env python3
"""Measures speculative decoding where a model edits a file and prints the whole file: it renames a function and updates
its callers, or fixes a comparison. Start a server with the model first, and send it no other requests meanwhile:

    indrik serve -m qwen2.5-coder:1.5b
    scripts/edit_task.py --repeats 3
    scripts/edit_task.py --repeats 3 --task fix

Each repetition sends three requests: without drafts, with drafts from the prompt, and with the old file as OpenAI's
`prediction`. The time is measured from the first token to the last. All answers must be equal.
"""

import argparse
import json
import pathlib
import statistics
import sys
import time
import urllib.request

FILE = pathlib.Path(__file__).parent / "edit_task" / "stock.py"
# What is asked for, and the text to replace in the file.
TASKS = {
    "rename": ("Rename the function `calc` to `find_item` and update its callers.", "calc", "find_item"),
    "fix": (
        "Fix the function `missing`: an item is missing if its count is at most the minimum.",
        "item.count < item.minimum",
        "item.count <= item.minimum",
    ),
}
REQUEST = (
    "{} Change nothing else. Print the whole file in one code block, without any other text.\n\n```python\n{}```"
)
PROSE = "Write a short story about a lighthouse keeper who finds a letter."


def ask(url, body):
    """The answer, its tokens, and the seconds from its first token to its last."""
    body |= {"temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode())
    request.add_header("Content-Type", "application/json")
    text, first, last, usage = "", None, None, None
    with urllib.request.urlopen(request) as response:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                if choice["delta"].get("content"):
                    last = time.monotonic()
                    first = first or last
                    text += choice["delta"]["content"]
    return text, usage, last - first


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8006")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--task", choices=TASKS, default="rename")
    parser.add_argument("--prose", action="store_true", help="a story instead, in which nothing repeats itself")
    parser.add_argument("--max-tokens", type=int, default=900)
    arguments = parser.parse_args()

    old = FILE.read_text()
    with urllib.request.urlopen(arguments.url + "/v1/models") as response:
        model = json.load(response)["data"][0]["id"]
    instruction, before, after = TASKS[arguments.task]
    content = PROSE if arguments.prose else REQUEST.format(instruction, old)
    body = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": arguments.max_tokens,
    }
    variants = {"off": {"speculate": False}, "auto": {}}
    if not arguments.prose:
        variants["prediction"] = {"prediction": {"type": "content", "content": "```python\n" + old + "```"}}
    # Fills the prefix cache with the prompt.
    ask(arguments.url, body | {"max_tokens": 2, "speculate": False})

    speeds, answers = {name: [] for name in variants}, set()
    for _ in range(arguments.repeats):
        for name, fields in variants.items():
            text, usage, seconds = ask(arguments.url, body | fields)
            speeds[name].append((usage["completion_tokens"] - 1) / seconds)
            answers.add(text)
            print(f"{name}: {speeds[name][-1]:.2f} tok/s, {usage['completion_tokens']} tokens", flush=True)
    off = statistics.median(speeds["off"])
    for name, list_ in speeds.items():
        median = statistics.median(list_)
        print(f"{name}: median {median:.2f} tok/s ({min(list_):.2f}-{max(list_):.2f}), {median / off:.2f} x")
    answer = answers.pop()
    if answers:
        sys.exit("the answers differ")
    if not arguments.prose and usage["completion_tokens"] < arguments.max_tokens:
        edited = answer.strip().removeprefix("```python").removesuffix("```").strip()
        is_right = edited == old.replace(before, after).strip()
        print("the file is", "as asked for" if is_right else "not quite as asked for:\n" + answer)


if __name__ == "__main__":
    main()
