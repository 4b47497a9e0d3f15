"""`vibeserve check` and `vibeserve bench`: a bundle's own gates against servers that run already."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from vibeserve.base.errors import InputError
from vibeserve.base.units import duration
from vibeserve.cli.output import MOST_SEED, JsonFlag, finite, note, print_json, print_table

BundleArgument = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="A bundle's directory, or a packaged one's name.")
]
ModelDir = Annotated[Path | None, typer.Option(help="The model's directory; without it the bundle's is materialised.")]
Output = Annotated[Path | None, typer.Option(help="Keep what the script writes here (JSON, and its prints beside it).")]
Passed = Annotated[list[str] | None, typer.Argument(metavar="[-- ARGS…]", help="Handed on to the bundle's script.")]


def check(
    bundle: BundleArgument,
    url: Annotated[str, typer.Option(help="The running server, as http://HOST:PORT.")],
    passed: Passed = None,
    model_dir: ModelDir = None,
    seed: Annotated[int | None, typer.Option(min=0, max=MOST_SEED, help="Seed of what the checker draws.")] = None,
    output: Output = None,
    json: JsonFlag = False,
) -> int:
    """Run a bundle's accuracy checker against a running server. Exit 0: it passes; 1: it does not."""
    from vibeserve.measure import run_checker
    from vibeserve.targets import read_bundle

    target = read_bundle(bundle)
    _reached(url, target.health)
    weights = _model(target, model_dir)
    with tempfile.TemporaryDirectory(prefix="vibeserve-check-") as folder:
        where = output or Path(folder) / "check.json"
        note(f"running {target.checker_script.name} against {url} (at most {duration(target.checker_timeout_s, 3)}) …")
        result = run_checker(target, url, weights, output=where, seed=seed, extra_args=passed or ())
    if not result.ran:
        raise InputError(f"not run: {result.detail}", hint="see what the checker printed: --output FILE keeps it")
    if json:
        print_json(result.document)
    else:
        _print_cases(result.document)
        print(("passed: " if result.ok else "failed: ") + result.detail)
    return 0 if result.ok else 1


def bench(
    bundle: BundleArgument,
    url: Annotated[str, typer.Option(help="The running server, as http://HOST:PORT.")],
    passed: Passed = None,
    against: Annotated[str | None, typer.Option(help="A second server: how many times better is --url?")] = None,
    pairs: Annotated[
        int | None,
        typer.Option(help="With --against: pairs of windows, at least 5; without it, 8 to 20, as the noise asks."),
    ] = None,
    window: Annotated[float | None, typer.Option(min=0.1, callback=finite, help="Seconds of load in a window.")] = None,
    seed: Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the prompts and of the order.")] = 0,
    timeout: Annotated[
        float | None, typer.Option(min=1, callback=finite, help="Seconds for all of it; without it, the bundle's.")
    ] = None,
    model_dir: ModelDir = None,
    output: Output = None,
    json: JsonFlag = False,
) -> int:
    """Run a bundle's benchmark against one running server, or two in pairs.

    What follows -- goes to the benchmark: -- --sweep concurrency=1,4,16 prompt-len=64,512 makes a curve, of
    which --output has each level as soon as it ends.
    """
    from vibeserve.measure.bench_document import bench_document
    from vibeserve.measure.gates import run_benchmark
    from vibeserve.targets import read_bundle

    target = read_bundle(bundle)
    if pairs is not None and against is None:
        raise InputError("--pairs needs a second server", hint="--against http://HOST:PORT")
    server = _reached(url, target.health)
    weights = _model(target, model_dir)
    extra = passed or []
    with tempfile.TemporaryDirectory(prefix="vibeserve-bench-") as folder:
        where = output or Path(folder) / "bench.json"
        if against is None:
            limit_s = target.benchmark_timeout_s if timeout is None else timeout
            note(f"running {target.benchmark_script.name} against {url} (at most {duration(limit_s, 3)}) …")
            result = run_benchmark(
                target,
                url,
                weights,
                seed=seed,
                window_s=window,
                extra_args=extra,
                output=where,
                timeout_s=limit_s,
            )
            document = bench_document(target, result)
        else:
            document = _against(target, weights, server, against, pairs, window, seed, extra, Path(folder))
            if output is not None:
                output.write_text(_text(document), encoding="utf-8")
    if json:
        print_json(document)
    else:
        _print_figures(document)
    return 0 if document["value"] is not None else 1


