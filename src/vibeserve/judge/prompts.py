"""Fresh prompts for where the benchmark's own could not be learned, and the twins of a prompt.

Common words in an order drawn from a seed, each prompt with a sentinel of its own.
"""

from __future__ import annotations

from random import Random

from vibeserve.base.randomness import stream
from vibeserve.judge.traffic import Prompt

_WORDS = [
    "river",
    "stone",
    "garden",
    "winter",
    "letter",
    "window",
    "music",
    "market",
    "bridge",
    "table",
    "morning",
    "paper",
    "silver",
    "engine",
    "forest",
    "table",
    "village",
    "summer",
    "candle",
    "teacher",
    "history",
    "number",
    "island",
    "travel",
    "kitchen",
    "colour",
    "doctor",
    "planet",
    "summer",
    "building",
    "animal",
    "language",
    "picture",
    "science",
    "mountain",
    "question",
    "answer",
    "machine",
    "station",
    "evening",
    "harvest",
    "weather",
    "ocean",
    "country",
    "building",
    "library",
    "captain",
    "problem",
    "journey",
    "festival",
    "minute",
    "blanket",
    "shoulder",
    "captain",
    "pencil",
    "orange",
    "butter",
]
_SIGNS = "bcdfghjkmnpqrstvwxz"
#: English words a token, about; a prompt is made a little short of what the workload's prompts have.
_WORDS_PER_TOKEN = 0.8


def sentinel(generator: Random) -> str:
    """A word that is in no dictionary."""
    return "".join(generator.choice(_SIGNS) + generator.choice("aeiou") for _ in range(4))


def draw(seed: int, count: int, tokens: int) -> list[str]:
    """`count` prompts of about `tokens` tokens; the same seed gives the same prompts."""
    generator = stream(seed, "judge prompts")
    room = max(6, int(tokens * _WORDS_PER_TOKEN) - 12)
    prompts = []
    for _ in range(count):
        words = " ".join(generator.choice(_WORDS) for _ in range(room))
        prompts.append(
            f"{sentinel(generator).capitalize()} wrote: {words}. Write a short story about {sentinel(generator)}."
        )
    return prompts


def twins_of(prompt: Prompt, seed: int) -> tuple[Prompt, Prompt]:
    """The prompt with another first word, and with another end of its last word: each is another question.

    The second one is as long as the prompt: what goes by a part of its length looks at the same letters.
    """
    generator = stream(seed, "judge twins")
    first = sentinel(generator).capitalize()
    text = last_text(prompt)
    head, _, rest = text.partition(" ")
    colon = ":" if head.endswith(":") else ""
    return with_text(prompt, f"{first}{colon} {rest}"), with_text(prompt, other_end(text, generator))


def other_end(text: str, generator: Random) -> str:
    """The text with other letters for the second half of its last word; what ends the sentence stays."""
    before, space, word = text.rpartition(" ")
    stem = word.rstrip(".,:;!?")
    kept = len(stem) // 2
    tail = stem[kept:] or "."
    found = tail
    while found == tail:
        found = "".join(sentinel(generator) for _ in range(len(tail) // 8 + 1))[: len(tail)]
    return f"{before}{space}{stem[:kept]}{found}{word[len(stem) :]}"


def shortened(prompt: Prompt, share: int) -> Prompt:
    """The prompt with the first words of its last text left out, so that one part of `share` of them stays."""
    words = last_text(prompt).split(" ")
    return with_text(prompt, " ".join(words[-max(4, len(words) // share) :]))


def last_text(prompt: Prompt) -> str:
    """The text, or what was said last."""
    return prompt if isinstance(prompt, str) else prompt[-1][1]


def with_text(prompt: Prompt, text: str) -> Prompt:
    """The prompt with another text there."""
    return text if isinstance(prompt, str) else (*prompt[:-1], (prompt[-1][0], text))
