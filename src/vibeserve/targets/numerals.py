"""Numbers as people write them in a sentence, put into digits ("thirty-two users", "half a second", "1,500 ms"); slips of the pen."""

from __future__ import annotations

import difflib
import re

_ONES = [
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {name: at + 1 for at, name in enumerate(_ONES)} | {name: 10 * (at + 2) for at, name in enumerate(_TENS)}
_SCALES = {"hundred": 100, "thousand": 1000, "dozen": 12}
_WORD = "|".join([*_VALUES, *_SCALES])
_PHRASE = re.compile(rf"\b(?:(?:an?|a couple of)\s+(?=hundred|thousand|dozen))?(?:{_WORD})(?:[- ](?:{_WORD}))*\b", re.I)
# What a number that is written as a word counts; "one" alone is left to those who look for "one at a time".
_COUNTED = (
    r"[- ](?:\w+[- ])?(?:seconds?|milliseconds?|ms|minutes?|requests?|req|queries|calls?|users?|clients?|people|customers?|streams?|"
    r"sessions?|agents?|workers?|of us|chats?|conversations?|callers?|tokens?|concurrent|simultaneous|parallel|at (?:once|a time)|in flight|rps|qps)\b"
)
_IDIOMS = (
    (r"\bsub-?second\b", "under 1 s"), (r"\b(batch(?: size)?|concurrency)( of| =)? one\b", r"\1 1"),
    (r"\bhalf a second\b", "0.5 s"), (r"\ba half second\b", "0.5 s"), (r"\ba quarter (?:of a )?second\b", "0.25 s"),
    (r"\b(under|below|within|than|over|above|exceeding|at most|of) (?:a|one) second\b", r"\1 1 s"),
    (r"\b(under|below|within|than|over|above|exceeding|at most) (?:a|one) minute\b", r"\1 60 s"),
    (r"\b(?:a couple|a pair) of\b", "2"), (r"\ba (?=(?:million|thousand)\b)", "1 "), (r"\bone and a half seconds?\b", "1.5 s"),
    (r"(?<![\d/])1/2 (?:a )?second\b", "0.5 s"), (r"(?<![\d/])1/4 (?:of a )?second\b", "0.25 s"),
    (r"\ba tenth of a second\b", "0.1 s"),
    (r"\bnine(?:ty)?[- ](?:out of|in|of)[- ](?:every )?(?:ten|a hundred)\b(?: of)?", "90% of"),
    (r"\b(?:9|90) (?:out of|of|in) (?:every )?(?:10|100)\b", "90% of"), (r"\b(?:19 (?:out of|of|in) (?:every )?20|95 (?:out of|of|in) (?:every )?100)\b", "95% of"),
    (r"\b((?:(?:only|at most|no more than|not more than|fewer than|less than) (?:1|5|10) ?(?:%|percent)|\bdo(?:es)?n['’]?t want|\bdo not want|\bavoid\w*|\bprevent\w*|\bshould(?:n['’]t| not)|\bmust(?:n['’]t| not))[^,;.]{0,40}?) (?:over|above|beyond) (?=\d)", r"\1 longer than "),
    (r"\b99 (?:out of|of|in) (?:every )?100\b", "99% of"), (r"\bninety[- ]nine (?:percent|%)", "99 percent"),
    (r"\bninety[- ]five (?:percent|%)", "95 percent"), (r"\bninety (?:percent|%)", "90 percent"),
    (r"\bninety[- ]?fifth\b", "95th"), (r"\bninety[- ]?ninth\b", "99th"), (r"\bninetieth\b", "90th"), (r"\bfiftieth\b", "50th"),
    (r"\bp[- ](?=(?:50|90|95|99)\b)", "p"), (r"\b(p(?:50|90|95|99))(?=[a-z])", r"\1 "), (r"\b(?:perc(?:entile)?|pct) ?(50|90|95|99)\b", r"p\1"),
    (r"\b(50|90|95|99)(?:th)?[- ]?%[- ]?(?:ile|tile)\b", r"\1th percentile"),
    (r"(?<![\w.])(\d+(?:\.\d+)?)(?=(?:rps|qps|rpm|req|requests?|users?|clients?|streams?|tokens?|toks?|concurrent|parallel)\b)", r"\1 "),
    (r"\b(\d+(?:\.\d+)?k?) ?rpm\b", r"\1 requests per minute"), (r"\brpm ?(?:of|=|:)? ?(\d+)\b", r"\1 requests per minute"),
    (r"\b(\d+(?:\.\d+)?) ?r/s\b", r"\1 req/s"),
    (r"\bone (request|query|call|image|picture|clip|prompt|message)(?=(?: ?/ ?| (?:per|a|each|every) )(?:s|sec|second|min|minute|h|hour)\b)", r"1 \1"),
    (r"\b(?:frist|fisrt|firts)\b", "first"), (r"\b(?:toke|tokes|tokn|tokns|toekns?)\b", "tokens"),
    (r"\bpp ?(\d+)[ ,/+]+tg ?(\d+)\b", r"\1 in \2 out"),
)  # fmt: skip


def digits(text: str) -> str:
    """`text` with numbers in digits where they count something that a goal speaks of; the rest as it is."""
    for pattern, put in _IDIOMS:
        text = re.sub(pattern, put, text, flags=re.I)
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    text = re.sub(r"(?i)\b(\d+(?:\.\d+)?) ?(million|thousand)\b", _scaled, text)

    def replace(hit: re.Match[str]) -> str:
        counted = re.match(_COUNTED, text[hit.end() :], re.I)
        return str(_value(hit.group(0))) if counted and hit.group(0).lower() != "one" else hit.group(0)

    return _PHRASE.sub(replace, text)


# Long words that a goal hangs on: a slip of the pen in one of these would lose the metric.
_HANGS_ON = (
    "throughput", "latency", "latencies", "goodput", "percentile", "concurrent", "concurrency", "simultaneous", "requests",
    "milliseconds", "embeddings", "parallel", "tokens", "token", "prompt", "median", "seconds",
)  # fmt: skip


def spelled(text: str) -> tuple[str, list[str]]:
    """`text` with misspelt words that a goal hangs on put right, and a note for each."""
    notes = []

    text = re.sub(r"(?i)\bthru-?put\b", "throughput", text)

    def replace(hit: re.Match[str]) -> str:
        word = hit.group(0).lower()
        near = [] if word in _HANGS_ON else _swapped(word) or difflib.get_close_matches(word, _HANGS_ON, 1, 0.84)
        if not near or word in (
            near[0].rstrip("s"),
            near[0] + "s",
            near[0] + "ed",
            near[0] + "ly",
            near[0].rstrip("s") + "ed",
        ):
            return hit.group(0)
        notes.append(f"'{hit.group(0)}' is read as {near[0]!r}")
        return near[0]

    return re.sub(r"\b[A-Za-z]{5,}\b", replace, text), notes


def _swapped(word: str) -> list[str]:
    """The word of which this one has all letters, two of them the wrong way round."""
    pairs = {word[:at] + word[at + 1] + word[at] + word[at + 2 :] for at in range(len(word) - 1)}
    return [other for other in _HANGS_ON if other in pairs]


def _scaled(hit: re.Match[str]) -> str:
    return f"{float(hit.group(1)) * (1e6 if hit.group(2).lower() == 'million' else 1e3):.0f}"


def _value(phrase: str) -> int:
    total = 0
    for word in re.split(r"[- ]+", phrase.lower()):
        if word in _SCALES:
            total = max(1, total) * _SCALES[word]
        else:
            total += _VALUES.get(word, 0)
    return total
