"""Kernels: `nki.jit`, `nki.simulate`, launch grids, and the run itself."""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import itertools
import math
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vibeserve.nki import capacity, explaining, races, targets
from vibeserve.nki.arguments import Inputs
from vibeserve.nki.context import DEFAULT_BUDGET, Core, Finding, Session, core_or_none, running
from vibeserve.nki.cores import Scheduler
from vibeserve.nki.errors import KernelError, Place, place_of_traceback
from vibeserve.nki.observe import Observer, TraceObserver
from vibeserve.nki.watchdog import StalledError, Watchdog

_OPTIONS: dict[str, Any] = {"strict": False, "trace": False, "observers": (), "target": None, "inspect": None}


class _LikeFunction:
    """What stands for a function: `inspect`, `pydoc`, `typing` and debuggers take it for that function."""

    @property
    def __class__(self) -> type:
        """The type of functions where a function is behind it, so that `inspect` finds its file and source lines."""
        return types.FunctionType if "__code__" in vars(self) else type(self)

    @__class__.setter
    def __class__(self, value: type) -> None:
        raise TypeError(f"the class of {self!r} stays as it is")


class Kernel(_LikeFunction):
    """A function run as a kernel. Called inside another kernel it is inlined; `kernel[lnc]` sets the launch grid."""

    def __init__(self, func: Callable[..., Any], grid: tuple[int, ...] | None = None, schedule: Any = ()):
        _dress(self, func)
        self.func = func
        self.grid = grid
        self.schedule = schedule

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        core = core_or_none()
        if core is not None:
            if self.grid not in (None, core.session.grid):
                core.session.report(
                    "launch-grid", f"the grid {list(self.grid or ())} of a kernel that is called from another has no effect",
                    detail=f"this launch has {list(core.session.grid)}", code="V5-LNCGRID", fix="no grid on an inner call", soft=True,
                )  # fmt: skip
            return self.func(*args, **kwargs)
        return launch(self, args, kwargs)

    def __getitem__(self, grid: Any) -> Kernel:
        sizes = grid if isinstance(grid, tuple | list) else (grid,)
        for size in sizes:
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
                raise KernelError(
                    f"launch grid {grid!r}", code="NCC_EARG001", rule="positive ints", fix="kernel[2](...)"
                )
        return Kernel(self.func, tuple(int(size) for size in sizes), self.schedule)

    def with_schedule(self, edges: Any) -> Kernel:
        """The kernel with added order edges (later, earlier) between named instructions; values do not change."""
        return Kernel(self.func, self.grid, tuple(edges))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        alone = instance is None or isinstance(self.func, staticmethod)
        return self if alone else types.MethodType(self, instance)

    def __repr__(self) -> str:
        grid = "" if self.grid is None else f"[{', '.join(map(str, self.grid))}]"
        return f"<nki kernel {name_of(self.func)}{grid}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Kernel):
            return NotImplemented
        return (self.func, self.grid, self.schedule) == (other.func, other.grid, other.schedule)

    def __hash__(self) -> int:
        return hash((id(self.func), self.grid))

    def __copy__(self) -> Kernel:
        return self

    def __deepcopy__(self, memo: Any) -> Kernel:
        return self

    def __reduce__(self) -> Any:
        module, name = getattr(self.func, "__module__", None), getattr(self.func, "__qualname__", "")
        if module is not None and getattr(_find(module, name), "func", None) is self.func:
            return (_named, (module, name, self.grid, self.schedule))  # the function's name leads to its kernel
        if isinstance(self.func, functools.partial):  # of a function that only its kernel's name may lead to
            whole = Kernel(self.func.func, self.grid, self.schedule)
            return (_filled, (whole, self.func.args, self.func.keywords))
        return (Kernel, (self.func, self.grid, self.schedule))


# What readers of a function look at.
_READ = ("__annotations__", "__builtins__", "__closure__", "__code__", "__defaults__", "__globals__", "__kwdefaults__")


