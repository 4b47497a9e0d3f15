"""`/metrics`: the engine's counters and the front's own, in the Prometheus text format."""

from __future__ import annotations

import bisect
import resource
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ..stats import Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_BOUNDS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

# Stats field → (metric, help); totals first, then what stands at this moment.
TOTALS = {
    "steps": ("engine_steps_total", "Steps of the engine."),
    "batch_rows": ("engine_batch_rows_total", "Sequences summed over steps; over steps it is the mean occupancy."),
    "prefill_tokens": ("engine_prefill_tokens_total", "Prompt tokens computed."),
    "decode_tokens": ("engine_decode_tokens_total", "Tokens computed one at a time."),
    "output_tokens": ("engine_output_tokens_total", "Tokens sampled."),
    "prompt_tokens": ("engine_prompt_tokens_total", "Prompt tokens of admitted requests."),
    "prefix_hit_tokens": ("engine_prefix_hit_tokens_total", "Prompt tokens taken from the prefix cache."),
    "queue_wait_s": ("engine_queue_wait_seconds_total", "Time from arrival to admission, summed over requests."),
    "admitted": ("engine_admitted_total", "Requests admitted to the batch."),
    "preemptions": ("engine_preemptions_total", "Requests put back for want of memory."),
    "swapped": ("engine_swapped_total", "Requests put back whose keys and values were set aside."),
    "restored_blocks": ("engine_restored_blocks_total", "Blocks that the prefix cache had from its file at the start."),
    "evicted_blocks": ("engine_evicted_blocks_total", "Blocks that the prefix cache gave up."),
    "proposed_tokens": ("engine_proposed_tokens_total", "Drafted tokens that were verified."),
    "forced_tokens": ("engine_forced_tokens_total", "Tokens that a grammar forced, appended without being chosen."),
    "refused": ("engine_refused_total", "Requests turned away because their first token would have come too late."),
    "accepted_tokens": ("engine_accepted_tokens_total", "Drafted tokens that the answer has."),
}
GAUGES = {
    "running": ("engine_running", "Requests in the batch."),
    "waiting": ("engine_waiting", "Requests that wait for a place."),
    "max_batch": ("engine_max_batch", "Places in the batch."),
    "kv_blocks_used": ("engine_kv_blocks_used", "KV blocks held by running requests."),
    "kv_blocks_cached": ("engine_kv_blocks_cached", "KV blocks kept by the prefix cache alone."),
    "kv_blocks_total": ("engine_kv_blocks_total", "KV blocks."),
}


class Histogram:
    """Counts of observations by upper bound, cumulative when written."""

    def __init__(self, bounds: Sequence[float] = LATENCY_BOUNDS_S):
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> Iterable[str]:
        """The exposition of this histogram."""
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            label = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'{name}_bucket{{le="{label}"}} {total}'
        yield f"{name}_sum {self._sum!r}"
        yield f"{name}_count {total}"


class HttpCounters:
    """What the front counts. Lives in the event loop."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.in_flight = 0
        self.disconnects = 0
        self.first_token_s = Histogram()
        self.request_s = Histogram()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) else str(int(value))


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[Mapping[str, str], float]]) -> list[str]:
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        shown = ",".join([f'{key}="{_escaped(label)}"' for key, label in labels.items()])
        lines.append(f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}")
    return lines


def _engine_lines(stats: Stats) -> list[str]:
    lines = _family(
        "engine_seconds_total",
        "counter",
        "Time of the engine's thread by phase.",
        [({"phase": phase}, float(value)) for phase, value in stats.seconds.items()],
    )
    for field, (name, text) in TOTALS.items():
        lines += _family(name, "counter", text, [({}, getattr(stats, field))])
    for field, (name, text) in GAUGES.items():
        lines += _family(name, "gauge", text, [({}, getattr(stats, field))])
    finished = [({"reason": reason}, count) for reason, count in stats.finished.items()]
    lines += _family("engine_finished_total", "counter", "Requests that ended, by reason.", finished)
    memory = [({"part": part}, size) for part, size in stats.memory_bytes.items()]
    lines += _family("engine_memory_bytes", "gauge", "What the engine takes at most, by what for.", memory)
    active = [({"feature": name}, int(on)) for name, on in stats.features.items()]
    lines += _family("engine_feature_active", "gauge", "1 where a technique is at work.", active)
    return lines + _family("engine_info", "gauge", "Facts about this engine.", [(stats.info, 1)])


def _http_lines(counters: HttpCounters, ready: bool) -> list[str]:
    requests = [({"route": route, "status": str(status)}, n) for (route, status), n in counters.requests.items()]
    usage = resource.getrusage(resource.RUSAGE_SELF)
    lines = _family("http_requests_total", "counter", "Answers by route and status.", requests)
    lines += _family(
        "http_requests_in_flight", "gauge", "Requests that are being answered.", [({}, counters.in_flight)]
    )
    lines += _family("http_disconnects_total", "counter", "Clients that left early.", [({}, counters.disconnects)])
    for name, text, histogram in (
        ("http_time_to_first_token_seconds", "From the request to its first token.", counters.first_token_s),
        ("http_request_seconds", "From the request to the end of its answer.", counters.request_s),
    ):
        lines += [f"# HELP {name} {text}", f"# TYPE {name} histogram", *histogram.lines(name)]
    lines += _family("http_ready", "gauge", "1 where requests are taken.", [({}, int(ready))])
    # This runs in the event loop's thread, so the thread's own clock is the front's whole cost.
    lines += _family(
        "http_cpu_seconds_total", "counter", "Processor time of the HTTP front.", [({}, time.thread_time())]
    )
    spent = usage.ru_utime + usage.ru_stime
    lines += _family("process_cpu_seconds_total", "counter", "Processor time of the process.", [({}, spent)])
    return lines + _family("process_resident_memory_bytes", "gauge", "Memory in use.", [({}, _resident_bytes())])


def _resident_bytes() -> int:
    """Resident memory now; where the system does not tell, its peak."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def render(stats: Stats | None, counters: HttpCounters, *, ready: bool) -> bytes:
    """The whole page; without an engine (still loading) only the front's part."""
    lines = ([] if stats is None else _engine_lines(stats)) + _http_lines(counters, ready)
    return ("\n".join(lines) + "\n").encode()
