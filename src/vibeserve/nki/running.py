"""Running kernel files: a script as it stands, or one kernel on made inputs."""

from __future__ import annotations

import importlib.util
import io
import math
import os
import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vibeserve.base.errors import InputError, MissingError, VibeServeError
from vibeserve.base.files import read_toml
from vibeserve.nki import kernel as kernels
from vibeserve.nki.context import Core, Session
from vibeserve.nki.dtypes import DType, resolve
from vibeserve.nki.errors import KernelError, NotSimulatedError, SimulatorFaultError, place_of_traceback
from vibeserve.nki.observe import Observer


@dataclass
class Launch:
    """One launch of a kernel, for reports."""

    target: str
    lnc: int
    instructions: int = 0
    opcodes: dict[str, int] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)


class LaunchObserver(Observer):
    """Collects what the launches of a run did."""

    counts_only = True

    def __init__(self) -> None:
        self.launches: list[Launch] = []

    def started(self, session: Session) -> None:
        self.launches.append(Launch(session.target.name, session.cores_per_rank))

    def instruction(self, record: Any) -> None:
        launch = self.launches[-1]
        launch.instructions += 1
        launch.opcodes[record.opcode] = launch.opcodes.get(record.opcode, 0) + 1

    def counted(self, opcodes: dict[str, int]) -> None:
        launch = self.launches[-1]
        for opcode, count in opcodes.items():
            launch.opcodes[opcode] = launch.opcodes.get(opcode, 0) + count
            launch.instructions += count

    def finished(self, session: Session, cores: list[Core]) -> None:
        self.launches[-1].findings = [
            {"kind": f.kind, "message": f.message, "file": f.place.file, "line": f.place.line, "detail": f.detail}
            for f in session.findings
        ]


@contextmanager
def options(**changes: Any) -> Iterator[None]:
    """Defaults of every launch inside: target, strict, trace, observers."""
    before = dict(kernels._OPTIONS)
    kernels._OPTIONS.update({key: value for key, value in changes.items() if value is not None})
    try:
        yield
    finally:
        kernels._OPTIONS.clear()
        kernels._OPTIONS.update(before)


def run_script(script: Path, arguments: Sequence[str], *, to_stderr: bool = False, **chosen: Any) -> int:
    """Run a Python script as `python script ...` would, its kernels on the simulator; returns its exit code.

    An exception prints the script's traceback and gives 1, SystemExit its own code. NotSimulatedError passes through.
    """
    from vibeserve.nki.shim.finder import install
    from vibeserve.nki.timing.inspect import inspectors

    if not script.is_file():
        raise InputError(f"no such script: {script}", hint="vibeserve nki run SCRIPT [ARGS...]")
    install(force=True)
    argv, path, environment = sys.argv, list(sys.path), dict(os.environ)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    stream = sys.stderr if to_stderr else sys.stdout
    try:
        with options(inspect=inspectors, **chosen), redirect_stdout(stream):
            runpy.run_path(str(script), run_name="__main__")
        return 0
    except NotSimulatedError:
        raise
    except SystemExit as stop:
        if stop.code is None:
            return 0
        if isinstance(stop.code, int):
            return stop.code
        print(stop.code, file=sys.stderr)
        return 1
    except Exception as error:
        _print_traceback(error, script)
        return 1
    finally:
        sys.argv = argv
        sys.path[:] = path
        os.environ.clear()  # what a script sets ends with it
        os.environ.update(environment)


def _print_traceback(error: BaseException, script: Path) -> None:
    """The traceback from the script's own frames on, the simulator's and runpy's left out."""
    from vibeserve.nki.errors import is_ours

    frames = traceback.extract_tb(error.__traceback__)
    kept = [frame for frame in frames if not is_ours(frame.filename) and "runpy" not in frame.filename]
    text = io.StringIO()
    print("Traceback (most recent call last):", file=text)
    text.write("".join(traceback.format_list(kept)))
    text.write("".join(traceback.format_exception_only(error)))
    sys.stderr.write(text.getvalue())


