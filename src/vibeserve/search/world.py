"""The machine's own world: bundles from disk, models materialised, servers started for real."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import vibeserve
from vibeserve.agents import confine, make_agent
from vibeserve.agents.agent import Fact, Goal
from vibeserve.agents.coding import CodingAgent
from vibeserve.base.errors import InputError, MissingError
from vibeserve.base.jsonio import plain
from vibeserve.base.paths import cache_dir
from vibeserve.hardware import THIS_MACHINE, Machine, detect, detect_higher, find, is_measured
from vibeserve.measure import Fingerprint, fingerprint, reference_candidate
from vibeserve.measure.sandbox import choose
from vibeserve.search.bench import Bench
from vibeserve.search.context import group_of
from vibeserve.search.fixed import fixed_facts
from vibeserve.search.proofs import Proofs
from vibeserve.search.request import Request
from vibeserve.search.start import Prepared
from vibeserve.targets import Bundle, ModelFacts, materialize, model_facts, read_bundle, read_three


@dataclasses.dataclass(frozen=True)
class SystemWorld:
    """`note` is told what takes long before anything is measured."""

    note: Callable[[str], None] = lambda text: None
    _prepared: dict[Path, Prepared] = dataclasses.field(default_factory=dict)

    def prepare(self, request: Request, directory: Path) -> Prepared:
        """Read, materialise, fingerprint; once a run and process. Raises InputError (2) and MissingError (3)."""
        if directory not in self._prepared:
            self._prepared[directory] = self._prepare(request, directory)
        return self._prepared[directory]

    def _prepare(self, request: Request, directory: Path) -> Prepared:
        bundle = bundle_of(request)
        agent, sandbox = make_agent(request.agent), confine.here()
        if isinstance(agent, CodingAgent):
            agent.driver.ready()
        here = fingerprint()
        notes = [f"metric: {bundle.metric.name} ({bundle.metric.direction} is better), from {bundle.metric_source}"]
        notes += _target(bundle, here, request)
        model_dir = materialize(bundle, trust_remote_code=request.trust_remote_code, note=self.note)
        model = _model_facts(model_dir)
        machine = self._machine()
        goal = _goal(bundle, model, here)
        where = environment(bundle, model_dir, here)
        lab = Bench(
            bundle,
            model_dir,
            model=model,
            machine=machine,
            directory=directory,
            fixed=lambda rates: _fixed(rates, model, bundle, here),
            again=self._machine_again,
            group=group_of(directory),
            proofs=Proofs(cache_dir() / "reference-checks", where),
        )
        return Prepared(
            goal=goal,
            lab=lab,
            agent=agent,
            sandbox=sandbox,
            readable=(model_dir.resolve(),),
            reference=reference_candidate(bundle, trust_remote_code=request.trust_remote_code),
            environment=where,
            device=plain(here),
            notes=tuple(notes),
        )

    def _machine_again(self) -> Machine | None:
        self.note("measuring this machine's memory bandwidth and peaks again (about 15 s)")
        try:
            return detect_higher()
        except MissingError as error:
            self.note(f"the limit stays as it is: {error.message}")
            return None

    def _machine(self) -> Machine | None:
        if not is_measured():
            self.note("measuring this machine's memory bandwidth and peaks, once (about 15 s)")
        try:
            return detect()
        except MissingError as error:
            self.note(f"no physical limit: {error.message}")
            return None


def bundle_of(request: Request) -> Bundle:
    """The bundle that a request names. Raises InputError."""
    if request.bundle is not None:
        return read_bundle(request.bundle, metric=request.metric)
    return read_three(
        request.ref or "", request.acc_checker or "", request.bench or "", request.objective, request.metric
    )


def _target(bundle: Bundle, here: Fingerprint, request: Request) -> list[str]:
    """What to say of the bundle's machine. Raises MissingError where it is another one and `--here` was not given."""
    wanted = bundle.hardware
    if wanted is None or wanted.strip().lower() in THIS_MACHINE:
        return []
    machine = find(wanted)
    if any(machine.name.lower() in name.lower() for name in here.accelerators):
        return []
    if request.here:
        return [f"measured here, on {here.device}: the bundle is for {machine.title}"]
    raise MissingError(
        f"the bundle is for {machine.title}, which this machine ({here.device}) is not",
        hint="'vibeserve validate' and 'vibeserve materialize' work here; --here measures on this machine all the same",
    )


def _goal(bundle: Bundle, model: ModelFacts | None, here: Fingerprint) -> Goal:
    objective = ""
    if bundle.objective is not None and bundle.objective.is_file():
        objective = bundle.objective.read_text(encoding="utf-8", errors="replace")[:20_000]
    return Goal(
        slug=bundle.slug,
        modality=bundle.modality,
        api=bundle.api,
        metric=bundle.metric.name,
        unit=bundle.metric.unit,
        direction=bundle.metric.direction,
        hardware=here.device,
        hardware_kind=_kind(here),
        dtypes=bundle.dtypes,
        architecture=model.architecture if model else "unknown",
        objective=objective,
    )


def _kind(here: Fingerprint) -> str:
    names = " ".join(here.accelerators).lower()
    if "nvidia" in names or "tesla" in names:
        return "nvidia"
    return "trainium" if "neuron" in names else "cpu"


def _model_facts(model_dir: Path) -> ModelFacts | None:
    try:
        return model_facts(model_dir)
    except InputError:
        return None  # no transformer (speech, images, …): it has no counted limit, and the document says so


def _fixed(machine: Machine | None, model: ModelFacts | None, bundle: Bundle, here: Fingerprint) -> Mapping[str, Fact]:
    if machine is None or model is None:
        return {}
    return fixed_facts(machine, model, bundle.dtypes, here.cores_usable)


def environment(bundle: Bundle, model_dir: Path, here: Fingerprint) -> dict[str, Any]:
    """What must be the same for figures to be comparable; `resume` compares it key by key."""
    parts = {name: digest(folder) for name, folder in (("checker", bundle.checker), ("benchmark", bundle.benchmark))}
    return plain(
        {
            **{name: value for name, value in dataclasses.asdict(here).items() if name != "device"},
            "vibeserve": vibeserve.__version__,
            "interpreter": os.path.realpath(sys.prefix),
            "model": model_dir.resolve().name,
            **{f"bundle.{name}": value for name, value in parts.items()},
            "bundle.reference": digest(bundle.reference, skip=("model", "draft_model")),
            "metric": f"{bundle.metric.name}:{bundle.metric.direction}",
            "sandbox": choose().name,
        }
    )


def digest(folder: Path, skip: tuple[str, ...] = ()) -> str:
    """A short digest of a small directory's files."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and parts[0] not in skip and "__pycache__" not in parts:
            found.update("/".join(parts).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]
