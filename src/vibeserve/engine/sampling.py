"""From logits to tokens. One row at a time, so that no answer depends on who else is in the batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .batch import Floats, Ints
from .sequence import Sequence
from .types import SamplingParams, TokenLogprobs

_MASK = 2**64 - 1

DrawAll = Callable[[Floats, list[int], list[SamplingParams], list[float]], list[int]]


@dataclass(frozen=True, slots=True)
class Choice:
    """The next token of a sequence, and its log-probabilities where they were asked for."""

    token: int
    logprobs: TokenLogprobs | None = None


def choose(
    wanted: list[tuple[Sequence, int]], logits: Floats, best: Ints, eos_token_ids: tuple[int, ...], draw_all: DrawAll
) -> list[Choice]:
    """The next token of each (sequence, row of `logits`). Rows that are adjusted are overwritten.

    `best` holds each row's largest logit's id; `draw_all` draws all random rows at once.
    """
    tokens = [int(best[row]) for _, row in wanted]
    scores: list[Floats | None] = [None] * len(wanted)
    random: list[int] = []
    for index, (sequence, row) in enumerate(wanted):
        params = sequence.request.params
        if sequence.plain:
            continue
        if params.adjusts or sequence.constraint is not None:
            # The reported log-probabilities are the model's own, from before.
            scores[index] = logits[row].copy() if params.logprobs is not None else None
            adjust(sequence, logits[row], eos_token_ids)
            tokens[index] = int(logits[row].argmax())
        if not params.greedy:
            random.append(index)
    if random:
        chosen = [wanted[index] for index in random]
        points = [uniform(sequence.seed, sequence.sampled) for sequence, _ in chosen]
        drawn = draw_all(logits, [row for _, row in chosen], [one.request.params for one, _ in chosen], points)
        for index, token in zip(random, drawn, strict=True):
            tokens[index] = token
    choices = []
    for index, (sequence, row) in enumerate(wanted):
        top = sequence.request.params.logprobs
        own = scores[index]
        entry = None if top is None else logprobs_of(logits[row] if own is None else own, tokens[index], top)
        choices.append(Choice(tokens[index], entry))
    return choices


def adjust(sequence: Sequence, row: Floats, eos_token_ids: tuple[int, ...]) -> None:
    """Penalties, bias, the ban of end tokens before `min_tokens`, and what the grammar forbids, in place.

    The repetition penalty looks at prompt and answer (positive logits are divided, negative multiplied: Keskar et al.,
    2019), presence and frequency at the answer alone, as the OpenAI API defines them.
    """
    params = sequence.request.params
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.array(sequence.tokens, dtype=np.int64))
        values = row[seen]
        row[seen] = np.where(values > 0, values / params.repetition_penalty, values * params.repetition_penalty)
    if (params.presence_penalty or params.frequency_penalty) and sequence.token_counts:
        ids = np.fromiter(sequence.token_counts.keys(), dtype=np.int64)
        counts = np.fromiter(sequence.token_counts.values(), dtype=np.float32)
        row[ids] -= params.presence_penalty + params.frequency_penalty * counts
    for token, bias in params.logit_bias:
        row[token] += bias
    if sequence.sampled < params.min_tokens:
        row[list({*eos_token_ids, *params.stop_token_ids})] = -np.inf
    if sequence.constraint is not None:
        sequence.constraint.mask(row)


def draw(logits: Floats, params: SamplingParams, point: float) -> int:
    """The token at `point` in [0, 1) of the distribution after temperature, top-k, top-p and min-p.

    The distribution is laid out from the likeliest token down (ties by id) where it is cut, by id where it is not.
    """
    scaled = logits / np.float32(params.temperature)
    peak = scaled.max()
    weights = np.exp(scaled - peak)
    if not (params.top_k or params.top_p < 1.0 or params.min_p > 0.0):
        return _pick(weights, point, None)
    ids = _likeliest(weights, params)
    kept = weights[ids]
    if params.top_k:
        kept = kept[: params.top_k]
    if params.top_p < 1.0:
        total = kept.sum(dtype=np.float64) if params.top_k else weights.sum(dtype=np.float64)
        reached = np.cumsum(kept, dtype=np.float64) >= params.top_p * total
        kept = kept[: int(reached.argmax()) + 1 if reached.any() else len(kept)]
    if params.min_p > 0.0:
        kept = kept[kept >= params.min_p * kept[0]]
    return _pick(kept, point, ids)


def _likeliest(weights: Floats, params: SamplingParams) -> npt.NDArray[np.int64]:
    """Ids by falling weight, as many as the cut can need: a guess of 512 first, all of them where that is too few."""
    size = len(weights)
    guess = min(size, max(512, params.top_k))
    while True:
        ids = np.argpartition(weights, size - guess)[size - guess :] if guess < size else np.arange(size)
        floor = weights[ids].min()
        if guess < size:
            ids = np.flatnonzero(weights >= floor)
        ids = ids[np.lexsort((ids, -weights[ids]))]
        enough = guess == size or (
            0 < params.top_k <= guess
            # Top-k and top-p together need the mass of all k.
            or ((not params.top_k or params.top_p >= 1.0) and params.min_p * weights.max() > floor)
            or (
                params.top_p < 1.0
                and not params.top_k
                and weights[ids].sum(dtype=np.float64) >= params.top_p * weights.sum(dtype=np.float64)
            )
        )
        if enough:
            return ids
        guess = min(size, guess * 8)


def _pick(weights: Floats, point: float, ids: npt.NDArray[np.int64] | None) -> int:
    edges = np.cumsum(weights, dtype=np.float64)
    index = int(np.searchsorted(edges, point * edges[-1], side="right"))
    index = min(index, len(weights) - 1)
    while weights[index] == 0:
        index -= 1
    return index if ids is None else int(ids[index])


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1) that depends on seed and token index alone (SplitMix64's finaliser, twice)."""
    value = _mix(_mix(seed + 0x9E3779B97F4A7C15) ^ (index * 0xD1342543DE82EF95 & _MASK))
    return (value >> 11) / 2**53


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


def logprobs_of(logits: Floats, token: int, top: int) -> TokenLogprobs:
    """Log-probability of `token` and of the `top` likeliest tokens, best first, under the plain softmax of `logits`."""
    peak = float(logits.max())
    total = peak + float(np.log(np.exp(logits - np.float32(peak)).sum(dtype=np.float64)))
    likeliest: tuple[tuple[int, float], ...] = ()
    if top:
        ids = (
            np.argpartition(logits, len(logits) - top)[len(logits) - top :]
            if top < len(logits)
            else np.arange(len(logits))
        )
        ids = np.flatnonzero(logits >= logits[ids].min())
        ids = ids[np.lexsort((ids, -logits[ids]))][:top]
        likeliest = tuple((int(name), float(logits[name]) - total) for name in ids)
    return TokenLogprobs(token, float(logits[token]) - total, likeliest)
