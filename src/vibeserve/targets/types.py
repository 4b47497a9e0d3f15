"""What a target is, as frozen values: the metric, the model, and the bundle that ties them to three directories."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Direction = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Metric:
    """The number that is optimised: a top-level finite number `name` in the benchmark's JSON."""

    name: str
    unit: str
    direction: Direction

    def better(self, candidate: float, incumbent: float) -> float:
        """How many times better `candidate` is: above 1 is better, whatever the direction."""
        return candidate / incumbent if self.direction == "higher" else incumbent / candidate


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request must keep to count as goodput: seconds to the first token, seconds for each further one."""

    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class ModelMeta:
    """reference/meta.json: which model, and where its weights may be taken from, in order."""

    model_id: str
    revision: str | None = None
    task: str | None = None
    sources: tuple[str, ...] = ()
    trust_remote_code: bool = False

    def places(self) -> tuple[str, ...]:
        """The sources; where none are listed, the hub by the model's id."""
        return self.sources or (f"hf://{self.model_id}" + (f"@{self.revision}" if self.revision else ""),)


@dataclass(frozen=True)
class Bundle:
    """A target on disk. `reference`, `checker` and `benchmark` are the directories that hold the script of that name.

    `path` is the bundle's directory, or None where the three directories lie apart. `metric_source` says where metric
    and direction were read. Times are seconds; `near_tie_margin` is a gap of logits, `min_top1` a share.
    """

    path: Path | None
    slug: str
    reference: Path
    checker: Path
    benchmark: Path
    objective: Path | None
    metric: Metric
    meta: ModelMeta
    metric_source: str = "bundle.toml"
    modality: str = "text -> text"
    api: str = "openai-completions"
    health: str = "/health"
    hardware: str | None = None
    dtypes: tuple[str, ...] = ("float32",)
    near_tie_margin: float = 0.0
    min_top1: float = 1.0
    slo: Slo | None = None
    checker_args: tuple[str, ...] = ()
    checker_timeout_s: float = 600.0
    benchmark_args: tuple[str, ...] = ()
    benchmark_timeout_s: float = 900.0

    @property
    def reference_script(self) -> Path:
        """reference/reference.py."""
        return self.reference / "reference.py"

    @property
    def checker_script(self) -> Path:
        """accuracy_checker/checker.py."""
        return self.checker / "checker.py"

    @property
    def benchmark_script(self) -> Path:
        """benchmark/benchmark.py."""
        return self.benchmark / "benchmark.py"
