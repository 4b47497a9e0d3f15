"""Each probe by itself, on sessions made by hand: where exactly it draws its line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vibeserve.judge.client import Answer
from vibeserve.judge.probes import (
    agreement,
    answering,
    batch,
    clock,
    forced,
    lengths,
    repeat,
    restart,
    sampling,
    sensitivity,
    stop,
    streaming,
    usage,
)
from vibeserve.judge.session import Forced, Session

LENGTH = 12


def answer(
    prompt: str = "p", text: str = "abcdefghijkl", span_s: float = 0.1, first_s: float = 0.02, **more: Any
) -> Answer:
    """An honest streamed answer: one token a letter, evenly spread over `span_s`."""
    ids = tuple(map(ord, text))
    step = span_s / max(1, len(text) - 1)
    values: dict[str, Any] = {
        "token_ids": ids,
        "finish_reason": "length",
        "usage": {"prompt_tokens": 5, "completion_tokens": len(text), "total_tokens": 5 + len(text)},
        "arrivals": tuple((first_s + place * step, letter, 1) for place, letter in enumerate(text)),
        "total_s": first_s + span_s,
        "at_s": 1000.0,
    }
    return Answer(prompt, len(text), text=text, **(values | more))


def texts(count: int, start: int = 0) -> list[str]:
    """Texts that have nothing in common."""
    return [chr(ord("a") + start + place) * LENGTH for place in range(count)]


def session(**changes: Any) -> Session:
    """An honest session, with changes."""
    cold = tuple(answer(f"cold {place}", text) for place, text in enumerate(texts(6)))
    values: dict[str, Any] = {
        "cold": cold,
        "warm": cold[:4],
        "twins": (answer("twin 0", "m" * LENGTH), answer("twin 1", "n" * LENGTH)),
        "short": answer("short", "o" * LENGTH),
        "cover": (answer("cover", "q" * LENGTH),),
        "whole": answer("cold 0", "a" * LENGTH, arrivals=()),
        "shorter": answer("cold 0", "a" * 4),
        "stopped": None,
        "stop": "",
        "sampled": (answer("s", "r" * 8), answer("s", "r" * 8), answer("s", "t" * 8), answer("s", "u" * 8)),
        "alone": (answer("alone", "v" * LENGTH), cold[0]),
        "beside": (answer("alone", "v" * LENGTH), cold[0]),
    }
    values["oracle"] = (*cold, *values["twins"], values["short"])
    values["oracle_sampled"] = values["sampled"][:2]
    values["forced"] = tuple(Forced(place, 65, 65) for place in range(16))
    return Session(**(values | changes))


ALL = (agreement, answering, batch, clock, forced, lengths, repeat, sampling, sensitivity, streaming, usage)
LOOSE: dict[str, Any] = {"exact": False, "min_top1": 0.9}
BROKEN = Answer("x", LENGTH, error="http 500: no")


def same_text(count: int) -> tuple[Answer, ...]:
    return tuple(answer(f"cold {place}", "same same sa") for place in range(count))


@pytest.mark.parametrize("loose", [{}, LOOSE])
def test_an_honest_session_passes(loose: dict[str, Any]) -> None:
    found = {module.NAME: module.look(session(**loose)) for module in ALL}
    assert {name: result.ok for name, result in found.items()} == dict.fromkeys(found, True), found


def part(truth: str, count: int) -> Answer:
    """The first letters of an answer, then something else."""
    return answer("p", truth[:count] + "#" * (len(truth) - count))


class TestAgreement:
    def test_one_letter_is_too_much_in_float32(self) -> None:
        good = session()
        for place in range(len(good.fresh)):
            oracle = list(good.oracle)
            oracle[place] = part(oracle[place].text, 11)
            assert agreement.look(session(oracle=tuple(oracle))).ok is False

    @pytest.mark.parametrize(("letters", "ok"), [(3, False), (4, True)])
    def test_elsewhere_a_good_part(self, letters: int, ok: bool) -> None:
        good = session()
        oracle = tuple(part(one.text, letters) for one in good.oracle)
        result = agreement.look(session(oracle=oracle, **LOOSE))
        assert result.ok is ok
        assert result.document["shares"] == pytest.approx([min(letters / 12, letters / 11)] * 9)

    def test_exactly_the_part_is_enough(self) -> None:
        good = session()
        oracle = tuple(
            replace(part(one.text * 5, 18), token_ids=None, text=one.text[:1] * 3 + "#" * 8) for one in good.oracle
        )
        assert agreement.look(session(oracle=oracle, **LOOSE)).ok is True  # 3 of 10 characters, the last one held back

    def test_what_was_not_answered_does_not_count(self) -> None:
        assert agreement.look(session(oracle=())).ok is None
        assert agreement.look(session(oracle=(BROKEN,) * 9)).ok is None
        broken = (BROKEN, *session().cold[1:])
        assert agreement.look(session(cold=broken)).ok is True
        assert "8 fresh prompts" in agreement.look(session(cold=broken)).detail

    def test_ids_and_text_both_count(self) -> None:
        truth = answer("p", "abcd")
        assert agreement.shared(truth, truth) == 1.0
        assert agreement.shared(truth, replace(truth, text="axxx")) == pytest.approx(1 / 3)
        assert agreement.shared(truth, replace(truth, token_ids=(97, 0, 0, 0))) == pytest.approx(1 / 4)
        assert agreement.shared(truth, replace(truth, token_ids=None)) == 1.0
        assert agreement.shared(replace(truth, token_ids=None), replace(truth, text="abcx")) == 1.0
        empty = replace(truth, text="", token_ids=None)
        assert agreement.shared(empty, empty) == 1.0
        assert agreement.shared(empty, truth) == 0.0
        assert agreement.shared(replace(empty, text="a"), truth) == 1.0
        assert agreement.shared(replace(truth, text=""), replace(truth, text="")) == 1.0


class TestFormal:
    """Answers to who asks with the benchmark's fields alone."""

    good = answer("formal", "f" * 4)

    def test_they_must_be_the_references(self) -> None:
        other = answer("formal", "ffgg")
        assert agreement.look(session(formal=((self.good, self.good),))).ok is True
        assert agreement.look(session(formal=((self.good, self.good),))).detail.startswith("10 fresh")
        assert agreement.look(session(formal=((other, self.good),))).ok is False
        found = agreement.look(session(formal=((other, answer("formal", "ff")),)))
        assert found.ok is True  # the reference's is what is looked for, not the other way round

    def test_they_must_come(self) -> None:
        assert answering.look(session(formal=((BROKEN, self.good),))).ok is False
        found = answering.look(session(formal=((self.good, BROKEN),)))
        assert (found.ok, found.detail) == (True, f"{len(session().all) + 1} requests answered")


