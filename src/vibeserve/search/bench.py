"""The real laboratory: vibeserve.measure starts, checks and loads servers; vibeserve.judge probes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vibeserve.agents.agent import Fact
from vibeserve.base.errors import InputError
from vibeserve.base.processes import sweep
from vibeserve.base.provenance import Provenance
from vibeserve.judge import Integrity, probe
from vibeserve.measure import (
    BenchResult,
    GateResult,
    KilledError,
    RunningServer,
    killed_from_outside,
    launch,
    measure_window,
    run_checker,
)
from vibeserve.measure.limits import Workload
from vibeserve.measure.profile import Watching
from vibeserve.measure.sandbox import choose
from vibeserve.search.counters import facts_of
from vibeserve.search.fixed import limit_facts, roofline_facts
from vibeserve.search.lab import Gate, Window
from vibeserve.search.proofs import Proofs
from vibeserve.targets import Bundle, ModelFacts

_MEASURED = Provenance.MEASURED.value
#: Figures of the benchmark that are kept as evidence, with their units.
_FIGURES = {
    "output_tokens_per_s": "tokens/s",
    "request_throughput": "requests/s",
    "goodput": "requests/s",
    "p50_ttft_s": "s",
    "p95_ttft_s": "s",
    "p50_tpot_s": "s",
    "p95_tpot_s": "s",
    "p50_itl_s": "s",
    "p99_itl_s": "s",
    "p50_latency_s": "s",
    "p95_latency_s": "s",
    "p99_latency_s": "s",
}
#: A judge's answers are as long as the workload's, within what a probe may cost.
_PROBE_TOKENS = (24, 64)


@dataclass(frozen=True)
class LabServer:
    """A running candidate as the search holds it."""

    running: RunningServer

    @property
    def ready_s(self) -> float:
        """Seconds from its start to its first healthy answer."""
        return self.running.ready_s

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.running.failure() is None

    def close(self) -> None:
        """End all of it."""
        self.running.stop()


class Bench:
    """The laboratory of one run. `group` marks its processes.

    `fixed` gives the facts of a machine (and of the model on it), `again` this machine measured once more, or None.
    """

    def __init__(
        self,
        bundle: Bundle,
        model_dir: Path,
        *,
        model: ModelFacts | None,
        machine: Any,
        directory: Path,
        fixed: Callable[[Any], Mapping[str, Fact]],
        again: Callable[[], Any],
        group: str,
        proofs: Proofs,
    ):
        self._bundle = bundle
        self._model_dir = model_dir
        self._model = model
        self._machine = machine
        self._directory = directory
        self._fixed = fixed
        self._again = again
        self._group = group
        self._proofs = proofs
        self._integrity = Integrity(bundle, model_dir)
        self._workload: tuple[int, int] | None = None

    def recover(self) -> None:
        """End processes that carry this run's mark: the run's lock says that nobody else works on it."""
        sweep(self._group)

    def start(self, name: str, directory: Path, *, log: Path) -> LabServer:
        """Launch it on a free port and wait until it is ready. Raises StartError."""
        del name
        return LabServer(launch(directory, self._model_dir, log_dir=log, group=self._group, sandbox=choose()))

    def check(self, server: Any, *, seed: int, log: Path, reference: bool = False) -> Gate:
        """The bundle's checker on this very server; of the reference it is enough to have been proved once."""
        if reference and (known := self._proofs.find()) is not None:
            return known
        result = run_checker(
            self._bundle, server.running.url, self._model_dir, output=log, seed=seed, group=self._group
        )
        _require_whole(server, result)
        ok = result.ok if result.ran else None
        gate = Gate("check", ok, result.detail, {**_slim(result.document), "file": self._relative(log)})
        if reference and ok:
            self._proofs.keep(gate)
        return gate

    def probe(self, server: Any, *, seed: int, oracle: Any) -> Sequence[Gate]:
        """The judge's probes, with prompts and answers of the workload's length."""
        prompt, output = self._workload or (64, _PROBE_TOKENS[1])
        low, high = _PROBE_TOKENS
        results = probe(
            self._bundle,
            server.running.url,
            seed=seed,
            oracle_url=oracle.running.url if oracle is not None else None,
            prompt_tokens=prompt,
            output_tokens=min(high, max(low, output)),
        )
        server.running.require_alive()
        if oracle is not None and not oracle.alive:
            raise KilledError(f"the reference died while it was asked for what is right: {oracle.running.failure()}")
        return [Gate(f"probe {found.name}", found.ok, found.detail, found.document) for found in results]

    def answers(self, server: Any, document: str, *, log: Path) -> Gate:
        """`checker.py --answers` on a window's JSON; a checker that does not know the flag has not run."""
        words = ("--answers", str((self._directory / document).absolute()))
        url = server.running.url
        result = run_checker(self._bundle, url, self._model_dir, output=log, extra_args=words, group=self._group)
        _require_whole(server, result)
        found = {**_slim(result.document), "file": self._relative(log), "of": document}
        return Gate("answers under load", result.ok if result.ran else None, result.detail, found)

    def integrity(self) -> dict[str, str]:
        """Digests of evaluator, weights and environment."""
        return self._integrity.digests()

    def window(
        self, server: Any, others: Sequence[Any], *, seed: int, window_s: float, log: Path, again: bool = False
    ) -> Window:
        """One window while the others stand still; once more where something outside disturbed it. Raises RunError."""
        window, _ = self._window(server, others, seed, window_s, log)
        if window.noisy and again:
            second, _ = self._window(server, others, seed, window_s, log.with_name(f"{log.stem}-again.json"))
            noisy = second.noisy and f"{second.noisy} (also when measured again)"
            return replace(second, noisy=noisy, retried=True)
        return window

    def observe(self, server: Any, *, seed: int, window_s: float, log: Path) -> Window:
        """A window with the server's counters taken around it. Raises RunError."""
        with Watching(server.running) as watching:
            window, result = self._window(server, (), seed, window_s, log)
        facts = {**self._figures(result), **self._counted(result), **facts_of(watching.profile)}
        return replace(window, facts=facts)

    def curve(self, server: Any, *, concurrency: int, seed: int, window_s: float, log: Path) -> Window:
        """A window at another number of requests at once. Raises RunError."""
        extra = ("--concurrency", str(concurrency))
        window, result = self._window(server, (), seed, window_s, log, extra)
        return replace(window, facts=self._figures(result))

    def facts(self) -> dict[str, Fact]:
        """Machine and model."""
        return dict(self._fixed(self._machine))

    def limit_again(self, known: Mapping[str, Fact]) -> dict[str, Fact]:
        """The higher of the rates kept and measured now, and the limit made of them."""
        machine = self._again()
        if machine is None or self._model is None:
            return {}
        told = {name.removeprefix("workload."): fact.value for name, fact in known.items()}
        work = Workload.from_document({"workload": told})
        return {**self._fixed(machine), **limit_facts(self._bundle, machine, self._model, work)}

    def _window(
        self, server: Any, others: Sequence[Any], seed: int, window_s: float, log: Path, extra: Sequence[str] = ()
    ) -> tuple[Window, BenchResult]:
        result, _ = measure_window(
            self._bundle,
            self._model_dir,
            server.running,
            [other.running for other in others],
            seed=seed,
            window_s=window_s,
            output=log,
            extra_args=extra,
            group=self._group,
        )
        noisy, waiting = "; ".join(result.noisy), waiting_share(result.document)
        return Window(result.value, result.failed, result.detail, noisy, self._relative(log), waiting=waiting), result

    def _figures(self, result: BenchResult) -> dict[str, Fact]:
        """The benchmark's own figures and workload."""
        facts = {}
        for name, unit in _FIGURES.items():
            value = result.document.get(name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                facts[name] = Fact(float(value), unit, _MEASURED, self._bundle.benchmark_script.name)
        overhead = result.document.get("client_overhead_s")
        if isinstance(overhead, dict) and isinstance(overhead.get("p99"), int | float):
            facts["client.overhead_p99_s"] = Fact(overhead["p99"], "s", _MEASURED, "calibration against a fake server")
        table = result.document.get("workload")
        for name, value in (table if isinstance(table, dict) else {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                facts[f"workload.{name}"] = Fact(float(value), "", _MEASURED, "the benchmark's own description")
        limits = result.document.get("slo")
        for name, value in (limits if isinstance(limits, dict) else {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                facts[f"workload.slo_{name}"] = Fact(float(value), "s", _MEASURED, "the benchmark's own limits")
        if {"workload.prompt_tokens", "workload.output_tokens"} <= facts.keys():
            self._workload = int(facts["workload.prompt_tokens"].value), int(facts["workload.output_tokens"].value)
        return facts

    def _counted(self, result: BenchResult) -> dict[str, Fact]:
        """The limit of this workload, and where this server stands on the roofline."""
        if self._model is None or self._machine is None:
            return {}
        try:
            work = Workload.from_document(result.document)
        except InputError:
            return {}  # the benchmark does not describe its workload: there is nothing to count
        facts = limit_facts(self._bundle, self._machine, self._model, work)
        tokens_per_s = result.document.get("output_tokens_per_s")
        measured = tokens_per_s if isinstance(tokens_per_s, int | float) else None
        return facts | roofline_facts(facts, work, measured)

    def _relative(self, path: Path) -> str:
        return str(path.relative_to(self._directory)) if path.is_relative_to(self._directory) else str(path)


def _require_whole(server: Any, result: GateResult) -> None:
    """Raises RunError where the server died under the checker: what it says then is no verdict on answers."""
    server.running.require_alive()
    if killed_from_outside(result.exit_code):
        raise KilledError(result.detail)


def waiting_share(document: Mapping[str, Any]) -> float:
    """The share of a window's requests that it cut off before their first token; 0 where the benchmark does not say."""
    first = document.get("ttft_s")
    count, cut_off = (first.get("n"), first.get("cut_off")) if isinstance(first, dict) else (None, None)
    return cut_off / count if isinstance(count, int) and isinstance(cut_off, int) and count > 0 else 0.0


def _slim(document: Mapping[str, Any]) -> dict[str, Any]:
    """A checker's JSON without its long texts: names and outcomes of the cases, and top-level values."""
    slim: dict[str, Any] = {}
    for name, value in document.items():
        if name == "cases" and isinstance(value, list):
            slim["cases"] = [
                {"name": case.get("name"), "ok": case.get("ok"), "detail": str(case.get("detail"))[:300]}
                for case in value
                if isinstance(case, dict)
            ]
        elif isinstance(value, bool | int | float | str | None):
            slim[name] = value if not isinstance(value, str) else value[:300]
    return slim
