"""What the engine counts while it runs: plain numbers, read by the metrics page and by the playbook."""

from __future__ import annotations

from dataclasses import dataclass, field

PHASES = ("linear", "attention", "sampling", "other", "idle")


@dataclass(slots=True)
class Counters:
    """Totals since the start; only the engine's own thread writes them."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    steps: int = 0
    batch_rows: int = 0
    """Sequences summed over steps: divided by `steps`, the mean occupancy of the batch."""
    prefill_tokens: int = 0
    decode_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens: int = 0
    prefix_hit_tokens: int = 0
    queue_wait_s: float = 0.0
    admitted: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("stop", "length", "abort", "error"), 0))
    preemptions: int = 0
    swapped: int = 0
    evicted_blocks: int = 0
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    forced_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """A snapshot: totals, and how things stand at this moment. Safe to read from any thread."""

    seconds: dict[str, float]
    """Wall time of the engine's thread by phase: linear, attention, sampling, other, idle."""
    steps: int
    batch_rows: int
    prefill_tokens: int
    decode_tokens: int
    output_tokens: int
    prompt_tokens: int
    prefix_hit_tokens: int
    queue_wait_s: float
    admitted: int
    finished: dict[str, int]
    preemptions: int
    evicted_blocks: int
    proposed_tokens: int
    """Drafted tokens that were verified; `accepted_tokens` are those that the answer has."""
    accepted_tokens: int
    forced_tokens: int
    """Tokens that a grammar forced, appended without being chosen."""
    running: int
    waiting: int
    max_batch: int
    kv_blocks_used: int
    """Blocks that running requests hold; blocks that the prefix cache merely keeps are not among them."""
    kv_blocks_cached: int
    kv_blocks_total: int
    features: dict[str, bool]
    """Technique → whether it is at work (`engine_feature_active{feature="…"}`)."""
    info: dict[str, str]
    """Facts for a log or a label: backend, dtype, instruction set, why a fall-back was taken."""
    swapped: int = 0
    """Of the preemptions, those whose keys and values were set aside."""
    restored_blocks: int = 0
    """Blocks of the prefix cache that were read from its file at the start."""
    refused: int = 0
    """Requests that were turned away because their first token would have come too late."""
    memory_bytes: dict[str, int] = field(default_factory=dict)
    """What the engine takes at most, by what for: weights, kv_cache, step."""