class TestAnswering:
    def test_every_answer_counts(self) -> None:
        for name in ("cold", "warm", "twins", "cover", "alone", "beside"):
            kept = getattr(session(), name)
            result = answering.look(session(**{name: (*kept[:-1], BROKEN)}))
            assert result.ok is False
            assert "http 500" in result.detail
        for name in ("short", "whole", "shorter"):
            assert answering.look(session(**{name: BROKEN})).ok is False
        assert answering.look(session(sampled=(BROKEN,) * 4)).ok is True


class TestBatch:
    @pytest.mark.parametrize("place", [0, 1])
    def test_company_changes_nothing_in_float32(self, place: int) -> None:
        for change in ({"text": "abcdefghijk!"}, {"token_ids": (1, 2)}):
            beside = list(session().beside)
            beside[place] = replace(beside[place], **change)  # type: ignore[arg-type]
            assert batch.look(session(beside=tuple(beside))).ok is False

    def test_a_server_without_ids_is_compared_by_text(self) -> None:
        beside = tuple(replace(one, token_ids=None) for one in session().beside)
        assert batch.look(session(beside=beside)).ok is True
        assert batch.look(session(alone=beside)).ok is True

    @pytest.mark.parametrize(("letters", "ok"), [(3, False), (4, True)])
    def test_elsewhere_a_good_part(self, letters: int, ok: bool) -> None:
        beside = tuple(part(one.text, letters) for one in session().alone)
        assert batch.look(session(beside=beside, **LOOSE)).ok is ok

    def test_exactly_the_part_is_enough(self) -> None:
        alone = tuple(replace(answer("p", "abcdefghijk"), token_ids=None) for _ in range(2))
        beside = tuple(replace(one, text="abc########") for one in alone)
        assert batch.look(session(alone=alone, beside=beside, **LOOSE)).ok is True

    def test_one_of_two_is_enough_to_compare(self) -> None:
        good = session()
        assert batch.look(session(beside=(BROKEN, BROKEN))).ok is None
        assert batch.look(session(alone=(BROKEN, good.alone[1]))).ok is True
        assert batch.look(session(beside=(BROKEN, good.beside[1]))).ok is True
        assert batch.look(session(beside=(BROKEN, BROKEN), **LOOSE)).ok is None


