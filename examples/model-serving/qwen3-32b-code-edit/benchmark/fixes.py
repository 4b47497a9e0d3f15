"""Code to mend: small Python programs with one mistake each, the mended programs, and how near an answer is to them.

The same file lies beside checker.py and benchmark.py. Programs are put together when they are asked for: the names in them
are drawn from a seed, so that none has been seen before, and the mistake is one of several. An answer counts as a fix where
it is nearer to the mended program than the program with the mistake is: who repeats the input never gets there.
"""

from __future__ import annotations

import difflib
import random
import re
from dataclasses import dataclass

_SYLLABLES = "ba ve ro ki zu mar tel dor vin lo sha gre nok pel ras tu wen xi yor dak".split()
_FIELDS = "price weight score delay quantity rating distance balance".split()


@dataclass(frozen=True)
class Fix:
    """One task: what is asked, the program with the mistake, the mended one, and the invented name in both."""

    ask: str
    broken: str
    mended: str
    name: str


@dataclass(frozen=True)
class _Program:
    text: str
    mistakes: tuple[tuple[str, str], ...]


# Each mistake is (as it should be, as it is written); the left side stands once in its program.
_PROGRAMS = (
    _Program(
        '''def NAME_total(items, rate):
    """The sum of every FIELD, with a surcharge for the large ones."""
    total = 0
    for item in items:
        if item["FIELD"] >= 100:
            total += item["FIELD"] * (1 + rate)
        else:
            total += item["FIELD"]
    return round(total, 2)


print(NAME_total([{"FIELD": 40}, {"FIELD": 100}], 0.1))
''',
        (("    total = 0\n", "    total = 1\n"), (">= 100", "> 100"), ("(1 + rate)", "(1 - rate)")),
    ),
    _Program(
        '''def NAME_search(values, wanted):
    """The place of `wanted` in sorted values, or -1."""
    low, high = 0, len(values) - 1
    while low <= high:
        middle = (low + high) // 2
        if values[middle] == wanted:
            return middle
        if values[middle] < wanted:
            low = middle + 1
        else:
            high = middle - 1
    return -1


print(NAME_search([2, 3, 5, 8, 13], 8))
''',
        (("low <= high", "low < high"), ("low = middle + 1", "low = middle"), ("len(values) - 1", "len(values)")),
    ),
    _Program(
        '''class NAMEStack:
    """A stack that remembers its largest FIELD."""

    def __init__(self):
        self.items = []
        self.largest = []

    def push(self, value):
        self.items.append(value)
        if not self.largest or value >= self.largest[-1]:
            self.largest.append(value)

    def pop(self):
        value = self.items.pop()
        if value == self.largest[-1]:
            self.largest.pop()
        return value


stack = NAMEStack()
''',
        (
            ("value >= self.largest[-1]", "value > self.largest[-1]"),
            ("self.items.pop()", "self.items.pop(0)"),
            ("value == self.largest[-1]", "value != self.largest[-1]"),
        ),
    ),
    _Program(
        '''def NAME_groups(rows):
    """Rows by their FIELD, each group sorted by name."""
    groups = {}
    for row in rows:
        key = row["FIELD"]
        if key not in groups:
            groups[key] = []
        groups[key].append(row["name"])
    for key in groups:
        groups[key].sort()
    return groups


print(NAME_groups([{"FIELD": 2, "name": "b"}, {"FIELD": 2, "name": "a"}]))
''',
        (
            ("if key not in groups", "if key in groups"),
            ('append(row["name"])', 'append(row["FIELD"])'),
            ("groups[key].sort()", "sorted(groups[key])"),
        ),
    ),
    _Program(
        '''def NAME_windows(values, size):
    """The mean of every window of `size` values, one after another."""
    means = []
    total = sum(values[:size])
    means.append(total / size)
    for index in range(size, len(values)):
        total += values[index] - values[index - size]
        means.append(total / size)
    return means


print(NAME_windows([1, 2, 3, 4, 5], 2))
''',
        (
            ("range(size, len(values))", "range(size, len(values) - 1)"),
            ("values[index - size]", "values[index - size + 1]"),
            ("sum(values[:size])", "sum(values[1:size])"),
        ),
    ),
    _Program(
        '''def NAME_parse(line):
    """Key and FIELD out of `key = value  # comment`; None for an empty line."""
    line = line.split("#")[0].strip()
    if not line:
        return None
    key, found, value = line.partition("=")
    if not found:
        raise ValueError("no FIELD in " + line)
    return key.strip(), int(value.strip())


print(NAME_parse("depth = 3  # FIELD"))
''',
        (
            ('line.split("#")[0]', 'line.split("#")[-1]'),
            ("if not found:", "if found:"),
            ("key.strip(), int(value.strip())", "value.strip(), int(key.strip())"),
        ),
    ),
    _Program(
        '''def NAME_merge(left, right):
    """Two sorted lists as one sorted list."""
    merged = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]


print(NAME_merge([1, 4, 6], [2, 3, 9]))
''',
        (
            ("len(left) and j", "len(left) or j"),
            ("merged + left[i:] + right[j:]", "merged + left[i:]"),
            ("merged.append(right[j])", "merged.append(left[j])"),
        ),
    ),
    _Program(
        '''def NAME_retry(action, times):
    """The action's result; its last error where it fails `times` times."""
    for attempt in range(1, times + 1):
        try:
            return action()
        except OSError:
            if attempt == times:
                raise
            print("NAME: attempt", attempt, "failed")
    raise ValueError("times must be at least 1")


print(NAME_retry(lambda: "FIELD", 3))
''',
        (
            ("range(1, times + 1)", "range(1, times)"),
            ("if attempt == times", "if attempt != times"),
            ("return action()", "return action"),
        ),
    ),
)


