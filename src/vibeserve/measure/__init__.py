"""Owns every process and every number: launch, gates, paired comparison, statistics, fingerprint, limits."""

from vibeserve.measure.candidate import Candidate, missing_requirements, read_candidate
from vibeserve.measure.compare import (
    DEFAULT_PAIRS,
    DEFAULT_WINDOW_S,
    MOST_PAIRS,
    SAME,
    Comparison,
    Window,
    compare,
    measure_window,
    order_of,
    pair_seed,
    screen,
    verdict,
)
from vibeserve.measure.cpus import CpuPlan, plan_cpus
from vibeserve.measure.errors import KilledError, RunError, StartError, killed_from_outside
from vibeserve.measure.fingerprint import Fingerprint, explain_difference, fingerprint
from vibeserve.measure.gates import BenchResult, GateResult, metric_value, run_benchmark, run_checker
from vibeserve.measure.launch import RunningServer, free_port, launch
from vibeserve.measure.noise import Load, LoadWatch, quiet_now
from vibeserve.measure.reference import reference_candidate
from vibeserve.measure.servers import ExternalServer, Server, at_rest, wait_until_idle
from vibeserve.measure.statistics import (
    MIN_PAIRS,
    Ratio,
    findable_gain,
    paired_ratio,
    pairs_needed,
    power,
    screen_rejects,
    unseen,
)

__all__ = [
    "DEFAULT_PAIRS",
    "DEFAULT_WINDOW_S",
    "MIN_PAIRS",
    "MOST_PAIRS",
    "SAME",
    "BenchResult",
    "Candidate",
    "Comparison",
    "CpuPlan",
    "ExternalServer",
    "Fingerprint",
    "GateResult",
    "KilledError",
    "Load",
    "LoadWatch",
    "Ratio",
    "RunError",
    "RunningServer",
    "Server",
    "StartError",
    "Window",
    "at_rest",
    "compare",
    "explain_difference",
    "findable_gain",
    "fingerprint",
    "free_port",
    "killed_from_outside",
    "launch",
    "measure_window",
    "metric_value",
    "missing_requirements",
    "order_of",
    "pair_seed",
    "paired_ratio",
    "pairs_needed",
    "plan_cpus",
    "power",
    "quiet_now",
    "read_candidate",
    "reference_candidate",
    "run_benchmark",
    "run_checker",
    "screen",
    "screen_rejects",
    "unseen",
    "verdict",
    "wait_until_idle",
]