class TestForced:
    def tokens(self, agreeing: int, count: int) -> tuple[Forced, ...]:
        return tuple(Forced(place, 1, 1 if place < agreeing else 2) for place in range(count))

    def test_all_in_float32(self) -> None:
        assert forced.look(session(forced=self.tokens(16, 16))).ok is True
        result = forced.look(session(forced=self.tokens(15, 16)))
        assert result.ok is False
        assert result.document == {"agreeing": 15, "count": 16}
        assert forced.look(session(forced=())).ok is None

    @pytest.mark.parametrize(
        ("agreeing", "ok"), [(48, True), (40, True), (37, True), (36, True), (35, False), (24, False)]
    )
    def test_elsewhere_only_what_is_surely_below_the_share(self, agreeing: int, ok: bool) -> None:
        assert forced.look(session(forced=self.tokens(agreeing, 48), **LOOSE)).ok is ok

    def test_the_chance_is_the_binomial_one(self) -> None:
        from scipy.stats import binom

        for agreeing in (0, 3, 9, 10):
            assert forced.chance_of(agreeing, 10, 0.8) == pytest.approx(binom.cdf(agreeing, 10, 0.8))
        assert forced.chance_of(10, 10, 1.0) == 1.0
        assert forced.chance_of(9, 10, 1.0) == 0.0
        assert forced.chance_of(9, 10, 1.5) == 0.0


class TestLengths:
    def test_each_must_be_as_long_as_asked(self) -> None:
        for text in ("a" * 11, "a" * 13):
            warm = (*session().warm[:3], replace(answer("cold 0", text), asked=12))
            assert lengths.look(session(warm=warm)).ok is False
        warm = (*session().warm[:3], replace(session().warm[3], finish_reason="stop"))
        assert lengths.look(session(warm=warm)).ok is False

    def test_what_cannot_be_counted_is_not_run(self) -> None:
        good = session()
        assert lengths.look(session(short=replace(good.short, token_ids=None))).ok is None
        assert lengths.look(session(short=replace(good.short, left_out=("ignore_eos",)))).ok is None
        assert lengths.look(session(short=replace(good.short, left_out=("stream_options",)))).ok is True
        assert lengths.look(session(short=BROKEN)).ok is True
        none = dict.fromkeys(("cold", "warm", "twins", "cover", "alone", "beside"), (BROKEN,) * 6)
        assert lengths.look(session(**none, short=BROKEN, whole=BROKEN, shorter=BROKEN)).ok is None
        assert lengths.look(session(short=replace(answer("s", "", token_ids=()), asked=1))).ok is False


def quick(share: float, cold: tuple[Answer, ...]) -> tuple[Answer, ...]:
    """Repetitions that take a share of the time."""
    return tuple(answer(one.prompt, one.text, span_s=0.1 * share) for one in cold[:4])


