"""The roofline by hand: any operation's FLOPs, bytes, intensity and time bounds, with every step shown.

    from vibeserve.roofline import analyze
    fused = analyze("vjepa2-mlp", target="trn2", lnc=2).variant("fused")
    fused.bounds.intensity            # 4096/5 FLOPs a byte, exact
    for step in fused.steps: print(step.title, step.formula, step.text)

An operation is a TOML file (`load`) or the same structure in Python (`operation`); `from_torch` counts a module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import DiskFiles, write_text
from vibeserve.roofline.analysis import Analysis, VariantAnalysis, analyze, tool
from vibeserve.roofline.bounds import Bounds, Roof, roof
from vibeserve.roofline.counting import Count, Numbers, count
from vibeserve.roofline.crossings import Crossing
from vibeserve.roofline.expr import Expr
from vibeserve.roofline.loader import build, load, packaged_operations
from vibeserve.roofline.operation import Dim, Operation, Stage, Tensor, Traffic, Variant
from vibeserve.roofline.poly import Number
from vibeserve.roofline.steps import Step

if TYPE_CHECKING:
    from vibeserve.roofline.torch_module import ModuleCount


def operation(**parts: Any) -> Operation:
    """An operation from Python: the keys and values are those of the TOML file. Raises InputError.

    `operation(name="mm", dims={"M": 64, "K": 32, "N": 16}, tensors={"a": "M K", "b": "K N", "c": "M N"},
    stages=[{"contract": "a[M K], b[K N] -> c[M N]"}])`
    """
    return build(parts, source=str(parts.get("name", "operation")))


def parse_changes(texts: Sequence[str]) -> dict[str, Number]:
    """`["R=256"]` as sizes. Raises InputError."""
    found: dict[str, Number] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise InputError(f"cannot read --set {text!r}", hint="write --set R=256")
        expr = Expr.parse(value.strip(), f"--set {text}")
        if expr.names:
            raise InputError(f"--set {text}: {expr.names[0]!r} is no number", hint="write --set R=256")
        found[name.strip()] = expr.value({})
    return found


def parse_rate(text: str, option: str) -> float | str | None:
    """A rate as `--peak` and `--bandwidth` take it: a positive number, else a source's name. Raises InputError."""
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        return text
    if not 0 < value < float("inf"):
        raise InputError(f"{option} {text}: not a positive number", hint=f"write {option} 0.716e12")
    return value


def with_measured(analysis: Analysis, source: str, *, variant: str = "", data_path: Path | None = None) -> Analysis:
    """The analysis with measured figures laid beside it (see `measured.read`). Raises InputError, MissingError."""
    from vibeserve.roofline.measured import compare, read

    return replace(analysis, measured=compare(analysis, read(source, analysis, variant, data_path)))


def with_sweep(analysis: Analysis, text: str) -> Analysis:
    """The analysis with a sweep: `R=128:4096[:n]`. Raises InputError."""
    from vibeserve.roofline.sweep import parse_sweep, sweep

    return replace(analysis, sweep=sweep(analysis, *parse_sweep(text)))


def from_torch(module: Any, inputs: Any) -> ModuleCount:
    """Count a PyTorch module on example inputs (see `torch_module.from_torch`). Needs torch; raises MissingError without."""
    from vibeserve.roofline.torch_module import from_torch as count_module

    return count_module(module, inputs)


def html(analysis: Analysis) -> str:
    """The page as one HTML file."""
    from vibeserve.roofline import view

    return view.html(analysis)


def markdown(analysis: Analysis) -> str:
    """The page as Markdown."""
    from vibeserve.roofline import view

    return view.markdown(analysis)


def svg_file(analysis: Analysis) -> str:
    """The roofline plot as an SVG file."""
    from vibeserve.roofline.plot import roofline_chart

    return roofline_chart(analysis).standalone()


def show(analysis: Analysis) -> None:
    """Print the tables on the terminal."""
    from vibeserve.report import print_sections
    from vibeserve.roofline import view

    print(view.title(analysis))
    print(view.subtitle(analysis))
    print()
    print_sections(view.sections(analysis))


def closed_forms(analysis: Analysis) -> list[dict[str, Any]]:
    """Work, bytes, intensity, limits and crossings in closed form, by sympy."""
    from vibeserve.roofline.symbols import closed_forms as forms

    return forms(analysis)


def show_closed_forms(forms: Sequence[Mapping[str, Any]]) -> None:
    """Print closed forms."""
    for variant in forms:
        print(f"\n{variant['variant']}, in closed form")
        for line in variant["forms"]:
            print(f"  {line['what']}: {line['text']}")


def write(path: Path, text: str) -> None:
    """Write a page or a plot, whole or not at all."""
    write_text(DiskFiles(), path, text)


__all__ = [
    "Analysis",
    "Bounds",
    "Count",
    "Crossing",
    "Dim",
    "Numbers",
    "Operation",
    "Roof",
    "Stage",
    "Step",
    "Tensor",
    "Traffic",
    "Variant",
    "VariantAnalysis",
    "analyze",
    "build",
    "closed_forms",
    "count",
    "from_torch",
    "html",
    "load",
    "markdown",
    "operation",
    "packaged_operations",
    "parse_changes",
    "parse_rate",
    "roof",
    "show",
    "show_closed_forms",
    "svg_file",
    "tool",
    "with_measured",
    "with_sweep",
    "write",
]