def load_kernel(where: str) -> tuple[Callable[..., Any], Path]:
    """The kernel named FILE:KERNEL, and its file. InputError where there is none."""
    from vibeserve.nki.shim.finder import install

    name, _, function = where.rpartition(":")
    path = Path(name or where)
    if not path.is_file():
        raise InputError(f"no such kernel file: {path}", hint="vibeserve nki simulate FILE:KERNEL")
    install(force=True)
    module = load_file(path)
    found = {key: value for key, value in vars(module).items() if isinstance(value, kernels.Kernel)}
    kernel = getattr(module, function, None)
    if kernel is None or not callable(kernel):
        raise InputError(
            f"{path} has no kernel {function!r}", hint=f"one of: {', '.join(found) or 'none is decorated with nki.jit'}"
        )
    return kernel, path


def load_file(path: Path) -> Any:
    """Import a Python file under a name of its own; files beside it can be imported."""
    spec = importlib.util.spec_from_file_location(f"nki_file_{path.stem}_{abs(hash(str(path.resolve())))}", path)
    if spec is None or spec.loader is None:
        raise InputError(f"not a Python file: {path}", hint="vibeserve nki simulate FILE.py:KERNEL")
    module = importlib.util.module_from_spec(spec)
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except NotSimulatedError as error:
        raise MissingError(
            f"not simulated yet: {error.name} (at {error.place})", hint="see docs/nki-coverage.md"
        ) from error
    except SyntaxError as error:
        at = (
            f"{error.filename}:{error.lineno}: {error.text.strip()!r}"
            if error.text
            else f"{error.filename}:{error.lineno}"
        )
        raise InputError(f"{path} cannot be imported: {error.msg} (at {at})") from error
    except Exception as error:
        place = place_of_traceback(error.__traceback__)
        raise InputError(f"{path} cannot be imported: {error} (at {place})") from error
    finally:
        sys.path.remove(folder)
    return module


@contextmanager
def _kernels_own_errors() -> Iterator[None]:
    """What the kernel's own code raises (a missing import, a division by zero) as an error at its line."""
    try:
        yield
    except (KernelError, SimulatorFaultError, VibeServeError):
        raise
    except Exception as error:
        place = place_of_traceback(error.__traceback__)
        raise KernelError(
            f"{type(error).__name__}: {error}", code="NKI-PYTHON", rule="the kernel's own code raised it", place=place
        ) from error


@dataclass(frozen=True)
class Case:
    """What a kernel is run on: inputs by name, target, LNC."""

    inputs: dict[str, Any]
    target: str | None = None
    lnc: int | None = None


def default_case(path: Path, kernel: str) -> Case:
    """The case of `kernel` in the inputs.toml beside its file; an empty one where there is none."""
    file = path.parent / "inputs.toml"
    if not file.is_file():
        return Case({})
    try:
        table = read_toml(file).get(kernel, {})
    except ValueError as error:
        raise InputError(f"{file}: {error}", hint="mend the TOML there") from None
    inputs = {key: value for key, value in table.items() if key not in ("target", "lnc")}
    return Case(inputs, table.get("target"), table.get("lnc"))