class TestRepeat:
    @pytest.mark.parametrize(("share", "ok"), [(1.0, True), (0.41, True), (0.39, False), (0.01, False), (0.0, False)])
    def test_the_line(self, share: float, ok: bool) -> None:
        assert repeat.look(session(warm=quick(share, session().cold))).ok is ok

    def test_another_answer_in_float32(self) -> None:
        warm = (*session().warm[:3], answer("cold 3", "zzzz"))
        assert repeat.look(session(warm=warm)).ok is False
        assert repeat.look(session(warm=warm, **LOOSE)).ok is True
        assert repeat.look(session(warm=(*session().warm[:3], BROKEN))).ok is True
        cold = (BROKEN, *session().cold[1:])
        assert repeat.look(session(cold=cold)).ok is True

    def test_too_few_or_too_quick_is_not_run(self) -> None:
        warm = session().warm
        assert repeat.look(session(warm=(*warm[:3], BROKEN))).ok is True
        assert repeat.look(session(warm=(*warm[:2], BROKEN, BROKEN))).ok is None
        for span_s, ok in ((0.019, None), (0.021, True)):
            cold = tuple(answer(one.prompt, one.text, span_s=span_s) for one in session().cold)
            assert repeat.look(session(cold=cold, warm=cold[:4])).ok is ok

    def test_a_span_at_the_line_is_long_enough(self) -> None:
        two = tuple(replace(one, arrivals=((0.0, "a", 1), (0.02, "b", 1))) for one in session().cold)
        assert repeat.look(session(cold=two, warm=two[:4])).ok is True
        assert repeat.decode_s(answer(error="http 500: no")) is None

    def test_pairs_are_those_beside_each_other(self) -> None:
        cold = tuple(answer(f"cold {i}", t, span_s=0.1 * (i + 1)) for i, t in enumerate(texts(6)))
        warm = tuple(answer(f"cold {i}", texts(6)[i], span_s=0.1 * (i + 3)) for i in range(4))
        result = repeat.look(session(cold=cold, warm=warm))
        assert result.document["share"] == pytest.approx(1.0)

    def test_the_span(self) -> None:
        assert repeat.decode_s(answer(span_s=0.1)) == pytest.approx(0.1)
        assert repeat.decode_s(BROKEN) is None
        assert repeat.decode_s(answer(arrivals=())) is None
        assert repeat.decode_s(answer(arrivals=((0.1, "all", 3),))) is None
        assert repeat.decode_s(
            answer(arrivals=((0.1, "", 1), (0.2, "a", 1), (0.5, "b", 1), (0.9, "", 1)))
        ) == pytest.approx(0.3)

    def test_the_interval_is_students(self) -> None:
        from math import exp, log, sqrt

        from scipy.stats import t

        pairs = [(0.1, 0.05), (0.2, 0.08), (0.1, 0.07), (0.1, 0.06)]
        logs = [log(b / a) for a, b in pairs]
        mean = sum(logs) / 4
        sd = sqrt(sum((x - mean) ** 2 for x in logs) / 3)
        assert repeat.share_of(pairs) == pytest.approx((exp(mean), exp(mean + t.ppf(0.99, 3) * sd / 2)))
        assert repeat.share_of([*pairs, (0.0, 0.1)]) == repeat.share_of(pairs)
        assert repeat.share_of([(1.0, 0.001)] * 3)[0] == pytest.approx(0.02)


def revived(share: float, **changes: Any) -> tuple[tuple[Answer, Answer], ...]:
    cold = session().cold
    fresh = [answer(f"new {i}", t) for i, t in enumerate(texts(4, 20))]
    return tuple((new, replace(old, **changes)) for new, old in zip(fresh, quick(share, cold), strict=True))


class TestRestart:
    @pytest.mark.parametrize(("share", "ok"), [(1.0, True), (0.41, True), (0.39, False), (0.0, False)])
    def test_the_line(self, share: float, ok: bool) -> None:
        assert restart.look(session(revived=revived(share))).ok is ok

    def test_it_must_answer_and_answer_the_same(self) -> None:
        assert restart.look(session()).ok is None
        assert restart.look(session(revived=revived(1.0, error="http 500: no"))).ok is False
        assert restart.look(session(revived=revived(1.0, text="zzzz"))).ok is False
        assert restart.look(session(revived=revived(1.0, text="zzzz"), **LOOSE)).ok is True
        assert restart.look(session(revived=revived(1.0, text="zzzz"), cold=(BROKEN,) * 6)).ok is True
        assert restart.look(session(revived=revived(1.0)[:2])).ok is None
        assert restart.look(session(revived=revived(1.0)[:3])).ok is True
        (new, old), *rest = revived(1.0)
        at_once = replace(old, arrivals=((0.1, "all", 12),))
        assert restart.look(session(revived=((new, at_once), *rest))).ok is True
        assert restart.look(session(revived=((new, at_once), *rest[:2]))).ok is None
        two = ((0.0, "a", 1), (0.02, "b", 1))
        timed = tuple((replace(a, arrivals=two), replace(b, arrivals=two)) for a, b in revived(1.0))
        assert restart.look(session(revived=timed)).ok is True
        slow, fast = revived(1.0), answer("new", "w" * LENGTH, span_s=0.019)
        assert restart.look(session(revived=((fast, slow[0][1]), *slow[1:]))).ok is None


