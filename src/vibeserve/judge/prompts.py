"""Fresh prompts that nobody has seen: common words in an order drawn from a seed, each prompt with a sentinel of its own."""

from __future__ import annotations

from random import Random

from vibeserve.base.randomness import stream

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


def twins_of(prompt: str, seed: int) -> tuple[str, str]:
    """The prompt with another first word, and with another last word: each is another question."""
    generator = stream(seed, "judge twins")
    first, last = sentinel(generator).capitalize(), sentinel(generator)
    return f"{first} {prompt.split(' ', 1)[1]}", f"{prompt.rsplit(' ', 1)[0]} {last}."
