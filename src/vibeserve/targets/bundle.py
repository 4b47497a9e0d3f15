"""Read a target: a bundle directory or the name of a packaged one, or the seed's three unrelated directories."""

from __future__ import annotations

import re
from pathlib import Path

from vibeserve.base.errors import InputError
from vibeserve.base.paths import expanded, packaged
from vibeserve.targets.bundle_toml import BundleToml, read_toml
from vibeserve.targets.meta import read_meta
from vibeserve.targets.objective import lines_to_add, metric_from_objective, parse_metric, read_objective
from vibeserve.targets.types import Bundle, Metric, ModelMeta, Slo

SCRIPTS = {"reference": "reference.py", "accuracy_checker": "checker.py", "benchmark": "benchmark.py"}


def packaged_bundles() -> dict[str, Path]:
    """The bundles that come with VibeServe: name → directory."""
    folder = packaged("examples") / "model-serving"
    found = folder.iterdir() if folder.is_dir() else ()
    return {path.name: path for path in sorted(found) if (path / "reference").is_dir()}


def find_bundle(path_or_name: str | Path) -> Path:
    """The bundle's directory: a path, or the name of a packaged bundle. Raises InputError for neither."""
    path = expanded(path_or_name)
    if path.is_dir():
        return path
    names = packaged_bundles()
    # `examples/model-serving/NAME` is how the documents write it; it also works away from the checkout.
    name = path.name if path.parent.as_posix() in (".", "examples/model-serving") else str(path_or_name)
    if name in names:
        return names[name]
    if path.exists():
        raise InputError(f"{path}: not a directory", hint="a bundle is a directory with OBJECTIVE.md and reference/")
    raise InputError(
        f"{path_or_name}: no such bundle", hint=f"a directory, or one of: {', '.join(names) or 'none packaged'}"
    )


def read_bundle(path_or_name: str | Path, *, metric: str | None = None) -> Bundle:
    """Read a bundle; `metric` (`NAME:higher|lower`) overrules what the bundle says.

    Raises InputError (exit 2) that names file, key and line where something is missing, unknown or contradictory.
    """
    path = find_bundle(path_or_name).resolve()
    for folder, script in SCRIPTS.items():
        if not (path / folder / script).is_file():
            raise InputError(
                f"{path}: {folder}/{script} is missing", hint=f"'vibeserve validate {path}' lists what a bundle holds"
            )
    return _read(path, [path / folder for folder in SCRIPTS], None, metric)


def read_three(
    ref: str | Path,
    acc_checker: str | Path,
    bench: str | Path,
    objective: str | Path | None = None,
    metric: str | None = None,
) -> Bundle:
    """Read a bundle to the letter of the seed: three directories that may lie anywhere.

    Metric and direction come from `metric` (`NAME:higher|lower`), else a bundle.toml above the reference, else
    `objective`, else the OBJECTIVE.md above the reference. Raises InputError (exit 2) with the lines to add where none
    of them gives both.
    """
    folders = []
    for option, value, script in (
        ("--ref", ref, "reference.py"),
        ("--acc-checker", acc_checker, "checker.py"),
        ("--bench", bench, "benchmark.py"),
    ):
        folder = expanded(value)
        if not folder.is_dir():
            raise InputError(f"{option} {folder}: no such directory", hint=f"the directory that holds {script}")
        if not (folder / script).is_file():
            raise InputError(f"{option} {folder}: {script} is missing in it", hint=f"the directory that holds {script}")
        folders.append(folder.resolve())
    given = expanded(objective) if objective is not None else None
    if given is not None and not given.is_file():
        raise InputError(f"--objective {given}: no such file", hint="a Markdown file such as OBJECTIVE.md")
    above = folders[0].parent
    whole = above if [folder.parent for folder in folders] == [above] * 3 else None
    return _read(whole, folders, given.resolve() if given else None, metric)


def _read(path: Path | None, folders: list[Path], objective: Path | None, metric: str | None) -> Bundle:
    reference, checker, benchmark = folders
    toml_path = reference.parent / "bundle.toml"
    toml = read_toml(toml_path) if toml_path.is_file() else BundleToml()
    if objective is None and (above := reference.parent / "OBJECTIVE.md").is_file():
        objective = above
    chosen, source = _metric(toml, toml_path, objective, metric)
    meta = read_meta(reference) if (reference / "meta.json").is_file() else _local_meta(reference)
    folder = path or reference.parent
    return Bundle(
        path=path,
        slug=re.sub(r"[^a-z0-9]+", "-", folder.name.lower()).strip("-") or "bundle",
        reference=reference,
        checker=checker,
        benchmark=benchmark,
        objective=objective,
        metric=chosen,
        meta=meta,
        metric_source=source,
        modality=toml.serving.modality,
        api=toml.serving.api,
        health=toml.serving.health,
        hardware=toml.target.hardware,
        dtypes=tuple(toml.accuracy.dtypes),
        near_tie_margin=toml.accuracy.near_tie_margin,
        min_top1=toml.accuracy.min_top1,
        slo=Slo(toml.slo.ttft_s, toml.slo.tpot_s) if toml.slo else None,
        checker_args=tuple(toml.checker.args),
        checker_timeout_s=toml.checker.timeout_s,
        benchmark_args=tuple(toml.benchmark.args),
        benchmark_timeout_s=toml.benchmark.timeout_s,
    )


def _metric(toml: BundleToml, toml_path: Path, objective: Path | None, given: str | None) -> tuple[Metric, str]:
    if given is not None:
        return parse_metric(given), "--metric"
    if toml.metric is not None:
        return Metric(toml.metric.name, toml.metric.unit, toml.metric.direction), str(toml_path)
    if objective is not None:
        if (found := metric_from_objective(read_objective(objective))) is not None:
            return found, str(objective)
        raise InputError(
            f"{objective}: names no single metric with its direction", hint=lines_to_add(), code="no-metric"
        )
    raise InputError(
        "no metric: neither --metric, nor bundle.toml, nor an OBJECTIVE.md says what to optimise",
        hint=lines_to_add(),
        code="no-metric",
    )


def _local_meta(reference: Path) -> ModelMeta:
    # Without a meta.json the weights must already lie where the seed puts them; materialize says so where they don't.
    return ModelMeta(model_id=reference.parent.name)