class TestSampling:
    def test_one_text_for_all_seeds(self) -> None:
        assert sampling.look(session(sampled=(answer("s", "r" * 8),) * 4)).ok is False
        assert "3 seeds" in sampling.look(session(sampled=(answer("s", "r" * 8),) * 4)).detail

    def test_two_texts_for_one_seed(self) -> None:
        first, _, *others = session().sampled
        sampled = (first, answer("s", "y" * 8), *others)
        assert sampling.look(session(sampled=sampled)).ok is False
        assert sampling.look(session(sampled=sampled, **LOOSE)).ok is True
        for truth in ((), (first, BROKEN), (first, answer("s", "z" * 8))):
            assert sampling.look(session(sampled=sampled, oracle_sampled=truth)).ok is True

    def test_what_is_not_known_is_not_run(self) -> None:
        refused = Answer("s", 8, error="http 400: seed")
        assert sampling.look(session(sampled=(*session().sampled[:3], refused))).ok is None
        assert sampling.look(session(sampled=(*session().sampled[:3], BROKEN))).ok is False
        first, *others = session().sampled
        assert sampling.look(session(sampled=(replace(first, asked=5), *others))).ok is None
        for asked, ok in ((5, None), (6, True)):
            assert sampling.look(session(sampled=tuple(replace(s, asked=asked) for s in session().sampled))).ok is ok

    @pytest.mark.parametrize(
        ("mine", "theirs", "ok"),
        [
            ("aabab", "vwxyz", False),
            ("aabcb", "vwxyz", True),  # three are enough
            ("aabab", "vwxyy", True),  # the reference has no text for each either
            ("aabab", "", True),  # it was not asked
        ],
    )
    def test_few_texts_for_many_seeds(self, mine: str, theirs: str, ok: bool) -> None:
        first, *others = mine
        sampled = tuple(answer("s", letter * 8) for letter in (first, first, *others))
        truth = (answer("s", theirs[:1] * 8), *(answer("s", letter * 8) for letter in theirs))
        found = sampling.look(session(sampled=sampled, oracle_sampled=truth, **LOOSE))
        assert found.ok is ok
        assert found.detail.startswith("5 seeds gave 2 texts" if not ok else "5 seeds at temperature 1 gave")

    def test_two_texts_of_two_seeds_are_not_few(self) -> None:
        sampled = tuple(answer("s", letter * 8) for letter in "aab")
        truth = tuple(answer("s", letter * 8) for letter in "vvw")
        assert sampling.look(session(sampled=sampled, oracle_sampled=truth, **LOOSE)).ok is True

    def test_the_first_two_of_all_that_the_reference_was_asked_have_one_seed(self) -> None:
        first, _, *others = session().sampled
        sampled = (first, answer("s", "y" * 8), *others)
        found = sampling.look(session(sampled=sampled, oracle_sampled=session().sampled))
        assert (found.ok, found.detail) == (False, "one seed gave two texts")

    def test_an_error_of_the_reference_is_no_text(self) -> None:
        sampled = tuple(answer("s", letter * 8) for letter in "aaabab")
        truth = (*(answer("s", letter * 8) for letter in "vvwxy"), replace(answer("s", "z" * 8), error="no"))
        assert sampling.look(session(sampled=sampled, oracle_sampled=truth)).ok is True

    @pytest.mark.parametrize(
        ("texts", "ok"),
        [
            (("aaaa", "bbbb"), True),
            (("zzzz", "zzzz"), False),
            (("zzzz", "bbzz"), True),  # a near tie in one of two
            (("zzzz", "bzzz"), False),  # a quarter is less than three tenths
            (("aazz", "zzzz"), True),
            (("aaazzzzzzz",), True),  # exactly three tenths
            ((), True),
        ],
    )
    def test_next_to_nothing_left_to_chance(self, texts: tuple[str, ...], ok: bool) -> None:
        cool = tuple(answer(f"cold {place}", text) for place, text in enumerate(texts))
        found = sampling.look(session(cool=cool))
        assert found.ok is ok
        assert ("temperature of nearly none" in found.detail) is not ok
        assert sampling.look(session(cool=cool, **LOOSE)).ok is True

    def test_cool_answers_that_did_not_come_prove_nothing(self) -> None:
        wrong = (answer("cold 0", "zzzz"), answer("cold 1", "zzzz"))
        assert sampling.look(session(cool=(BROKEN, BROKEN))).ok is True
        assert sampling.look(session(cool=(BROKEN, wrong[1]))).ok is False
        cold = session().cold
        assert sampling.look(session(cool=wrong, cold=(BROKEN, BROKEN, *cold[2:]))).ok is True


class TestSensitivity:
    def test_one_answer_for_all(self) -> None:
        assert sensitivity.look(session(cold=same_text(6))).ok is False
        assert sensitivity.look(session(cold=same_text(6), oracle=same_text(6))).ok is True
        assert sensitivity.look(session(cold=same_text(6), oracle=())).ok is False
        assert sensitivity.look(session(cold=same_text(6), oracle=(BROKEN, same_text(1)[0]))).ok is True
        assert sensitivity.look(session(cold=(same_text(1)[0], *(BROKEN,) * 5))).ok is None
        assert sensitivity.look(session(cold=(*same_text(2), *(BROKEN,) * 4))).ok is False
        assert sensitivity.look(session(cold=(*same_text(1), answer("b", "other"), *(BROKEN,) * 4))).ok is True