def _dress(target: Any, func: Callable[..., Any]) -> None:
    """Give `target` the name, text and signature of `func`, also where that is a partial or an object that is called."""
    functools.update_wrapper(target, func)
    inner = _without_partial(func)
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        source = inner if hasattr(inner, "__name__") or name in ("__module__", "__doc__") else type(inner)
        setattr(target, name, getattr(source, name, None))
    for name in _READ:
        if hasattr(inner, name):
            setattr(target, name, getattr(inner, name))
    if inner is not func:
        target.__wrapped__ = inner  # its source is that function's, its signature the partial's
        target.__signature__ = inspect.signature(func)


def name_of(func: Any) -> str:
    """The name of a function, a partial of one, or an object that is called."""
    func = _without_partial(func)
    return getattr(func, "__name__", None) or type(func).__name__


def _without_partial(func: Any) -> Any:
    while isinstance(func, functools.partial):
        func = func.func
    return func


def _find(module: str, qualified: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found


def _named(module: str, qualified: str, grid: tuple[int, ...] | None, schedule: Any) -> Kernel:
    """A kernel out of its place in a module, for pickles."""
    importlib.import_module(module)
    found: Kernel = _find(module, qualified)
    return found if (found.grid, found.schedule) == (grid, schedule) else Kernel(found.func, grid, schedule)


def _filled(kernel: Kernel, args: tuple[Any, ...], keywords: dict[str, Any]) -> Kernel:
    """A kernel of a partial, out of the kernel of its function, for pickles."""
    return Kernel(functools.partial(kernel.func, *args, **keywords), kernel.grid, kernel.schedule)


# What `nki.jit` has taken in one version or another; none of it changes a value.
_JIT_OPTIONS = ("mode", "debug_kernel", "show_compiler_tb", "experimental_flags", "enable_out_of_bound_check")


def jit(fn: Any = None, **kwargs: Any) -> Any:
    """Make a kernel of a function: `@nki.jit` or `@nki.jit()`.

    The compiler's options (`mode`, `debug_kernel`, `show_compiler_tb`, `experimental_flags`,
    `enable_out_of_bound_check`) are taken and have no effect here; any other keyword is a KernelError.
    """
    if "platform_target" in kwargs:
        raise KernelError(
            "nki.jit(platform_target=...)", code="B2-PLATFORM", rule="removed in 0.3.0",
            fix=f"set {targets.TARGET_VARIABLE}={kwargs['platform_target']}",
        )  # fmt: skip
    for name in kwargs:
        if name not in _JIT_OPTIONS:
            near = difflib.get_close_matches(name, _JIT_OPTIONS, 1)
            raise KernelError(
                f"nki.jit({name}=...)", code="B2-UNKNOWN-KW", rule=f"the options are {', '.join(_JIT_OPTIONS)}",
                fix=f"{near[0]}=" if near else f"leave {name} out",
            )  # fmt: skip
    if fn is None:
        return functools.partial(jit, **kwargs)
    if isinstance(fn, Kernel):
        return fn
    if not callable(fn):
        raise KernelError(f"nki.jit({fn!r})", code="NKI-KERNEL", rule="a function", fix="@nki.jit above a function")
    return Kernel(fn)


class Simulation(_LikeFunction):
    """What `simulate` returns: call it with arrays. `findings` are those of the last call."""

    def __init__(self, kernel: Kernel, options: dict[str, Any]):
        _dress(self, kernel.func)
        self.kernel = kernel
        self.options = options
        self.findings: list[Finding] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return launch(self.kernel, args, kwargs, findings=self.findings, **self.options)

    def __getitem__(self, grid: Any) -> Simulation:
        return Simulation(self.kernel[grid], self.options)

    def __repr__(self) -> str:
        return f"<simulation of {self.kernel!r}>"

    def __reduce__(self) -> Any:
        return (Simulation, (self.kernel, self.options))


def as_kernel(value: Any) -> Kernel:
    """A kernel or a plain function as a kernel."""
    if isinstance(value, Kernel):
        return value
    if isinstance(value, Simulation):
        return value.kernel
    if not callable(value):
        raise KernelError(f"{value!r} is no kernel", code="NKI-KERNEL", rule="a function or a nki.jit kernel")
    return Kernel(value)


def simulate(
    kernel: Any,
    *,
    target: str | None = None,
    lnc: int | None = None,
    strict: bool = False,
    trace: bool = False,
    observers: Sequence[Observer] = (),
    budget: int | None = None,
    shape_only: bool = False,
) -> Simulation:
    """A callable that runs `kernel` on NumPy or torch arrays and returns the same kind.

    `target` (trn1, trn2, trn3) and `lnc` (1, 2) override the environment; `strict` makes reports errors; `trace` prints
    one line an instruction; `observers` watch (see `observe`); `budget` limits the instructions of each core;
    `shape_only` skips the arithmetic (results are meaningless).
    """
    made = as_kernel(kernel)
    if lnc is not None:
        made = made[lnc]
    options = {
        "target": target, "strict": strict, "trace": trace, "observers": tuple(observers), "budget": budget,
        "shape_only": shape_only,
    }  # fmt: skip
    return Simulation(made, options)


def simulate_ranks(kernel: Any, *, ranks: int, lnc: int = 1, **options: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """A callable that takes each rank's arguments (a sequence of tuples) and returns each rank's results.

    All ranks run in this process and meet at collectives; `lnc` cores each.
    """
    made = as_kernel(kernel)
    if lnc != 1:
        made = made[lnc]

    def call(per_rank: Sequence[Any]) -> list[Any]:
        if len(per_rank) != ranks:
            raise KernelError(
                f"arguments for {len(per_rank)} ranks, ranks={ranks}",
                code="NKI-RANKS",
                rule="a tuple of arguments for each rank",
            )
        rows = [tuple(row) if isinstance(row, tuple | list) else (row,) for row in per_rank]
        return _launch_ranks(made, rows, [{} for _ in rows], **options)

    return call


def launch(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Any:
    """Run a kernel once and return its result (see `simulate` for the options)."""
    if not args and not kwargs and not isinstance(kernel.func, functools.partial):
        raise KernelError(
            f"kernel {kernel!r} called with no arguments", code="NKI-ARGUMENTS", rule="at least one argument"
        )
    return _launch_ranks(kernel, [args], [kwargs], **options)[0]


def _grid(kernel: Kernel, target: targets.Target) -> tuple[int, ...]:
    grid = kernel.grid
    if grid is None:
        lnc = targets.default_lnc()
        grid = () if lnc == 1 else (lnc,)
    cores = math.prod(grid)
    if cores not in target.lnc:
        raise KernelError(
            f"{cores} cores (LNC {cores}) on {target.name}", code="NCC_EARG001", rule=f"LNC {' or '.join(map(str, target.lnc))} on {target.name}",
            fix="kernel(...) or kernel[1](...)" if target.number < 3 else "kernel[2](...)",
        )  # fmt: skip
    return grid


def _launch_ranks(
    kernel: Kernel,
    per_rank: list[tuple[Any, ...]],
    keywords: list[dict[str, Any]],
    *,
    target: str | None = None,
    strict: bool | None = None,
    trace: bool | None = None,
    observers: tuple[Observer, ...] = (),
    budget: int | None = None,
    shape_only: bool = False,
    findings: list[Finding] | None = None,
) -> list[Any]:
    chosen = targets.target(target or _OPTIONS["target"])
    grid = _grid(kernel, chosen)
    watchers = (*_OPTIONS["observers"], *observers)
    if _OPTIONS["inspect"] is not None:
        watchers = (*watchers, *_OPTIONS["inspect"](kernel))
    if trace or _OPTIONS["trace"]:
        watchers = (*watchers, TraceObserver())
    session = Session(
        target=chosen,
        grid=grid,
        strict=_OPTIONS["strict"] if strict is None else (strict or _OPTIONS["strict"]),
        precise=os.environ.get("NKI_PRECISE_FP", "1") != "0",
        budget=budget or int(os.environ.get("NKI_BUDGET") or DEFAULT_BUDGET),
        observers=watchers,
        ranks=len(per_rank),
        cores_per_rank=max(1, math.prod(grid)),
        shape_only=shape_only,
        allowed=targets.allowed_rules(),
    )
    asked = targets.asked_lnc()
    if kernel.grid is not None and asked not in (None, session.cores_per_rank):
        session.report(
            "launch-grid", f"a launch grid of {session.cores_per_rank} where LNC {asked} is set", code="V5-LNCGRID",
            fix=f"kernel[{asked}](...), or no grid", soft=True,
        )  # fmt: skip
    inputs = [Inputs(session) for _ in per_rank]
    for observer in watchers:
        observer.started(session)
    cores: list[Core] = []
    bodies: list[Callable[[], Any]] = []
    for rank, (args, kwargs) in enumerate(zip(per_rank, keywords, strict=True)):
        bound = _bind(kernel, args, kwargs)
        converted = {name: _converted(inputs[rank], bound, name, value) for name, value in bound.arguments.items()}
        bound.arguments.update(converted)
        for coordinates in itertools.product(*(range(size) for size in grid)):
            cores.append(Core(session, len(cores), rank, coordinates))
            bodies.append(functools.partial(_guarded, kernel, bound, cores[-1]))
    session.shared["cores"] = cores
    results = _run(cores, bodies)
    races.finish(session, cores)
    races.compare_loops(session, cores)
    if findings is not None:
        findings[:] = session.findings
    step = session.cores_per_rank
    outputs = [inputs[rank].result(results[rank * step]) for rank in range(len(per_rank))]
    for core in cores:
        capacity.check(core)
    for converted_inputs in inputs:
        converted_inputs.write_back()
    if findings is not None:
        findings[:] = session.findings
    for observer in watchers:
        observer.finished(session, cores)
    return outputs


def _run(cores: list[Core], bodies: list[Callable[[], Any]]) -> list[Any]:
    if len(cores) == 1:
        with Watchdog(cores):
            return [running(cores[0], bodies[0])]
    scheduler = Scheduler(len(cores))
    for core in cores:
        core.scheduler = scheduler
    with Watchdog(cores):
        return scheduler.run(cores, bodies)


def _converted(inputs: Inputs, bound: inspect.BoundArguments, name: str, value: Any) -> Any:
    kind = bound.signature.parameters[name].kind
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return tuple(inputs.convert(item, f"{name}[{i}]") for i, item in enumerate(value))
    if kind is inspect.Parameter.VAR_KEYWORD:
        return {key: inputs.convert(item, key) for key, item in value.items()}
    return inputs.convert(value, name)


def _bind(kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
    """The arguments by parameter name, those of a partial among them, so that its arrays become tensors as well."""
    func: Any = kernel.func
    while isinstance(func, functools.partial):
        args, kwargs, func = (*func.args, *args), {**func.keywords, **kwargs}, func.func
    signature = inspect.signature(func)
    if any(p.kind is inspect.Parameter.KEYWORD_ONLY for p in signature.parameters.values()):
        raise KernelError(
            f"keyword-only parameters in the signature of {kernel!r}", code="B2-KWONLY", rule="no '*' in a kernel signature",
            fix="plain defaults at the end", place=_home(kernel),
        )  # fmt: skip
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise KernelError(
            f"{name_of(kernel.func)}{signature}: {error}", code="NKI-ARGUMENTS", rule="the arguments fit the kernel's signature",
            place=_home(kernel),
        ) from None  # fmt: skip
    bound.apply_defaults()
    return bound


def _home(kernel: Kernel) -> Place:
    code = getattr(inspect.unwrap(_without_partial(kernel.func)), "__code__", None)
    return Place(code.co_filename, code.co_firstlineno, code.co_name) if code is not None else Place("<unknown>", 0)


def _guarded(kernel: Kernel, bound: inspect.BoundArguments, core: Core) -> Any:
    """Run the kernel's body; errors of Python that a rule explains become KernelErrors."""
    try:
        with np.errstate(all="ignore"):
            return _without_partial(kernel.func)(*bound.args, **bound.kwargs)
    except StalledError as error:
        error.stands_at(place_of_traceback(error.__traceback__))
        raise
    except KernelError:
        raise
    except RecursionError as error:
        raise KernelError(
            "recursion",
            code="NKI-RECURSION",
            rule="calls are inlined, so a kernel cannot recurse",
            place=place_of_traceback(error.__traceback__),
        ) from None
    except Exception as error:
        explained = explaining.explain(error)
        if explained is None:
            raise
        raise explained from error
    finally:
        _close_tracking(core)


def _close_tracking(core: Core) -> None:
    core.accumulators.clear()
