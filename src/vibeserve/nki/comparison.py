"""Numerical validation: several measures at once, since none catches everything, and the first stage that departs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vibeserve.base.errors import InputError
from vibeserve.nki.arguments import is_torch, torch_to_numpy

# (rtol, atol) by the coarser of the two dtypes: about two units in the last place of sums a few hundred long.
TOLERANCES: dict[str, tuple[float, float]] = {
    "float64": (1e-7, 1e-9), "float32": (1e-5, 1e-6), "float16": (1e-2, 1e-3), "bfloat16": (2e-2, 1e-2),
    "float8_e4m3": (1.3e-1, 6e-2), "float8_e4m3fn": (1.3e-1, 6e-2), "float8_e5m2": (2.6e-1, 1.3e-1),
}  # fmt: skip
_ORDER = ("float64", "float32", "float16", "bfloat16", "float8_e4m3", "float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True)
class Element:
    """One element of a comparison."""

    index: tuple[int, ...]
    actual: float
    expected: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a result compares with its reference.

    `ok` is allclose with `rtol` and `atol`; `outside` elements of `count` are not close. `first` and `worst` are the
    first such element (in row order) and the one with the largest difference (None where all are equal).
    """

    ok: bool
    rtol: float
    atol: float
    count: int
    outside: int
    max_abs_diff: float
    max_rel_diff: float
    norm_diff: float
    norm_expected: float
    cosine: float
    first: Element | None
    worst: Element | None
    reason: str = ""

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        if self.reason:
            return f"differs: {self.reason}"
        verdict = "close" if self.ok else f"{self.outside} of {self.count} elements differ"
        text = (
            f"{verdict} (rtol {self.rtol:g}, atol {self.atol:g}): max |diff| {self.max_abs_diff:.3g}, "
            f"|diff| {self.norm_diff:.3g} of |expected| {self.norm_expected:.3g}, cosine {self.cosine:.7f}"
        )
        for label, element in (("first", self.first), ("worst", self.worst)):
            if element is not None and not self.ok:
                text += f"; {label} at {element.index}: {element.actual:g}, expected {element.expected:g}"
        return text


def compare(actual: Any, expected: Any, *, rtol: float | None = None, atol: float | None = None) -> Comparison:
    """Compare a kernel's result with its reference (NumPy or torch); tolerances by the coarser dtype where not given.

    NaN equals NaN and infinities equal themselves. Shapes that differ give ok=False with the reason.
    """
    a, b = _array(actual), _array(expected)
    loose = max((a.dtype.name, b.dtype.name), key=lambda name: _ORDER.index(name) if name in _ORDER else 0)
    default = TOLERANCES.get(loose, (0.0, 0.0))
    rtol, atol = default[0] if rtol is None else rtol, default[1] if atol is None else atol
    if a.shape != b.shape:
        reason = f"shape {list(a.shape)}, expected {list(b.shape)}"
        return Comparison(False, rtol, atol, a.size, a.size, 0.0, 0.0, 0.0, 0.0, 0.0, None, None, reason)
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        diff = np.where(same, 0.0, np.abs(x - y))
        diff = np.where(np.isnan(diff), np.inf, diff)
        outside = ~(same | (diff <= atol + rtol * np.abs(y)))
        relative = np.where(same, 0.0, diff / np.abs(y))
    finite_x, finite_y = np.nan_to_num(x, posinf=0, neginf=0), np.nan_to_num(y, posinf=0, neginf=0)
    norms = float(np.linalg.norm(finite_x) * np.linalg.norm(finite_y))
    both_zero = not finite_x.any() and not finite_y.any()
    cosine = float((finite_x * finite_y).sum()) / norms if norms else float(both_zero)
    return Comparison(
        ok=not bool(outside.any()),
        rtol=rtol,
        atol=atol,
        count=a.size,
        outside=int(outside.sum()),
        max_abs_diff=float(diff.max(initial=0.0)),
        max_rel_diff=float(relative.max(initial=0.0)),
        norm_diff=float(np.linalg.norm(diff)),
        norm_expected=float(np.linalg.norm(finite_y)),
        cosine=cosine,
        first=_element(x, y, int(np.argmax(outside))) if outside.any() else None,
        worst=_element(x, y, int(np.argmax(diff))) if diff.any() else None,
    )


def _array(value: Any) -> np.ndarray:
    return torch_to_numpy(value, "value") if is_torch(value) else np.asarray(value)


def _element(x: np.ndarray, y: np.ndarray, flat: int) -> Element:
    index = np.unravel_index(flat, x.shape) if x.shape else ()
    return Element(tuple(int(i) for i in index), float(x[index]), float(y[index]))


@dataclass(frozen=True, slots=True)
class Stages:
    """Stage by stage: `departs` names the first stage whose comparison fails (None where all hold)."""

    departs: str | None
    comparisons: dict[str, Comparison]

    def __bool__(self) -> bool:
        return self.departs is None

    def __str__(self) -> str:
        lines = [f"{'ok ' if found else 'BAD'} {name}: {found}" for name, found in self.comparisons.items()]
        lines.append("all stages hold" if self.departs is None else f"the first stage that departs is '{self.departs}'")
        return "\n".join(lines)


def stages(
    actual: Mapping[str, Any], expected: Mapping[str, Any], *, rtol: float | None = None, atol: float | None = None
) -> Stages:
    """Compare named intermediate tensors in the order of `expected`, and name the first stage that departs.

    InputError for a stage that `actual` lacks.
    """
    missing = [name for name in expected if name not in actual]
    if missing:
        raise InputError(f"no tensor for stage {missing[0]!r}", hint=f"the kernel gave {', '.join(actual) or 'none'}")
    found = {name: compare(actual[name], expected[name], rtol=rtol, atol=atol) for name in expected}
    return Stages(next((name for name, result in found.items() if not result.ok), None), found)