class TestStop:
    WHOLE = answer("cold 0", "abcdefghijkl")

    def look(self, **changes: Any) -> Any:
        stopped = answer("cold 0", "abcd", token_ids=tuple(map(ord, "abcdef")), finish_reason="stop", usage=None)
        loose = changes.pop("loose", {})
        cold = (self.WHOLE, *session().cold[1:])
        return stop.look(session(cold=cold, stop="ef", stopped=replace(stopped, **changes), **loose))

    def test_before_the_string_and_not_after(self) -> None:
        assert self.look().ok is True
        assert self.look(text="abcdef").ok is False
        assert self.look(text="abc").ok is False
        assert self.look(text="abcdx").ok is False
        assert self.look(finish_reason="length").ok is False

    def test_ids_are_a_beginning(self) -> None:
        assert self.look(token_ids=self.WHOLE.token_ids).ok is False
        assert self.look(token_ids=(1, 2)).ok is False
        assert self.look(token_ids=None).ok is True
        assert self.look(token_ids=(self.WHOLE.token_ids or ())[:11]).ok is True
        assert self.look(usage={"completion_tokens": 6}).ok is True
        assert self.look(usage={"completion_tokens": 7}).ok is False
        assert self.look(usage={"completion_tokens": None}).ok is True
        assert self.look(usage={"completion_tokens": 7}, token_ids=None).ok is True

    def test_elsewhere_only_the_string_itself(self) -> None:
        assert self.look(text="abcdef", loose=LOOSE).ok is False
        assert self.look(text="xyz", loose=LOOSE).ok is True

    def test_what_is_not_known_is_not_run(self) -> None:
        assert stop.look(session()).ok is None
        assert stop.look(session(stopped=self.WHOLE)).ok is None
        assert stop.look(session(stop="ef")).ok is None
        assert self.look(error="http 422: stop").ok is None
        assert self.look(error="http 500: no").ok is False
        assert stop.look(session(cold=(BROKEN,) * 6, stop="ef", stopped=self.WHOLE)).ok is None
        bare = replace(self.WHOLE, token_ids=None)
        stopped = answer("cold 0", "abcd", token_ids=(1,), finish_reason="stop", usage=None)
        assert stop.look(session(cold=(bare, *session().cold[1:]), stop="ef", stopped=stopped)).ok is True


