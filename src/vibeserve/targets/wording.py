"""A goal's words before they are read: what is set aside, ranges, units in odd places, pieces that make one prompt."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

_DATA = Path(__file__).with_name("goal.toml")
_N = r"\d+(?:\.\d+)?\s?[kK]?"
# What a number of a goal counts; a range of it is read at its upper end.
_UNIT = (
    r"(?:(?:[a-z]+[- ])?tokens?|toks?|(?:concurrent|parallel|simultaneous|users?|clients?|streams?|sessions?|agents?|callers?|people|at once|in flight)\b"
    r"|(?:req(?:uest)?s?|quer(?:y|ies)|calls?|images?|messages?|clips?)(?: ?/ ?| per | a )|rps|qps|rpm|r/s|ms|m?secs?|s|milliseconds|seconds|min|minutes)\b"
)
_TIME = r"(?:ms|msec|milliseconds|secs?|seconds|s)"
# Units and separators where people put them → where the patterns of a goal look for them.
_PLACES = (
    (r"(?<=[A-Za-z0-9])_(?=[A-Za-z0-9])", " "),
    (r"(?<![\d.,])(\d{1,2}),(\d{1,2})(?= ?(?:s|sec|secs|seconds|ms|req|rps|qps|min)\b)", r"\1.\2"),
    (r"\b24 ?[/x] ?7\b", "always"), (r"\bctx\b", "context"),
    (r"\b(in|out|isl|osl|bs|prompt|gen|conc)(?=\d)", r"\1 "), (r"(?<![\w-])b(?=\d+\b)", "batch "),
    (r"(?<![\w.])(\d+)c\b(?! ?/)", r"\1 concurrent"),
    (r"\b((?:req(?:uest)?s?|quer(?:y|ies)) ?(?:/|per) ?(?:s|sec|second|min|minute)) ?[:=] ?(\d+(?:\.\d+)?)", r"\2 \1"),
    (rf"[\[(]?(?<![\w/])({_TIME})\b[\])]?((?: p\d\d)?) ?(<=?|≤|=|:|under|below) ?(\d+(?:\.\d+)?)(?! ?(?:{_TIME}|min)\b)(?![\d.])", r"\2 \3 \4 \1"),
    (r"\b(under|below|over|above|less) of (?=\d)", r"\1 "),
    (r"\bby (?=(?:second|minute|hour)\b)", "per "),
    (r"\b(req(?:uest)?s?|queries|calls|images|messages|tokens) in (?:an? |one |every |each )?(second|minute|hour)\b", r"\1 per \2"),
    (r"\bat time\b", "at a time"), (r"\b(?:in|at) (?:the )?same (?:time|moment)\b", "at the same time"),
)  # fmt: skip
# Parts of one prompt, and what shows that they are parts of one and not so many requests.
_PIECES = r"chunks?|passages?|documents?|docs|snippets?|examples?|shots?|messages|turns|paragraphs?|sections?|pages?|files?|articles?|excerpts?|results?|hits"
_OF_ONE = (
    r"\b(?:chunks?|passages?|snippets?|excerpts?|shots?|examples?|turns)\b|\brag\b|retriev\w*|\btop[- ]?\d|\b(?:per|each|every|a|in the|one) (?:prompt|request|question|query|call)\b"
    r"|(?:plus|and|\+) (?:an? |the )?\d+[- ]tokens? (?:question|query)|\bcontext|prompts? (?:of|with|contain\w*|made of|consist\w*)"
)


@cache
def _dismissals() -> tuple[re.Pattern[str], ...]:
    table = tomllib.loads(_DATA.read_text(encoding="utf-8"))["set_aside"]
    words = r"(?:(?!(?:{stops})\b)[^,;:.!?]|[.,:](?=\d))*?"
    before = words.format(stops=table["stops_before"])
    after = words.format(stops=table["stops_after"])
    made = [rf"\b{cue}\b(?:{before})(?=[,;:!?]|\.(?!\d)|\b(?:{table['stops_before']})\b|$)" for cue in table["before"]]
    made += [rf"(?:^|(?<=[,;:.!?])|\b(?:{table['stops_after']})\b)(?:{after})\b(?:{cue})" for cue in table["after"]]
    made += [rf"\b{cue}\b" for cue in table["between"]]
    return tuple(re.compile(pattern, re.I) for pattern in made)


def set_aside(text: str) -> tuple[str, list[str]]:
    """`text` without what it says does not count ("the tail doesn't matter", "ignore TTFT"), and those words.

    A clause with a limit in it ("TTFT under 1 s is fine") does count.
    """
    left_out: list[str] = []

    def drop(hit: re.Match[str]) -> str:
        if re.search(rf"\d ?(?:{_TIME}|min)\b", hit.group(0), re.I):
            return hit.group(0)
        left_out.append(hit.group(0).strip(" ,;:.!?"))
        return ", "

    for pattern in _dismissals():
        text = pattern.sub(drop, text)
    return text, left_out


def placed(text: str) -> str:
    """`text` with units, separators and short forms where they are usual ("TTFT(ms) <= 350": "TTFT <= 350 ms")."""
    for pattern, put in _PLACES:
        text = re.sub(pattern, put, text, flags=re.I)
    return text


def upper_ends(text: str) -> tuple[str, list[str]]:
    """`text` with ranges ("8-16 users", "between 2 and 4 s") at their upper end, and a note for each."""
    notes: list[str] = []

    def upper(hit: re.Match[str]) -> str:
        low, high = hit.group("low"), hit.group("high")
        if _value(low, high) >= _value(high, high):
            return hit.group(0)
        notes.append(f"'{hit.group(0).strip()}' is read at its upper end, {high.strip()}")
        return high

    span = rf"(?<![\w./,-])(?:(?:between|from)\s+)?(?P<low>{_N})\s*(?:-|–|to|and|\.\.+)\s*(?P<high>{_N})"
    text = re.sub(rf"{span}(?=\s*{_UNIT})(?<!\s)", upper, text, flags=re.I)
    named = r"((?:prompts?|inputs?|outputs?|answers?|completions?|contexts?|concurrency|batch sizes?)(?: (?:length|size)s?)?(?: (?:of|are|is|from|between))? )"
    return re.sub(rf"{named}{span}(?=\s*(?:[,;.)]|$))", lambda hit: hit.group(1) + upper(hit).removeprefix(hit.group(1)), text, flags=re.I), notes  # fmt: skip


def _value(text: str, like: str) -> float:
    clean = text.strip().lower()
    thousand = clean.endswith("k") or (like.strip().lower().endswith("k") and float(clean) < 100)
    return float(clean.rstrip("k ")) * (1000 if thousand else 1)


def joined(text: str) -> tuple[str, list[str]]:
    """`text` with pieces of one prompt ("6 chunks of 500 tokens") as one length, and a note for each."""
    notes: list[str] = []
    if not re.search(_OF_ONE, text, re.I) or re.search(r"(?i)\b(?:embed\w*|vectors?|index\w*|rerank\w*)\b", text):
        return text, notes

    def join(hit: re.Match[str]) -> str:
        count, length, more = int(hit.group(1)), hit.group(2), hit.group(3)
        size = float(length.lower().rstrip("k ")) * (1000 if length.strip().lower().endswith("k") else 1)
        total = count * size + float(more or 0)
        notes.append(f"'{hit.group(0).strip()}' is read as {total:g} tokens together")
        return f"{total:.0f} tokens of context"

    of = rf"\s*(?:of|with|x|×|à|at|\(|,)?\s*(?:about |around )?({_N})[- ]tokens?(?: (?:long|each|apiece)|\))*"
    more = r"(?:,? (?:and|plus|\+) (?:an? |the )?(\d+)[- ]tokens? (?:question|query|instruction|prompt)s?)?"
    pattern = rf"(?<![\w.,])([1-9]\d?)[- ](?:\w+[- ]){{0,2}}?(?:{_PIECES}){of}{more}"
    return re.sub(pattern, join, text, flags=re.I), notes
