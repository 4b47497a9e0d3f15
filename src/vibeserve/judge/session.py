"""What the probes look at: the answers of one session, asked for once and shared by all of them.

The session looks like the benchmark: a short request first, then as many at once as the benchmark has in flight, with its
prompts, its lengths, and its connections. Among them stand the probes; only a few prompts are asked alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass
from random import Random

from vibeserve.base.randomness import stream
from vibeserve.judge.client import Answer, Client
from vibeserve.judge.prompts import draw, shortened, twins_of
from vibeserve.judge.traffic import MOST_AT_ONCE, Prompt
from vibeserve.judge.workers import workers

#: Prompts that are asked twice; each repetition is paired with a first time, taken right before or after it.
PAIRS = 4
#: First times before the first repetition.
AHEAD = 2
#: Requests that are there for the company, like the benchmark's own; as many as that has at once, where those are more.
COVER = 3
SHORT_SHARE = 4
#: Tokens of the first request, as the benchmark's.
FIRST_TOKENS = 4
#: Tokens that are put to the reference one by one; more where a share of them may differ.
FORCED, FORCED_INEXACT = 16, 48
#: Letters of a stop string.
STOP_LETTERS = 6
TEMPERATURE = 1.0
#: Sampled answers to one prompt: two with one seed, the others with a seed each.
SAMPLED = 6
#: So few texts of all those seeds are not chance; the reference is asked what it makes of them.
FEW_TEXTS = 2
NOT_ASKED = Answer("", 0, error="not asked")
#: A temperature at which chance has no say: the answer is the greedy one, but for a near tie.
COOL = 1e-4
#: Prompts that are asked in the benchmark's own words, where those are fewer than the judge's.
FORMAL = 2
#: Fields after which the reference's next token is not the one after the same ids alone.
SHAPING = frozenset(
    ("frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "response_format", "tools")
)


@dataclass(frozen=True)
class Forced:
    """One token of an answer, and the reference's own choice after the same prompt and the same tokens before it."""

    place: int
    got: int
    wanted: int


@dataclass(frozen=True)
class Session:
    """In company, streamed: `cold`, each prompt for the first time. `warm`: the first of them again, `warm[k]` beside
    `cold[AHEAD + k]`. `twins`: the first prompt with another beginning, and with another end, asked for once that was answered. `short`: a prompt of a
    quarter of the length. `cover`: fresh prompts for the company. `shorter`: the first prompt with a third of the tokens.
    `whole`: the first prompt, not streamed. `stopped`: the first prompt with the stop string `stop`. `sampled`: at
    temperature 1, twice with one seed, then with others. `cool`: the first prompts at a temperature of nearly none.
    `formal`: (answer, the reference's) to prompts asked with the benchmark's fields alone; empty where it has all of ours.

    `alone`: prompts with nobody else there; `beside`: the same ones in company. `brief`: a fresh prompt with nobody else
    there, of which a few tokens are asked.
    `oracle`: the reference's answers to cold, twins and short; `oracle_sampled`: to the first two of sampled. `forced`:
    tokens of the answers put to the reference; all empty where it could not be asked.
    `revived`: (a first time, a repetition) from the server's next life, the latter asked for in its life before; empty
    where it was not restarted.

    `exact`: the bundle computes in float32 alone, so that equal prompts must have equal answers. `min_top1`: the share of
    tokens that must be the reference's first choice.
    """

    cold: tuple[Answer, ...]
    warm: tuple[Answer, ...]
    twins: tuple[Answer, ...]
    short: Answer
    cover: tuple[Answer, ...]
    whole: Answer
    shorter: Answer
    stopped: Answer | None
    stop: str
    sampled: tuple[Answer, ...]
    alone: tuple[Answer, ...]
    beside: tuple[Answer, ...]
    oracle: tuple[Answer, ...] = ()
    oracle_sampled: tuple[Answer, ...] = ()
    forced: tuple[Forced, ...] = ()
    revived: tuple[tuple[Answer, Answer], ...] = ()
    exact: bool = True
    min_top1: float = 1.0
    cool: tuple[Answer, ...] = ()
    formal: tuple[tuple[Answer, Answer], ...] = ()
    brief: Answer = NOT_ASKED

    @property
    def fresh(self) -> tuple[Answer, ...]:
        """Every streamed answer to a prompt asked for the first time, as `oracle` has them."""
        return (*self.cold, *self.twins, self.short)

    @property
    def all(self) -> tuple[Answer, ...]:
        """Every greedy answer of the server under probe, the one that was stopped apart."""
        return (*self.fresh, *self.warm, *self.cover, self.whole, self.shorter, *self.alone, *self.beside)

    @property
    def asked_for_more(self) -> tuple[Answer, ...]:
        """Answers to requests with fields that a server need not know."""
        return (*self.sampled, *((self.stopped,) if self.stopped is not None else ()))