class TestStreaming:
    @pytest.mark.parametrize(("first_s", "ok"), [(0.0, True), (0.89, True), (0.91, False), (1.0, False)])
    def test_the_line(self, first_s: float, ok: bool) -> None:
        late = {"first_s": first_s, "span_s": 1.0 - first_s}
        cold = tuple(answer(one.prompt, one.text, **late) for one in session().cold)
        whole = session().whole
        assert streaming.look(session(cold=cold, warm=cold[:4], whole=whole)).ok is ok

    def test_at_the_line_it_passes(self) -> None:
        two = ((0.0, "a", 1), (0.1, "b", 1))
        cold = tuple(replace(one, arrivals=two, total_s=1.0) for one in session().cold)
        assert streaming.look(session(cold=cold, warm=cold[:4])).document["spreads"][0] == 0.1
        assert streaming.look(session(cold=cold, warm=cold[:4])).ok is True

    def test_the_best_of_them_counts(self) -> None:
        late = answer("cold 0", "a" * LENGTH, first_s=1.0, span_s=0.0)
        assert streaming.look(session(warm=(late,) * 4)).ok is True

    @pytest.mark.parametrize(
        ("late", "of", "ok"), [(7, 10, True), (8, 10, False), (1, 2, True), (2, 2, False), (3, 4, True)]
    )
    def test_the_upper_quarter_decides(self, late: int, of: int, ok: bool) -> None:
        held = answer("cold 0", "a" * LENGTH, first_s=1.0, span_s=0.0)
        steady = answer("cold 0", "a" * LENGTH, first_s=0.5, span_s=0.5)
        answers = (*[held] * late, *[steady] * (of - late))
        whole = answer("cold 0", "a" * LENGTH, arrivals=())
        assert streaming.look(session(cold=answers[:1], warm=answers[1:], whole=whole)).ok is ok

    @pytest.mark.parametrize(
        ("company_s", "alone", "brief_s", "ok"),
        [
            (0.05, (0.02, 0.1), 0.03, True),  # requests wait for one another: half of what it takes alone is enough
            (0.049, (0.02, 0.1), 0.03, False),  # streamed alone only
            (0.0, (0.02, 0.1), 0.03, False),
            (0.05, (0.12, 0.0), 0.03, False),  # held back alone, too: its tokens took 90 ms
            (0.04, (1.0, 0.04), 1.0, None),  # a long prompt, a few tokens
            (0.04, (1.0, 0.04), 0.94, None),  # the tokens seem to take 100 ms, which is noise beside a second
            (0.04, (1.0, 0.06), 0.9, False),  # they took 160 ms, and 60 are not half of it
            (0.04, (1.0, 0.08), 0.93, True),  # 80 of 150 are
            (0.07, (0.8, 0.12), 0.9, True),  # as long as the tokens took, or longer
        ],
    )
    def test_a_queue_accuses_nobody(
        self, company_s: float, alone: tuple[float, float], brief_s: float, ok: bool | None
    ):
        first_s, span_s = alone
        cold = tuple(
            answer(one.prompt, one.text, first_s=1.0, span_s=company_s, total_s=1.01 + company_s)
            for one in session().cold
        )
        steady = answer("alone", "v" * LENGTH, first_s=first_s, span_s=span_s)
        brief = answer("brief", "v" * 4, total_s=brief_s)
        seen = streaming.look(session(cold=cold, warm=cold[:4], alone=(steady, BROKEN), brief=brief))
        assert seen.ok is ok, seen
        for without in ({"alone": (BROKEN, BROKEN)}, {"alone": (replace(steady, asked=7),)}, {"brief": BROKEN}):
            asked = {"cold": cold, "warm": cold[:4], "alone": (steady,), "brief": brief} | without
            assert streaming.look(session(**asked)).ok is False

    @pytest.mark.parametrize(
        ("alone_s", "cost_s", "ok"), [(0.75, 1.0, True), (1.0, 0.5, True), (0.25, 1.0, False), (0.5, 1.0, True)]
    )
    def test_a_tenth_of_the_time_and_half_of_the_cost_are_enough(self, alone_s: float, cost_s: float, ok: bool) -> None:
        steady = answer("alone", arrivals=((0.0, "a", 1), (alone_s, "b", 1)), total_s=10.0)
        queued = answer("cold", arrivals=((0.0, "a", 1), (alone_s, "b", 1)), total_s=100.0)
        brief = answer("brief", total_s=10.0 - cost_s)
        found = streaming.look(
            session(cold=(queued,) * 6, warm=(queued,) * 4, alone=(steady,), brief=brief, whole=BROKEN)
        )
        assert found.ok is ok, found

    def test_the_stream_is_the_whole(self) -> None:
        other = replace(session().whole, text="zzz")
        assert streaming.look(session(whole=other)).ok is False
        assert streaming.look(session(whole=other, **LOOSE)).ok is True
        assert streaming.look(session(whole=BROKEN)).ok is True
        assert streaming.look(session(whole=other, cold=(BROKEN, *session().cold[1:]))).ok is True

    def test_too_short_is_not_run(self) -> None:
        for letters, ok in ((7, None), (8, True)):
            cold = tuple(answer(f"cold {i}", t[:letters]) for i, t in enumerate(texts(6)))
            assert streaming.look(session(cold=cold, warm=cold[:4], whole=cold[0])).ok is ok
        assert streaming.spread_of(answer(arrivals=())) is None
        assert streaming.spread_of(answer(total_s=0.0)) is None
        assert streaming.between(answer(arrivals=())) == 0
        assert streaming.spread_of(answer(total_s=0.02)) is not None
        assert streaming.spread_of(answer(span_s=0.3, first_s=0.1)) == pytest.approx(0.75)


def counted(**changes: Any) -> Answer:
    good = answer("short", "o" * LENGTH)
    return replace(good, usage={**(good.usage or {}), **changes})


