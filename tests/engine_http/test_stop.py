"""Stop strings: any text, any cuts, any patterns give what looking at the whole text gives."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve.engine.stop import StopMatcher, failure_links

LETTERS = st.text("abñ🙂", max_size=40)
PATTERNS = st.lists(st.text("abñ🙂", min_size=1, max_size=6), max_size=4)


def first_stop(text: str, patterns: list[str]) -> tuple[str, str | None]:
    """The meaning, said plainly: the shortest beginning of the text that ends in a stop string (the longest of them)."""
    for end in range(len(text) + 1):
        found = [pattern for pattern in patterns if text[:end].endswith(pattern)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def cut(text: str, at: list[int]) -> list[str]:
    borders = sorted({0, len(text), *(place % (len(text) + 1) for place in at)})
    return [text[a:b] for a, b in itertools.pairwise(borders)] or [""]


@given(LETTERS, PATTERNS, st.lists(st.integers(0, 100), max_size=8))
def test_equals_looking_at_the_whole_text(text, patterns, cuts):
    matcher = StopMatcher(patterns)
    shown = "".join([matcher.push(piece) for piece in cut(text, cuts)]) + matcher.flush()
    expected, which = first_stop(text, patterns)
    assert (shown, matcher.matched) == (expected, which)
    assert matcher.stopped == (which is not None)


@given(LETTERS, PATTERNS)
def test_never_shows_what_may_begin_a_stop_string_and_never_holds_more(text, patterns):
    matcher = StopMatcher(patterns)
    shown = ""
    for end, char in enumerate(text, 1):
        shown += matcher.push(char)
        if matcher.stopped:
            return
        seen = text[:end]
        longest = max((k for p in patterns for k in range(1, len(p)) if seen.endswith(p[:k])), default=0)
        assert shown == seen[: len(seen) - longest]


def test_text_after_the_stop_is_dropped_and_nothing_follows():
    matcher = StopMatcher(["</s>"])
    assert matcher.push("one </") == "one "
    assert matcher.push("s> two") == ""
    assert matcher.push("three") == ""
    assert matcher.flush() == ""


def test_a_false_start_comes_out_late_but_whole():
    matcher = StopMatcher(["STOP"])
    assert [matcher.push(piece) for piece in ("ST", "ST", "OX")] == ["", "ST", "STOX"]


def test_held_text_is_flushed_at_the_end():
    matcher = StopMatcher(["\n\n"])
    assert matcher.push("end\n") == "end"
    assert matcher.flush() == "\n"
    assert not matcher.stopped


def test_an_empty_pattern_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_failure_links_are_the_longest_borders():
    assert failure_links("aabaaab") == [0, 0, 1, 0, 1, 2, 2, 3]


def test_long_patterns_take_linear_time():
    matcher = StopMatcher(["a" * 999 + "b"] * 4)
    shown = matcher.push("a" * 50_000)
    assert len(shown) == 50_000 - 999
