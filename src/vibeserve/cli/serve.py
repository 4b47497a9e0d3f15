"""`vibeserve serve`: start a bundle's reference, or a run's best server, and keep it until Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from vibeserve.base.errors import InputError
from vibeserve.base.units import duration
from vibeserve.cli.output import JsonFlag, note, print_json


def serve(
    what: Annotated[str, typer.Argument(metavar="BUNDLE|RUN[:CANDIDATE]", help="A bundle, or a run's best server.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    model_dir: Annotated[Path | None, typer.Option(help="The model's directory; without it, the bundle's.")] = None,
    runs_dir: Annotated[Path | None, typer.Option(help="Where the runs lie.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Let the model's own code run.")] = False,
    json: JsonFlag = False,
) -> int:
    """Start a bundle's reference, or a run's best server. Ctrl-C ends it. Exit 1: the server died."""
    from vibeserve.measure import StartError, launch

    with _ended_by_signals(), tempfile.TemporaryDirectory(prefix="vibeserve-serve-") as folder:
        directory, weights = _find(what, Path(folder), model_dir, runs_dir, trust_remote_code)
        note(f"starting {directory.name} …")
        try:
            started = launch(directory, weights, log_dir=Path(folder), host=host, port=port or None)
        except StartError as failure:
            if failure.tail:  # the log itself goes with the server
                note(failure.tail)
                failure.hint = "the last lines of its log are above"
            raise
        with started as server:
            try:  # from before it is announced: whoever reads that may end it at once
                if json:
                    print_json({"url": server.url, "pid": server.pid, "ready_s": server.ready_s, "log": server.log})
                else:
                    print(f"{server.url} is ready after {duration(server.ready_s, 3)}", flush=True)
                    note(f"its log is {server.log}; Ctrl-C ends it")
                while server.process.wait(1.0) is None:
                    pass
            except KeyboardInterrupt:
                note("\nended")
                return 0
            server.require_alive()
    return 1


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM, and SIGINT even where a shell has us ignore it, end the server in good order."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _find(
    what: str, folder: Path, model_dir: Path | None, runs_dir: Path | None, trust_remote_code: bool
) -> tuple[Path, Path]:
    """(candidate directory, model directory) of what was named."""
    from vibeserve.measure import reference_candidate
    from vibeserve.targets import materialize, read_bundle

    try:
        bundle: Any = read_bundle(what)
    except InputError as not_a_bundle:
        return _of_run(what, folder, model_dir, runs_dir, not_a_bundle)
    return reference_candidate(bundle, trust_remote_code=trust_remote_code), model_dir or materialize(bundle)


def _of_run(
    what: str, folder: Path, model_dir: Path | None, runs_dir: Path | None, not_a_bundle: InputError
) -> tuple[Path, Path]:
    from vibeserve.search import open_candidate

    if Path(what.partition(":")[0]).is_dir() and (Path(what) / "bundle.toml").exists():
        raise not_a_bundle
    return open_candidate(what, runs_dir=runs_dir, destination=folder / "candidate", model_dir=model_dir)