class TestUsage:
    @pytest.mark.parametrize(
        "changes",
        [
            {"completion_tokens": 13, "total_tokens": 18},
            {"completion_tokens": None},
            {"prompt_tokens": 0, "total_tokens": 12},
            {"prompt_tokens": None},
            {"prompt_tokens": 6, "total_tokens": 18},  # the reference says 5
            {"total_tokens": 18},
        ],
    )
    def test_each_lie(self, changes: dict[str, Any]) -> None:
        oracle = session().oracle
        assert usage.look(session(short=counted(**changes), oracle=oracle)).ok is False

    def test_one_prompt_has_one_count(self) -> None:
        again = replace(counted(prompt_tokens=6, total_tokens=18), prompt="cold 0", text="a" * LENGTH)
        assert usage.look(session(warm=(again,), oracle=())).ok is False

    def test_what_is_not_told_is_not_judged(self) -> None:
        assert usage.look(session(short=replace(counted(), usage=None))).ok is True
        assert usage.look(session(short=counted(total_tokens=None))).ok is True
        assert (
            usage.look(session(short=replace(counted(completion_tokens=9, total_tokens=14), token_ids=None))).ok is True
        )
        assert usage.look(session(short=counted(prompt_tokens=1, total_tokens=13), oracle=())).ok is True
        none = dict.fromkeys(("cold", "warm", "twins", "cover", "alone", "beside"), (BROKEN,))
        assert usage.look(session(**none, short=BROKEN, whole=BROKEN, shorter=BROKEN)).ok is None
        unknown = replace(session().oracle[0], usage=None)
        assert usage.look(session(oracle=(unknown,))).ok is True
        assert (
            usage.look(session(oracle=(replace(unknown, prompt="never asked", usage={"prompt_tokens": 99}),))).ok
            is True
        )


class TestClock:
    def claims(self, said: dict[str, Any], **more: Any) -> Any:
        one = answer("alone", "v" * LENGTH, said=said, **more)
        return clock.look(session(alone=(one, one)))

    @pytest.mark.parametrize(
        ("said", "ok"),
        [
            ({"metrics": {"total_time": 0.12}}, True),
            ({"metrics": {"total_time": 0.061}}, True),
            ({"metrics": {"total_time": 0.059}}, False),
            ({"total_ms": 59.0}, False),
            ({"total_ms": 61.0}, True),
            ({"timings": {"predicted_ms": 49.0}}, False),
            ({"timings": {"predicted_ms": 51.0}}, True),
            ({"eval_duration": 49_000_000}, False),
            ({"prompt_ms": 0.001, "total_time": True, "latency_s": "0"}, True),
            ({}, True),
        ],
    )
    def test_claims(self, said: dict[str, Any], ok: bool) -> None:
        assert self.claims(said).ok is ok

    @pytest.mark.parametrize(
        ("name", "unit_s"),
        [
            ("total_time", 1), ("total_time_s", 1), ("total_s", 1), ("e2e_latency", 1), ("e2e_latency_s", 1),
            ("latency_s", 1), ("latency_ms", 1e-3), ("total_ms", 1e-3), ("total_time_ms", 1e-3), ("total_duration", 1e-9),
            ("predicted_ms", 1e-3), ("completion_time", 1), ("decode_s", 1), ("decode_time", 1), ("eval_duration", 1e-9),
        ],
    )  # fmt: skip
    def test_each_name_has_its_unit(self, name: str, unit_s: float) -> None:
        one = answer(span_s=2.0, first_s=0.0, said={name: 1.0 / unit_s})
        assert list(clock.shares_of(one)) == [pytest.approx(0.5)]

    def test_at_the_line_a_claim_passes(self) -> None:
        one = answer("alone", "v" * LENGTH, total_s=0.1, said={"total_time": 0.05})
        assert clock.look(session(alone=(one, one))).ok is True
        one = answer("alone", "v" * LENGTH, total_s=0.02, said={"total_time": 0.0})
        assert clock.look(session(alone=(one, one))).ok is False

    def test_claims_in_the_usage_count_too(self) -> None:
        assert self.claims({}, usage={"completion_tokens": 12, "total_time": 0.01}).ok is False

    def test_spans_too_short_say_nothing(self) -> None:
        for total_s, ok in ((0.019, True), (0.021, False)):
            assert self.claims({"total_time": 0.0}, total_s=total_s).ok is ok
        assert self.claims({"predicted_ms": 0.0}, arrivals=()).ok is True

    @pytest.mark.parametrize(("created", "ok"), [(0, True), (1000, True), (1060, True), (1061, False), (None, True)])
    def test_the_date(self, created: object, ok: bool) -> None:
        assert self.claims({"created": created}).ok is ok

    def test_one_answer_ahead_is_chance(self) -> None:
        ahead, right = (answer("a", "v" * LENGTH, said={"created": made}) for made in (2000, 1000))
        assert clock.look(session(alone=(ahead, right))).ok is True
        assert clock.look(session(alone=(BROKEN, BROKEN))).ok is None
        assert clock.look(session(alone=(BROKEN, ahead))).ok is False