@dataclass
class _Job:
    """A request in company; it waits for those it leans on."""

    name: str
    send: Callable[[dict[str, Answer]], Answer]
    after: tuple[str, ...] = ()


class _Company:
    """Sends jobs, so many at once, each worker taking the next one when its last has been answered: a closed loop."""

    def __init__(self, width: int):
        self._width = width
        self._done = threading.Condition()
        self.answers: dict[str, Answer] = {}

    def run(self, jobs: Sequence[_Job]) -> dict[str, Answer]:
        """All answers by name. What a job leans on must stand ahead of it."""
        left = iter(jobs)
        taking, stopped = threading.Lock(), threading.Event()

        def work() -> None:
            while True:
                with taking:
                    job = next(left, None)
                if job is None or stopped.is_set():
                    return
                with self._done:
                    while not all(name in self.answers for name in job.after):
                        self._done.wait()
                answer = NOT_ASKED
                try:
                    answer = job.send(self.answers)
                finally:  # those that lean on it must not wait for ever
                    with self._done:
                        self.answers[job.name] = answer
                        self._done.notify_all()

        with workers(self._width) as pool:
            try:
                done, _ = wait([pool.submit(work) for _ in range(self._width)], return_when=FIRST_EXCEPTION)
                for worker in done:
                    worker.result()
            finally:
                stopped.set()
        return self.answers