def make(generator: random.Random, suffix: str = "") -> Fix:
    """A task that nobody has seen before. `suffix` ends the question (a model's own switch, for instance)."""
    program = generator.choice(_PROGRAMS)
    name = "".join(generator.sample(_SYLLABLES, 3))
    mended = program.text.replace("NAME", name).replace("FIELD", generator.choice(_FIELDS))
    right, wrong = (side.replace("NAME", name) for side in generator.choice(program.mistakes))
    field = re.search(r"(" + "|".join(_FIELDS) + ")", mended)
    if field is not None:
        right, wrong = (side.replace("FIELD", field[1]) for side in (right, wrong))
    broken = mended.replace(right, wrong, 1)
    ask = (
        "This Python program has one mistake. Answer with the whole program, mended, in one code block and with nothing "
        f"else; change no more than the mistake.\n\n```python\n{broken}```\n\nThe names with {name} in them stay as they are."
    )
    return Fix(f"{ask}\n{suffix}" if suffix else ask, broken, mended, name)


def code_of(answer: str) -> str:
    """The program in an answer: its first code block, else the whole of it; what a model thinks aloud is left out."""
    answer = re.sub(r"(?s)^\s*<think>.*?</think>", "", answer)
    block = re.search(r"(?s)```[\w+-]*\n(.*?)(?:```|\Z)", answer)
    return (block[1] if block else answer).strip()


def nearness(a: str, b: str) -> float:
    """How alike two programs are, 0 to 1: matching words and signs over all of them; spaces count at a line's start only."""
    words = [re.findall(r"\n *|\w+|[^\w\s]", text.strip()) for text in (a, b)]
    return difflib.SequenceMatcher(None, *words, autojunk=False).ratio()


def is_fix(fix: Fix, answer: str) -> bool:
    """Whether an answer is nearer to the mended program than the input is."""
    return nearness(code_of(answer), fix.mended) > nearness(fix.broken, fix.mended)


def summary(pairs: list[tuple[Fix, str]]) -> dict[str, float | int]:
    """Of tasks and answers: the share of fixes, of mere repetitions, and the mean nearness of answers and of inputs."""
    count = max(1, len(pairs))
    return {
        "n": len(pairs),
        "fixed": sum(is_fix(fix, answer) for fix, answer in pairs) / count,
        "repeated": sum(nearness(code_of(answer), fix.broken) == 1.0 for fix, answer in pairs) / count,
        "answers_nearness": sum(nearness(code_of(answer), fix.mended) for fix, answer in pairs) / count,
        "inputs_nearness": sum(nearness(fix.broken, fix.mended) for fix, answer in pairs) / count,
    }
