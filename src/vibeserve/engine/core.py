"""The engine itself. A step is three calls: schedule, run, post-process."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from .batch import Backend, StepBatch, StepResult, build_batch
from .blocks import BlockManager
from .errors import EngineError, RequestError
from .loading import Loaded, load, prefix_store, swap_space
from .sampling import Choice, choose, logprobs_of
from .scheduler import Scheduler, Work
from .sequence import Sequence
from .settings import Settings
from .stats import Counters, Stats
from .types import MAX_LOGPROBS, FinishReason, Limits, Output, Request, TokenLogprobs

if TYPE_CHECKING:
    from .constraints import Constraint


@dataclass(slots=True)
class Turn:
    """Sampling for one sequence in one step: logits rows from `row`, one more than its draft has tokens."""

    sequence: Sequence
    row: int
    draft: tuple[int, ...]
    choices: list[Choice] = field(default_factory=list)
    reason: FinishReason | None = None

    @property
    def accepted(self) -> int:
        """Tokens of the draft that were chosen. All choices but the last are."""
        last = len(self.choices) - 1
        return last + (last < len(self.draft) and self.choices[last].token == self.draft[last])


class EngineCore:
    """One model, one batch, one thread: add requests, step, take outputs. Not thread-safe; see `EngineThread`."""

    def __init__(self, model_dir: Path, settings: Settings, backend: Backend | None = None) -> None:
        """Load the model and allocate the KV cache. Raises an EngineError that says what is wrong.

        `backend` is another core's, with the same weights, KV blocks and threads: to compare settings, cores may work on one
        in turns, as long as only one has work and none keeps a prefix that another has overwritten since.
        """
        loaded: Loaded = load(model_dir, settings, backend)
        self.settings = settings
        self._loaded = loaded
        self._backend = loaded.backend
        self._blocks = BlockManager(loaded.blocks, loaded.block_size, loaded.tree, self._copy_block)
        self._swap = swap_space(settings, loaded.backend, self._blocks)
        self._store = prefix_store(Path(model_dir), settings, loaded.backend, self._blocks)
        self._scheduler = Scheduler(settings, self._blocks, loaded.pace, self._swap)
        self._admission = loaded.admission
        self._sequences: dict[str, Sequence] = {}
        self._leaving: list[Output] = []
        self._counters = Counters()
        self.limits = Limits(
            max_model_len=loaded.max_model_len,
            vocab_size=loaded.config.vocab_size,
            max_logprobs=MAX_LOGPROBS,
            max_waiting=settings.max_waiting,
            eos_token_ids=loaded.config.eos_token_ids,
            constrained=loaded.constraints is not None,
        )
        self.constraints = loaded.constraints

    @property
    def backend(self) -> Backend:
        """What computes the steps."""
        return self._backend

    def _copy_block(self, source: int, target: int) -> None:
        self._backend.write_blocks([target], self._backend.read_blocks([source]))

    def check(self, request: Request) -> None:
        """Raise RequestError where the request cannot be served as asked. Safe from any thread."""
        prompt, params, limits = request.prompt_ids, request.params, self.limits
        if not prompt:
            raise RequestError("prompt", "the prompt is empty")
        if min(prompt) < 0 or max(prompt) >= limits.vocab_size:
            wrong = next(token for token in prompt if not 0 <= token < limits.vocab_size)
            raise RequestError("prompt", f"token id {wrong} is not in the vocabulary of {limits.vocab_size}")
        if len(prompt) >= limits.max_model_len:
            raise RequestError(
                "prompt",
                f"the prompt has {len(prompt)} tokens, this server holds {limits.max_model_len} with the answer",
            )
        if len(prompt) + params.max_tokens > limits.max_model_len:
            raise RequestError(
                "max_tokens",
                f"{len(prompt)} prompt tokens and max_tokens {params.max_tokens} exceed the context of {limits.max_model_len}",
                f"ask for at most {limits.max_model_len - len(prompt)}",
            )
        for name, ids in (
            ("stop_token_ids", params.stop_token_ids),
            ("logit_bias", [t for t, _ in params.logit_bias]),
            ("prediction", request.prediction_ids),
        ):
            for token in ids:
                if not 0 <= token < limits.vocab_size:
                    raise RequestError(name, f"token id {token} is not in the vocabulary of {limits.vocab_size}")
        if request.grammar:
            if self.constraints is None:
                raise RequestError("response_format", "this engine does not keep answers to a grammar")
            self.constraints.check(request.grammar)
        if request.id in self._sequences:
            raise RequestError("id", f"a request with id {request.id!r} is being served")

    def welcome(self, request: Request) -> None:
        """Take note that a request will be added. Raises OverloadedError where it would begin too late.

        Safe from any thread; without a target for first tokens everybody is welcome.
        """
        if self._admission is not None:
            self._admission.welcome(request, perf_counter() if request.arrival is None else request.arrival)

    def add(self, request: Request) -> None:
        """Queue a request. Raises RequestError."""
        self.check(request)
        arrival = perf_counter() if request.arrival is None else request.arrival
        sequence = Sequence(request, arrival)
        if self._loaded.speculation is not None:
            sequence.drafter = self._loaded.speculation.drafter(request.prediction_ids)
        if request.grammar and self.constraints is not None:
            self._constrain(sequence, self.constraints.start(request.grammar))
        self._sequences[request.id] = sequence
        self._scheduler.waiting.append(sequence)

    def _constrain(self, sequence: Sequence, constraint: Constraint) -> None:
        """Hold a sequence to its grammar, and begin with what that forces."""
        sequence.constraint = constraint
        if self.settings.jump_forward:
            sequence.drafter = None  # what is worth guessing is forced
            self._jump(sequence)

    def _jump(self, sequence: Sequence) -> None:
        """Append what the grammar forces; at least one token of the answer is left to be chosen."""
        params = sequence.request.params
        if sequence.constraint is None or not self.settings.jump_forward or params.logprobs is not None:
            return
        for token in sequence.constraint.jump(params.max_tokens - sequence.sampled - 1):
            self._book(sequence, token)
            sequence.unsent.append(token)
            self._counters.forced_tokens += 1

    def abort(self, request_id: str) -> None:
        """Give a request up: its blocks are free now, its last output comes with the next step. Unknown ids are ignored."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._leaving.append(self._end(sequence, (), None, "abort"))

    def abort_all(self) -> list[Output]:
        """Give every request up, now."""
        for request_id in self.request_ids():
            self.abort(request_id)
        leaving, self._leaving = self._leaving, []
        return leaving

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return self._scheduler.has_work() or bool(self._leaving)

    def request_ids(self) -> list[str]:
        """Requests that have not finished."""
        return list(self._sequences)

    def step(self) -> list[Output]:
        """Compute one batch and return what is new, request by request."""
        began = perf_counter()
        outputs, self._leaving = self._leaving, []
        work = self._scheduler.schedule()
        if not work:
            return outputs
        batch = build_batch(work)
        if self.constraints is not None:
            waiting = [item.sequence.constraint for item in work if item.samples]
            self.constraints.start_masks([constraint for constraint in waiting if constraint is not None])
        started = perf_counter()
        result = self._backend.forward(batch)
        ran = perf_counter()
        self._keep_pace(work, batch, ran - started)
        decoding = sum(item.sequence.sampled > 0 and item.count == 1 for item in work)
        new = self._post_process(work, result)
        self._counters.output_tokens += sum(len(output.token_ids) for output in new)
        self._count(work, decoding, result, began, perf_counter() - ran)
        outputs += new
        return outputs

    def _keep_pace(self, work: list[Work], batch: StepBatch, seconds: float) -> None:
        """The pace learns from what a step took."""
        pace = self._loaded.pace
        if pace is None:
            return
        # A row sees every position up to its own, a sequence's last row all of its keys.
        ends = batch.positions[batch.row_starts[1:] - 1]
        pace.learn(len(batch.tokens), float(batch.positions.sum()), float(ends.sum()), seconds)
        decoding = [item.sequence for item in work if item.sequence.decoding]
        keys = float(sum(len(sequence.tokens) for sequence in decoding))
        pace.save(len(decoding), keys, seconds, alone=len(decoding) == len(work))

    def _post_process(self, work: list[Work], result: StepResult) -> list[Output]:
        """Sample, book what was computed, and say what became of each request."""
        turns: list[Turn] = []
        row = 0
        for item in work:
            sequence, first = item.sequence, item.sequence.computed
            samples = item.samples
            if sequence.request.params.prompt_logprobs and first < sequence.prompt_tokens:
                self._score_prompt(sequence, first, item.count, row, result)
                row += item.count - 1 if samples else item.count
            if samples:
                turns.append(Turn(sequence, row, item.draft))
                row += 1 + len(item.draft)
            sequence.computed += item.count
        self._sample(turns, result)
        for turn in turns:
            turn.sequence.computed += len(turn.choices) - 1
            self._blocks.trim(turn.sequence)
            if turn.draft:
                self._learn(turn)
        # What a sequence has is made known only now: its tokens are settled.
        for item in work:
            self._blocks.commit(item.sequence)
        return [self._answer(turn) for turn in turns]

    def _sample(self, turns: list[Turn], result: StepResult) -> None:
        """Choose tokens in order: a sequence goes on for as long as it chooses what its draft has."""
        live, depth = turns, 0
        while live:
            wanted = [(turn.sequence, turn.row + depth) for turn in live]
            if result.logits is None:
                choices = [Choice(int(result.best[row])) for _, row in wanted]
            else:
                ends = self.limits.eos_token_ids
                choices = choose(wanted, result.logits, result.best, ends, self._backend.draw)
            for turn, choice in zip(live, choices, strict=True):
                turn.choices.append(choice)
                turn.reason = self._append(turn.sequence, choice.token)
            live = [turn for turn in live if turn.reason is None and turn.accepted > depth]
            depth += 1

    def _append(self, sequence: Sequence, token: int) -> FinishReason | None:
        """One more token, and why it is the last."""
        self._book(sequence, token)
        sequence.unsent.append(token)
        if sequence.constraint is not None:
            sequence.constraint.accept(token)
            if not self._ends(sequence, token):
                self._jump(sequence)
        return self._finish_reason(sequence, token)

    def _book(self, sequence: Sequence, token: int) -> None:
        params = sequence.request.params
        sequence.tokens.append(token)
        if params.presence_penalty or params.frequency_penalty:
            sequence.token_counts[token] = sequence.token_counts.get(token, 0) + 1

    def _ends(self, sequence: Sequence, token: int) -> bool:
        """Whether this token ends the answer by itself."""
        params = sequence.request.params
        ends = token in params.stop_token_ids or (not params.ignore_eos and token in self.limits.eos_token_ids)
        return ends and sequence.sampled >= params.min_tokens

    def _learn(self, turn: Turn) -> None:
        """Tell the drafter and the counters what became of a draft."""
        assert turn.sequence.drafter is not None
        turn.sequence.drafter.record(len(turn.draft), turn.accepted)
        self._counters.proposed_tokens += len(turn.draft)
        self._counters.accepted_tokens += turn.accepted

    def _answer(self, turn: Turn) -> Output:
        tokens = tuple(turn.sequence.unsent)
        turn.sequence.unsent.clear()
        scored = [choice.logprobs for choice in turn.choices if choice.logprobs is not None]
        entries = tuple(scored) if scored else None
        if turn.reason is not None:
            return self._end(turn.sequence, tokens, entries, turn.reason)
        return self._output(turn.sequence, tokens, entries, None)

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        constraint = sequence.constraint
        if constraint is not None and constraint.error:
            return "error"
        if self._ends(sequence, token) or (constraint is not None and constraint.complete):
            return "stop"
        return "length" if sequence.sampled >= sequence.request.params.max_tokens else None

    def _end(
        self,
        sequence: Sequence,
        token_ids: tuple[int, ...],
        entries: tuple[TokenLogprobs, ...] | None,
        reason: FinishReason,
    ) -> Output:
        self._scheduler.remove(sequence)
        del self._sequences[sequence.id]
        if self._admission is not None:
            self._admission.left(sequence, ended=reason in ("stop", "length"))
        self._counters.finished[reason] += 1
        return self._output(sequence, token_ids, entries, reason)

    def _output(
        self,
        sequence: Sequence,
        token_ids: tuple[int, ...],
        entries: tuple[TokenLogprobs, ...] | None,
        reason: FinishReason | None,
    ) -> Output:
        first = sequence.sampled == len(token_ids)
        scored = sequence.prompt_logprobs if first else None
        drafter, constraint = sequence.drafter, sequence.constraint
        last = token_ids[-1] if token_ids else -1
        return Output(
            request_id=sequence.id,
            token_ids=token_ids,
            logprobs=entries,
            finish_reason=reason,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached_tokens,
            prompt_logprobs=None if scored is None else tuple(scored),
            accepted_prediction_tokens=drafter.accepted if drafter else 0,
            rejected_prediction_tokens=drafter.rejected if drafter else 0,
            complete=reason == "stop" and constraint is not None and not self._closes(sequence, last),
            error=constraint.error if constraint is not None and reason == "error" else None,
        )

    def _closes(self, sequence: Sequence, token: int) -> bool:
        """Whether a token is an end token, which has no text."""
        return token in sequence.request.params.stop_token_ids or token in self.limits.eos_token_ids

    def _score_prompt(self, sequence: Sequence, first: int, count: int, row: int, result: StepResult) -> None:
        """Log-probabilities of prompt tokens: the logits at a position score the token after it."""
        assert result.logits is not None
        if sequence.prompt_logprobs is None or first == 0:
            sequence.prompt_logprobs = [None]
        for offset in range(count):
            following = first + offset + 1
            if following < sequence.prompt_tokens:
                entry = logprobs_of(
                    result.logits[row + offset], sequence.tokens[following], sequence.request.params.logprobs or 0
                )
                sequence.prompt_logprobs.append(entry)

    def _count(self, work: list[Work], decoding: int, result: StepResult, began: float, sampling_s: float) -> None:
        counters = self._counters
        for item in work:
            sequence = item.sequence
            if self._admission is not None:
                self._admission.progress(sequence, first=not sequence.started)
            if not sequence.started:
                sequence.started = True
                counters.admitted += 1
                counters.queue_wait_s += began - sequence.arrival
                counters.prompt_tokens += sequence.prompt_tokens
                counters.prefix_hit_tokens += sequence.cached_tokens
        counters.steps += 1
        counters.batch_rows += len(work)
        counters.decode_tokens += decoding
        counters.prefill_tokens += sum(item.count for item in work) - decoding
        counters.preemptions = self._scheduler.preemptions
        counters.swapped = self._swap.swapped_out if self._swap is not None else 0
        tree = self._blocks.tree
        counters.evicted_blocks = tree.evicted if tree is not None else 0
        seconds = counters.seconds
        seconds["linear"] += result.linear_s
        seconds["attention"] += result.attention_s
        seconds["sampling"] += sampling_s
        seconds["other"] += perf_counter() - began - result.linear_s - result.attention_s - sampling_s

    def stats(self) -> Stats:
        """A snapshot of the counters. Safe from any thread."""
        counters = self._counters
        return Stats(
            seconds=dict(counters.seconds),
            steps=counters.steps,
            batch_rows=counters.batch_rows,
            prefill_tokens=counters.prefill_tokens,
            decode_tokens=counters.decode_tokens,
            output_tokens=counters.output_tokens,
            prompt_tokens=counters.prompt_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            queue_wait_s=counters.queue_wait_s,
            admitted=counters.admitted,
            finished=dict(counters.finished),
            preemptions=counters.preemptions,
            swapped=counters.swapped,
            restored_blocks=self._store.restored if self._store is not None else 0,
            evicted_blocks=counters.evicted_blocks,
            proposed_tokens=counters.proposed_tokens,
            accepted_tokens=counters.accepted_tokens,
            forced_tokens=counters.forced_tokens,
            refused=self._admission.refused if self._admission is not None else 0,
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            max_batch=self.settings.max_batch,
            kv_blocks_used=self._blocks.used,
            kv_blocks_cached=self._blocks.cached,
            kv_blocks_total=self._blocks.total,
            features=dict(self._loaded.features),
            info=dict(self._loaded.info),
            memory_bytes=dict(self._loaded.memory_bytes),
        )

    def add_idle(self, seconds: float) -> None:
        """Count time in which there was nothing to do."""
        self._counters.seconds["idle"] += seconds

    def rest(self) -> None:
        """Called when the engine falls idle: raises EngineError unless every KV block is accounted for."""
        self._blocks.check(self._scheduler.running)
        if self._swap is not None and self._swap.blocks_held and not self._scheduler.waiting:
            raise EngineError(f"{self._swap.blocks_held} blocks are set aside for nobody")

    def close(self) -> None:
        """Keep the prefix cache where a file for it is named; free the model's memory and worker threads."""
        if self._store is not None:
            self._store.save()
        if self.constraints is not None:
            self.constraints.close()
        self._backend.close()