def parse_input(text: str) -> tuple[str, Any]:
    """`x=2048x1024:bfloat16` as {"shape", "dtype"}, `n=3` as a number, anything else as text."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise InputError(f"--input {text}", hint="NAME=2048x1024:bfloat16 or NAME=3")
    shape, colon, dtype = value.partition(":")
    if colon:
        try:
            sizes = [int(size) for size in shape.split("x")]
        except ValueError:
            raise InputError(f"--input {text}: shape {shape!r}", hint="NAME=2048x1024:bfloat16") from None
        return name, {"shape": sizes, "dtype": dtype}
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, {"true": True, "false": False, "none": None}.get(value.lower(), value)


def make_input(name: str, value: Any, seed: int = 0) -> Any:
    """An input as inputs.toml or --input describes it: arrays of seeded normal numbers (small integers for ints)."""
    if not isinstance(value, dict):
        return tuple(value) if isinstance(value, list) else value
    dtype = resolve(value.get("dtype", "float32"), strict=False)
    if not isinstance(dtype, DType):
        raise InputError(
            f"input {name}: unknown dtype {value.get('dtype')!r}", hint="float32, bfloat16, float16, int32, ..."
        )
    shape = tuple(value.get("shape", ()))
    if not shape or any(not isinstance(size, int) or size < 1 for size in shape):
        raise InputError(f"input {name}: shape {list(shape)}", hint="positive sizes")
    from vibeserve.base.randomness import derive_seed

    _check_room(name, shape, dtype)
    generator = np.random.default_rng(derive_seed(seed, name))
    if dtype.is_int or dtype.kind == "packed":
        low, high = value.get("low", 0), value.get("high", 8)
        return generator.integers(low, high, shape).astype(dtype.dtype)
    return (generator.standard_normal(shape, np.float32) * np.float32(value.get("scale", 1.0))).astype(dtype.dtype)


def _check_room(name: str, shape: tuple[int, ...], dtype: DType) -> None:
    """Refuse an input that this machine's memory does not hold (it is drawn as float32)."""
    import psutil

    wanted, free = math.prod(shape) * (4 + dtype.itemsize), psutil.virtual_memory().available
    if wanted > free:
        raise InputError(
            f"input {name}: shape {list(shape)} takes {wanted:,} bytes, {free:,} are free", hint="a smaller shape"
        )


def simulate_case(
    where: str,
    given: Sequence[str],
    *,
    target: str | None = None,
    lnc: int | None = None,
    strict: bool = False,
    trace: bool = False,
    seed: int = 0,
    timing: bool = False,
    profile: str | None = None,
    **model: Any,
) -> dict[str, Any]:
    """Run FILE:KERNEL on the inputs given, those of inputs.toml filling in; returns the document of `nki simulate`.

    `timing` (or a `profile` name to save) adds the figures of the timing model, `model` being its options (mode,
    shape_only, override, data_path, sensitivity).
    """
    kernel, path = load_kernel(where)
    name = where.rpartition(":")[2]
    case = default_case(path, name)
    wanted = {**case.inputs, **dict(parse_input(text) for text in given)}
    arguments = {key: make_input(key, value, seed) for key, value in wanted.items()}
    if not arguments:
        raise InputError(
            f"no inputs for {name}", hint="--input x=128x512:float32, or an inputs.toml beside the kernel file"
        )
    chosen = target or case.target
    made = kernels.as_kernel(kernel)
    cores = lnc if lnc is not None else (None if made.grid is not None else case.lnc)
    watcher = LaunchObserver()
    watching: dict[str, Any] = {"strict": strict, "trace": trace, "observers": (watcher,)}
    document: dict[str, Any] = {}
    with _kernels_own_errors():
        if timing or profile:
            from vibeserve.nki.timing import simulate_timed

            document, result = simulate_timed(
                made, arguments, target=chosen, lnc=cores, profile=profile, **watching, **model
            )
        else:
            result = kernels.simulate(made, target=chosen, lnc=cores, **watching)(**arguments)
    outputs = [value for value in (result if isinstance(result, tuple | list) else (result,)) if value is not None]
    launch = watcher.launches[-1] if watcher.launches else Launch(chosen or "", cores or 1)
    return {
        "kernel": name,
        "target": launch.target,
        "lnc": launch.lnc,
        "outputs": [
            {"shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
            for value in outputs
            if hasattr(value, "shape")
        ],
        "instructions": launch.instructions,
        "opcodes": launch.opcodes,
        "findings": launch.findings,
        **document,
    }