def ask(
    client: Client,
    seed: int,
    *,
    prompt_tokens: int,
    output_tokens: int,
    oracle: Client | None,
    exact: bool,
    min_top1: float = 1.0,
    restart: Callable[[], str] | None = None,
) -> Session:
    """Ask the server in company, the reference for the beginning of the same answers, and once more after a restart."""
    generator = stream(seed, "judge session")
    prompts = _prompts(client.traffic.prompts, seed, prompt_tokens)
    cold_prompts = [next(prompts) for _ in range(AHEAD + PAIRS)]
    lonely, first_prompt = next(prompts), next(prompts)
    length = client.traffic.output_tokens or output_tokens
    part = max(1, length // 3)
    client.ask(first_prompt, FIRST_TOKENS)
    before = client.ask(lonely, length)
    crowd = max(COVER, client.traffic.width)
    cover = [next(prompts) for _ in range(crowd)]
    short = shortened(next(prompts), SHORT_SHARE)
    formal = [next(prompts) for _ in range(FORMAL)] if oracle is not None and client.says_more else []
    jobs = _jobs(client, generator, cold_prompts, [*cover, lonely], short, length, seed)
    jobs[:0] = [_formal(client, place, prompt, part) for place, prompt in enumerate(formal)]
    found = _Company(max(2, client.traffic.width)).run(jobs)
    after = client.ask(cold_prompts[0], length)
    brief = client.ask(next(prompts), FIRST_TOKENS)
    cold = tuple(found[f"cold {place}"] for place in range(AHEAD + PAIRS))
    fresh = (*cold, found["twin 0"], found["twin 1"], found["short"])
    sampled = tuple(found[f"sampled {place}"] for place in range(SAMPLED))
    told = tuple(found[f"formal {place}"] for place in range(len(formal)))
    truth: tuple[Answer, ...] = ()
    chance: tuple[Answer, ...] = ()
    forced: tuple[Forced, ...] = ()
    pairs: tuple[tuple[Answer, Answer], ...] = ()
    if oracle is not None:
        # One answer to its very end: nobody can know which.
        wanted = [length if one is fresh[0] else part for one in fresh]
        truth = tuple(oracle.ask(one.prompt, n, stream=False) for one, n in zip(fresh, wanted, strict=True))
        chance = _by_chance(oracle, sampled, seed)
        pairs = tuple((one, oracle.ask(one.prompt, part, stream=False, as_benchmark=True)) for one in told)
        many = FORCED if exact else FORCED_INEXACT
        said = [*fresh, *(found[f"warm {place}"] for place in range(PAIRS)), before, after]
        said += [found[f"cover {place}"] for place in range(crowd + 1)]
        if not any(client.traffic.fields.get(name) for name in SHAPING):
            forced = teacher_forced(oracle, said, truth, many, generator)
    revived: tuple[tuple[Answer, Answer], ...] = ()
    if restart is not None:
        again = Client(restart(), client.endpoint, client.timeout_s, client.left_out, traffic=client.traffic)
        revived = tuple(_revived(again, [next(prompts) for _ in range(PAIRS)], cold_prompts[:PAIRS], length))
        again.close()
    return Session(
        cold,
        tuple(found[f"warm {place}"] for place in range(PAIRS)),
        (found["twin 0"], found["twin 1"]),
        found["short"],
        tuple(found[f"cover {place}"] for place in range(crowd)),
        found["whole"],
        found["shorter"],
        found.get("stopped") if found["stopped"].prompt else None,
        stop_of(found["cold 0"].text),
        sampled,
        (before, after),
        (found[f"cover {crowd}"], found["cold 0"]),
        truth,
        chance,
        forced,
        revived,
        exact,
        min_top1,
        tuple(found[f"cool {place}"] for place in range(AHEAD)),
        pairs,
        brief,
    )


def _prompts(learned: Sequence[Prompt], seed: int, tokens: int) -> Iterator[Prompt]:
    """Fresh prompts: the benchmark's, and the judge's own where those have run out."""
    yield from learned
    yield from draw(seed, AHEAD + 2 * PAIRS + MOST_AT_ONCE + FORMAL + 4, tokens)


def _jobs(
    client: Client,
    generator: Random,
    cold: Sequence[Prompt],
    cover: Sequence[Prompt],
    short: Prompt,
    length: int,
    seed: int,
) -> list[_Job]:
    """First times, then repetitions beside other first times, with everything else strewn among them."""

    def plain(name: str, prompt: Prompt, *after: str) -> _Job:
        return _Job(name, lambda _: client.ask(prompt, length), after)

    def by_chance(place: int, seed: int) -> _Job:
        return _Job(f"sampled {place}", lambda _: _sample(client, cold[1], part, seed), ("cold 1",))

    def cool(place: int) -> _Job:
        def send(_: dict[str, Answer]) -> Answer:
            return client.ask(cold[place], part, temperature=COOL)

        return _Job(f"cool {place}", send, (f"cold {place}",))

    def stopped(answers: dict[str, Answer]) -> Answer:
        stop = stop_of(answers["cold 0"].text)
        return client.ask(cold[0], length, stop=[stop]) if stop else NOT_ASKED

    part = max(1, length // 3)
    first = [plain(f"cold {place}", cold[place]) for place in range(AHEAD)]
    first += [plain("short", short), *(plain(f"cover {place}", prompt) for place, prompt in enumerate(cover))]
    generator.shuffle(first)
    others = [
        _Job("whole", lambda _: client.ask(cold[0], length, stream=False), ("cold 0",)),
        _Job("shorter", lambda _: client.ask(cold[0], part), ("cold 0",)),
        _Job("stopped", stopped, ("cold 0",)),
        *(by_chance(place, _seed_of(seed, place)) for place in range(SAMPLED)),
        *(cool(place) for place in range(AHEAD)),
        # After the prompt itself: what was kept of that shows in them.
        *(plain(f"twin {place}", twin, "cold 0") for place, twin in enumerate(twins_of(cold[0], seed))),
    ]
    generator.shuffle(others)
    second: list[_Job] = []
    for pair in range(PAIRS):
        # In balanced order: a machine that drifts favours neither.
        both = [plain(f"cold {AHEAD + pair}", cold[AHEAD + pair]), plain(f"warm {pair}", cold[pair], f"cold {pair}")]
        second += both if pair % 2 == 0 else both[::-1]
        second += others[pair::PAIRS]
    return first + second


def _sample(client: Client, prompt: Prompt, tokens: int, seed: int) -> Answer:
    return client.ask(prompt, tokens, temperature=TEMPERATURE, seed=seed % 2**31)


def _seed_of(seed: int, place: int) -> int:
    """The seed of a sampled answer: the first two have one, the others each their own."""
    return seed + max(0, place - 1)


def _by_chance(oracle: Client, sampled: Sequence[Answer], seed: int) -> tuple[Answer, ...]:
    """The reference's first two sampled answers; all of them where the server's are suspiciously few."""
    few = len({one.text for one in sampled[1:]}) <= FEW_TEXTS
    asked = sampled if few else sampled[:2]
    return tuple(_sample(oracle, one.prompt, one.asked, _seed_of(seed, place)) for place, one in enumerate(asked))


def _formal(client: Client, place: int, prompt: Prompt, tokens: int) -> _Job:
    """A request with the benchmark's fields alone."""
    return _Job(f"formal {place}", lambda _: client.ask(prompt, tokens, as_benchmark=True))


def _revived(
    client: Client, fresh: Sequence[Prompt], known: Sequence[Prompt], length: int
) -> list[tuple[Answer, Answer]]:
    """Pairs of a first time and a repetition, one at a time, in balanced order."""
    client.ask(fresh[0], FIRST_TOKENS)
    pairs = []
    for place, (new, old) in enumerate(zip(fresh, known, strict=True)):
        if place % 2 == 0:
            first = client.ask(new, length)
            pairs.append((first, client.ask(old, length)))
        else:
            repeated = client.ask(old, length)
            pairs.append((client.ask(new, length), repeated))
    return pairs


def stop_of(text: str) -> str:
    """A stop string out of the middle of an answer; empty where the answer is too short for one."""
    begin = len(text) // 3
    found = text[begin : begin + STOP_LETTERS]
    return found if len(text) >= 3 * STOP_LETTERS and found.strip() and "\ufffd" not in found else ""


def teacher_forced(
    oracle: Client, answers: Sequence[Answer], truths: Sequence[Answer], count: int, generator: Random
) -> tuple[Forced, ...]:
    """Tokens drawn by chance from all answers, and the reference's choice at each of them.

    The reference must take token ids at /v1/completions and tell the ids of a prompt; where it does not, there are none.
    """
    places = [(one, place) for one in answers if one.token_ids and not one.error for place in range(len(one.token_ids))]
    known = {truth.prompt: truth.prompt_ids for truth in truths}
    found = []
    for answer, place in generator.sample(places, min(count, len(places))):
        if answer.prompt not in known:
            known[answer.prompt] = oracle.ask(answer.prompt, 1, stream=False).prompt_ids
        read, ids = known[answer.prompt], answer.token_ids or ()
        wanted = None if read is None else oracle.next_id((*read, *ids[:place]))
        if wanted is None:
            return ()
        found.append(Forced(place, ids[place], wanted))
    return tuple(found)
