"""Makes edits.jsonl: what a server writes for coding tasks, and the same texts as somebody has edited them since.

    python make_edits.py --url http://localhost:8000 --model-dir ../reference/model

The server must be one that passes the accuracy checker (the reference will do). Each row has the task (`ask`), the edited
text (`prediction`), a word of the answer (`sentinel`) and the share of the answer's tokens that the prediction lacks
(`changed`). Edits are drawn from --seed: lines inserted and deleted, words replaced.
"""

from __future__ import annotations

import argparse
import difflib
import json
import random
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
THINGS = "invoice ticket sensor route parcel recipe playlist booking shelf ledger".split()
FIELDS = "price weight score delay quantity rating distance balance".split()
TASKS = (
    "Write a Python class for a {thing} with a {field}, with methods to add, remove, list and summarise {thing}s.",
    "Write a Python module that reads {thing}s from a CSV file, filters them by {field} and prints a report.",
    "Write a Python function that sorts {thing}s by {field}, with a docstring, an example and unit tests.",
    "Write a Flask application that stores {thing}s with a {field} in SQLite, with create, read, update and delete.",
)
MOST_CHANGED = 0.10


def edited(text: str, generator: random.Random) -> str:
    """A line inserted, a line deleted, three words replaced."""
    lines = text.split("\n")
    at = generator.randrange(1, len(lines))
    lines.insert(at, f"    # checked {generator.randrange(100, 999)}")
    short = [n for n, line in enumerate(lines) if 0 < len(line) < 30 and n != at]
    if short:
        lines.pop(generator.choice(short))
    text = "\n".join(lines)
    for match in sorted(
        generator.sample(list(re.finditer(r"[a-z]{4,}", text)), 3), key=lambda found: found.start(), reverse=True
    ):
        text = text[: match.start()] + generator.choice(FIELDS) + text[match.end() :]
    return text


def ask(url: str, task: str, max_tokens: int) -> tuple[str, list[int], str]:
    """The server's greedy answer: text, ids, finish reason."""
    body = {"messages": [{"role": "user", "content": task}], "temperature": 0, "max_tokens": max_tokens}
    data = json.dumps(body | {"return_token_ids": True}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as response:
        choice = json.load(response)["choices"][0]
    return choice["message"]["content"], choice["token_ids"], choice["finish_reason"]


def rows(args: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Rows until there are enough; answers that end early, and edits that change too much, are left out."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(args.model_dir / "tokenizer.json"))
    generator = random.Random(args.seed)
    tasks = [task.format(thing=thing, field=field) for thing in THINGS for field in FIELDS for task in TASKS]
    generator.shuffle(tasks)
    made = 0
    for task in tasks:
        if made == args.count:
            return
        text, ids, reason = ask(args.url, task, args.max_tokens)
        thing = next(word for word in THINGS if word in task)
        if reason != "length" or thing not in text.lower() or "\ufffd" in text:
            continue
        prediction = edited(text, generator)
        matcher = difflib.SequenceMatcher(None, tokenizer.encode(prediction).ids, ids, autojunk=False)
        changed = 1 - sum(block.size for block in matcher.get_matching_blocks()) / len(ids)
        if 0.02 <= changed <= MOST_CHANGED:
            made += 1
            yield {"ask": task, "prediction": prediction, "sentinel": thing, "changed": round(changed, 4)}


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--model-dir", type=Path, default=HERE.parent / "reference" / "model")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--max-tokens", type=int, default=192)
    parser.add_argument("--output", type=Path, default=HERE / "edits.jsonl")
    args = parser.parse_args()
    made = [json.dumps(row, ensure_ascii=False) for row in rows(args)]
    args.output.write_text("".join(f"{line}\n" for line in made), encoding="utf-8")
    print(f"{len(made)} edits in {args.output}")


if __name__ == "__main__":
    main()