def _against(
    target: Any,
    weights: Path,
    server: Any,
    against: str,
    pairs: int | None,
    window: float | None,
    seed: int,
    extra: list[str],
    folder: Path,
) -> dict[str, Any]:
    from vibeserve.measure import DEFAULT_PAIRS, DEFAULT_WINDOW_S, MOST_PAIRS, Window, compare
    from vibeserve.measure.bench_document import bench_document

    other = _reached(against, target.health)
    count = str(pairs or f"{DEFAULT_PAIRS} to {MOST_PAIRS}")

    def told(one: Window) -> None:
        name = server.url if one.side == "b" else against
        noisy = f" (disturbed: {'; '.join(one.result.noisy)})" if one.result.noisy else ""
        note(f"pair {one.pair + 1} of {count}: {name}: {one.result.value:.5g} {target.metric.unit}{noisy}")

    comparison = compare(
        target,
        weights,
        other,
        server,
        pairs=pairs or DEFAULT_PAIRS,
        most=None if pairs else MOST_PAIRS,
        window_s=window or DEFAULT_WINDOW_S,
        seed=seed,
        output_dir=folder,
        extra_args=extra,
        on_window=told,
    )
    last = next(one for one in reversed(comparison.windows) if one.side == "b")
    return bench_document(target, last.result, comparison)


def _reached(url: str, health: str) -> Any:
    """The server at `url`. Raises InputError where none answers: nothing has been checked then, so nothing has failed."""
    from vibeserve.measure import ExternalServer, RunError

    server = ExternalServer(url, health)
    try:
        server.require_alive()
    except RunError as error:
        raise InputError(error.message, hint=error.hint or "wait until it is ready") from None
    return server


def _model(target: Any, model_dir: Path | None) -> Path:
    from vibeserve.targets import materialize

    if model_dir is None:
        return Path(materialize(target))
    if not model_dir.is_dir():
        raise InputError(f"there is no model directory {model_dir}", hint="leave --model-dir out to materialise it")
    return model_dir


def _text(document: dict[str, Any]) -> str:
    from vibeserve.base.jsonio import dumps

    return dumps(document) + "\n"


def _print_cases(document: dict[str, Any]) -> None:
    cases = document.get("cases")
    rows = [
        (case.get("name", "?"), "ok" if case.get("ok") else "FAILED", str(case.get("detail", ""))[:120])
        for case in (cases if isinstance(cases, list) else [])
        if isinstance(case, dict)
    ]
    if rows:
        print_table(["case", "", "detail"], rows)


def _print_figures(document: dict[str, Any]) -> None:
    if document["value"] is None:
        note(f"no value: {document['value_reason']}")
    else:
        print(f"{document['metric']}: {document['value']:.5g} {document['unit']}")
    rows = []
    for name in ("ttft_s", "tpot_s", "itl_s", "latency_s"):
        figures = document[name]
        if isinstance(figures, dict):
            rows.append([name, *(_time(figures.get(key)) for key in ("p50", "p95", "p99"))])
    if rows:
        print_table(["", "p50", "p95", "p99"], rows)
    for name in ("requests", "failed", "duration_s", "request_throughput", "output_tokens_per_s", "goodput"):
        if document[name] is not None:
            print(f"{name}: {document[name]}")
    if (better := document["improvement"]) is not None:
        low, high = better["ci95"]
        print(f"improvement: {better['ratio']:.4g} times (95 %: {low:.4g} to {high:.4g}, {better['pairs']} pairs)")
        for line in document["notes"]:
            note(line)


def _time(value: Any) -> str:
    return duration(value) if isinstance(value, int | float) else "-"
