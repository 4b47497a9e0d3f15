"""The derivation, line by line: title, formula in symbols, formula with numbers, value, unit.

The order is that of a hand count on paper: sizes; the answer (work, bytes, peak, bandwidth, times, intensity against
the ridge); then where work, bytes and intensity come from; what the shape decides; and where the machine's figures
come from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

from vibeserve.base.units import duration
from vibeserve.hardware import Figure, Machine
from vibeserve.roofline.bounds import Bounds, Roof, bounds
from vibeserve.roofline.counting import Count, TensorCount
from vibeserve.roofline.crossings import Crossing, formula, ridge_symbol
from vibeserve.roofline.numbers import flop_rate, number, short
from vibeserve.roofline.poly import Number, Poly, Writer, group, whole


@dataclass(frozen=True, slots=True)
class Step:
    """One line of the derivation. `part` is the block that it belongs to; `text` is the value as a person reads it."""

    title: str
    formula: str
    numbers: str
    value: float | int | None
    unit: str
    text: str
    note: str = ""
    part: str = "answer"


@dataclass(frozen=True, slots=True)
class Derivation:
    """What the steps of one variant are made from."""

    count: Count
    sizes: Mapping[str, int]
    changes: Mapping[str, Number]
    over: Roof
    found: Bounds
    crossings: tuple[Crossing, ...]

    @property
    def order(self) -> list[str]:
        """Symbols in the order of the dimensions."""
        return [ridge_symbol(self.count), *self.count.local.values()]

    @property
    def late(self) -> frozenset[str]:
        """Symbols of split dimensions: their terms come last in a sum."""
        return frozenset(self.count.local[dim] for dim in self.count.split)

    @property
    def symbols(self) -> Writer:
        """Writes one core's counts in symbols."""
        return Writer(self.order, self.late)

    @property
    def numbers(self) -> Writer:
        """Writes one core's counts with numbers."""
        return Writer(self.order, self.late, self.count.environment(self.sizes))

    def total(self, poly: Poly) -> Poly:
        """A core's count as the whole kernel's, in the operation's own symbols."""
        own = {self.count.local[dim]: Poly.symbol(dim) / parts for dim, parts in self.count.split.items()}
        return poly.substitute(own) * self.count.cores

    @property
    def whole_symbols(self) -> Writer:
        """Writes totals in symbols."""
        return Writer([*self.count.operation.dims], frozenset(self.count.split))

    @property
    def whole_numbers(self) -> Writer:
        """Writes totals with numbers."""
        opaque = {name: value for name, value in self.count.environment(self.sizes).items() if name not in self.sizes}
        return Writer([*self.count.operation.dims], frozenset(self.count.split), {**opaque, **self.sizes})


def steps(given: Derivation) -> list[Step]:
    """All steps of one variant."""
    return [
        *_sizes(given),
        *_answer(given),
        *_work(given),
        *_cores(given),
        *_shape(given),
        *_machine(given),
    ]


def _sizes(given: Derivation) -> Iterator[Step]:
    op = given.count.operation
    names: dict[str, Number] = {key: given.changes.get(key, value) for key, value in op.given.items()}
    for name, dim in op.dims.items():
        value = given.sizes[name]
        if dim.derived and name not in given.changes:
            factors = [group(factor) for factor in dim.size.factors({**names, **given.sizes})]
            shown = dim.size.show({key: group(number) for key, number in {**names, **given.sizes}.items()})
            text = shown + (f" = {' × '.join(factors)}" if len(factors) > 1 else "")
            yield Step(f"Size {name}", f"{name} = {dim.size.show()}", text, value, "", group(value), dim.about, "sizes")


def _answer(given: Derivation) -> Iterator[Step]:
    found, count = given.found, given.count
    work = given.total(count.flops(count.kind))
    moved = given.total(count.bytes)
    vector = "" if found.kind == "flops" else " (no matmuls: the work is elementwise)"
    w, q = group(found.work), group(found.bytes)
    yield _step(
        "Work", f"W = {given.whole_symbols.poly(work)}", given.whole_numbers.poly(work), found.work, "FLOPs", vector
    )
    yield _step(
        "Bytes", f"Q = {given.whole_symbols.poly(moved)}", given.whole_numbers.poly(moved), found.bytes, "bytes"
    )
    yield _step("Peak", "P", "", found.peak, "FLOP/s", "derived below")
    yield _step("Bandwidth", "BW", "", found.bandwidth, "bytes/s", "derived below")
    yield _step("Compute time", "T_compute = W ÷ P", f"{w} ÷ {short(found.peak)}", found.t_compute, "s")
    yield _step("Memory time", "T_memory = Q ÷ BW", f"{q} ÷ {short(found.bandwidth)}", found.t_memory, "s")
    low, high = duration(float(found.t_lower)), duration(float(found.t_upper))
    yield Step(
        "Time bounds",
        "max(T_compute, T_memory) ≤ T ≤ T_compute + T_memory",
        f"{low} ≤ T ≤ {high}",
        float(found.t_lower),
        "s",
        f"{low} ≤ T ≤ {high}",
        "the lower one with perfect overlap, the upper one with none",
    )
    yield _step("Intensity", "I = W ÷ Q", f"{w} ÷ {q}", found.intensity, "FLOPs/byte")
    reach = found.intensity * found.bandwidth
    sign, verdict = (
        (">", "compute") if reach > found.peak else ("=", "compute") if reach == found.peak else ("<", "memory")
    )
    yield Step(
        "Attainable from memory",
        f"I × BW {sign} P",
        f"{short(reach)} {sign} {short(found.peak)}",
        float(reach),
        "FLOP/s",
        flop_rate(reach),
        f"{verdict}-bound",
    )
    yield Step(
        "Ridge", "P ÷ BW", _ridge_numbers(given), float(found.ridge), "FLOPs/byte", number(found.ridge), _rounded(found)
    )


def _ridge_numbers(given: Derivation) -> str:
    return f"{short(given.found.peak)} ÷ {short(given.found.bandwidth)}"


def _rounded(found: Bounds) -> str:
    near = round(found.ridge)
    return f"{near} when rounded to a whole number" if near != found.ridge and near else ""


def _work(given: Derivation) -> Iterator[Step]:
    count = given.count
    for stage in count.stages:
        if stage.kind != count.kind or not stage.flops:
            continue
        total = given.total(stage.flops)
        notes = [stage.stage.about] if stage.stage.about else []
        if stage.repeated:
            notes.append("no split dimension in it: every core does all of it")
        if len({item.dtype for item in count.stages if item.kind == count.kind}) > 1:
            notes.append(f"computed in {stage.dtype}")
        symbols, numbers = given.whole_symbols.poly(total), given.whole_numbers.poly(total)
        value = _value(given, total)
        yield _step(f"Work of {stage.stage.name}", symbols, numbers, value, "FLOPs", "; ".join(notes), "work")
    total = given.total(count.flops(count.kind))
    parts = [given.whole_symbols.poly(given.total(s.flops)) for s in count.stages if s.kind == count.kind and s.flops]
    joined = " + ".join(parts)
    whole_text = given.whole_symbols.poly(total)
    symbols = f"W = {joined} = {whole_text}" if len(parts) > 1 and joined != whole_text else f"W = {whole_text}"
    yield _step("Work in all", symbols, given.whole_numbers.poly(total), given.found.work, "FLOPs", part="work")
    moves = given.total(count.flops("moves"))
    if moves:
        yield _step(
            "FLOPs that only move data",
            given.whole_symbols.poly(moves),
            given.whole_numbers.poly(moves),
            _value(given, moves),
            "FLOPs",
            "transposes and broadcasts by matmul: in a profiler's total, not in its intensity, and not in W",
            "work",
        )
    vector = given.total(count.flops("vector"))
    if vector and count.kind == "flops":
        yield _step(
            "Elementwise work",
            given.whole_symbols.poly(vector),
            given.whole_numbers.poly(vector),
            _value(given, vector),
            "FLOPs",
            "on other units than the matmuls, at the same time: not in W",
            "work",
        )


def _value(given: Derivation, total: Poly) -> Number:
    opaque = {name: value for name, value in given.count.environment(given.sizes).items() if name not in given.sizes}
    return total.evaluate({**opaque, **given.sizes})


def _cores(given: Derivation) -> Iterator[Step]:
    count = given.count
    for dim, parts in count.split.items():
        size = given.sizes[dim]
        yield _step(
            f"Split of {dim}",
            f"{count.local[dim]} = {dim} ÷ {parts}",
            f"{group(size)} ÷ {parts}",
            size // parts,
            "",
            f"{parts} cores, each with its part",
            "cores",
        )
    for item in count.counted:
        if not item.on_chip:
            yield _tensor(given, item)
    out = [item.tensor for item in count.tensors if not item.tensor.count]
    chip = [item.tensor.name for item in count.counted if item.on_chip]
    notes = [f"{', '.join(chip)} stay on chip"] if chip else []
    if out:
        left = sum(
            float(item.bytes.evaluate(count.environment(given.sizes)))
            for item in count.tensors
            if not item.tensor.count
        )
        notes.append(f"{', '.join(tensor.name for tensor in out)} left out ({left:,.0f} bytes a core)")
    per = "one core" if count.cores > 1 else "all"
    yield _step(
        f"Bytes of {per}",
        f"Q = {given.symbols.sum(count.bytes)}",
        given.numbers.sum(count.bytes),
        whole(Fraction(given.found.bytes, count.cores)),
        "bytes",
        "; ".join(notes),
        "cores",
    )
    work = count.flops(count.kind)
    top, bottom = given.symbols.poly(work), given.symbols.poly(count.bytes)
    reduced = given.symbols.ratio(work, count.bytes)
    yield _step(
        "Intensity of one core" if count.cores > 1 else "Intensity in symbols",
        f"I = {top}/({bottom}) = {reduced}",
        given.numbers.ratio(work, count.bytes),
        given.found.intensity,
        "FLOPs/byte",
        part="cores",
    )


def _tensor(given: Derivation, item: TensorCount) -> Step:
    times = []
    for word, poly in (("read", item.reads), ("write", item.writes)):
        if poly:
            shown = given.symbols.poly(poly)
            times.append(word if shown == "1" else f"{shown} {word}s")
    how = {"part": "its part", "whole": "all of it", "shared": "its share, loaded once for all cores"}[item.each_core]
    cores = f", each core {how}" if given.count.cores > 1 else ""
    note = f"{' and '.join(times)}, {item.dtype} ({_bytes(item)} bytes an element){cores}"
    symbols, numbers = given.symbols.poly(item.bytes), given.numbers.poly(item.bytes)
    value = item.bytes.evaluate(given.count.environment(given.sizes))
    return _step(f"Bytes of {item.tensor.name}", symbols, numbers, value, "bytes", note, "cores")


def _bytes(item: TensorCount) -> str:
    return f"{float(item.element_bytes):g}"


def _shape(given: Derivation) -> Iterator[Step]:
    count = given.count
    work = count.flops(count.kind)
    weights = Poly.total(item.bytes for item in count.counted if item.tensor.weight)
    if weights:
        value = Fraction(work.evaluate(count.environment(given.sizes))) / Fraction(
            weights.evaluate(count.environment(given.sizes))
        )
        yield _step(
            "Weights alone",
            f"I = {given.symbols.ratio(work, weights)}",
            given.numbers.ratio(work, weights),
            value,
            "FLOPs/byte",
            "the intensity if nothing but the weights moved: how often each weight byte is used",
            "shape",
        )
    for change in count.operation.what_if:
        yield _what_if(given, change)
    for crossing in given.crossings:
        if crossing.dim in count.split or count.cores == 1:
            yield _crossing(given, crossing)


def _what_if(given: Derivation, change: Mapping[str, Number]) -> Step:
    count = given.count
    sizes = count.operation.sizes({**given.changes, **change})
    there = bounds(count.numbers(sizes), given.over)
    names = count.environment(sizes)
    local = ", ".join(f"{count.local[dim]} = {group(names[count.local[dim]])}" for dim in count.split if dim in change)
    said = ", ".join(f"{name} = {group(value)}" for name, value in change.items())
    sign = "≥" if there.bound == "compute" else "<"
    work, moved = count.flops(count.kind), count.bytes
    return _step(
        f"At {said}",
        f"I = {given.symbols.ratio(work, moved)}",
        Writer(given.order, given.late, names).ratio(work, moved),
        there.intensity,
        "FLOPs/byte",
        f"{local + ': ' if local else ''}I {sign} {number(there.ridge)}, {there.bound}-bound",
        "shape",
    )


def _crossing(given: Derivation, crossing: Crossing) -> Step:
    count, dim = given.count, crossing.dim
    parts = count.split.get(dim, 1)
    symbol = count.local[dim]
    solved = formula(count, dim)
    text = f"I = P ÷ BW at {symbol}"
    numbers = ""
    notes = [f"{crossing.above}-bound above"]
    if not crossing.exact:
        notes.append("the first size past the ridge: sizes are rounded in this operation")
    elif solved is not None and len({s.dtype for s in count.stages if s.kind == count.kind}) == 1:
        ridge = ridge_symbol(count)
        text = f"{symbol} = {given.symbols.ratio(*solved)}, {ridge} = P ÷ BW"
        names = {**count.environment(given.sizes), ridge: given.found.ridge}
        numbers = Writer(given.order, given.late, names).ratio(*solved)
        near = Fraction(round(given.found.ridge))
        bottom = Fraction(solved[1].evaluate({**names, ridge: near})) if near else Fraction(0)
        if near and bottom and near != given.found.ridge:
            rounded = round(Fraction(solved[0].evaluate({**names, ridge: near})) / bottom)
            total = f", so {parts} × {rounded} = {rounded * parts}" if parts > 1 else ""
            notes.append(f"with the ridge rounded to {near} one gets {symbol} ≈ {rounded}{total}")
    if parts > 1:
        assert crossing.per_core is not None
        numbers = f"{numbers or ''}{' = ' if numbers else ''}{number(crossing.per_core)} a core"
        numbers += f"; {dim} = {parts} × {number(crossing.per_core)}"
    return _step(f"Crossing in {dim}", text, numbers, crossing.value, "", "; ".join(notes), "shape")


def _machine(given: Derivation) -> Iterator[Step]:
    over, found = given.over, given.found
    machine, cores = over.machine, over.cores
    dtypes = list(given.count.flops_by_dtype(given.count.kind))
    for dtype in dtypes:
        yield from _peak(given, dtype, " of " + dtype if len(dtypes) > 1 else "")
    if len(dtypes) > 1:
        yield _step("Peak of the mixture", "P = W ÷ Σ Wᵢ/Pᵢ", "", found.peak, "FLOP/s", part="machine")
    if over.bandwidth_given:
        yield _step("Bandwidth", "BW", "", found.bandwidth, "bytes/s", "given", "machine")
    else:
        used = machine.used("bandwidth_bytes_per_s")
        name = (
            "Bandwidth"
            if over.share.whole
            else "Bandwidth of a core pair"
            if cores == 2
            else f"Bandwidth of {cores} core"
        )
        said = "BW" if over.share.whole else f"BW = {cores} × {machine.name}'s ÷ {machine.cores} cores"
        shown = "" if over.share.whole else f"{cores} × {short(used.value)} ÷ {machine.cores}"
        yield _step(
            name, said, shown, found.bandwidth, "bytes/s", _used(machine.figures["bandwidth_bytes_per_s"]), "machine"
        )
    yield _step("Ridge", "P ÷ BW", _ridge_numbers(given), found.ridge, "FLOPs/byte", _rounded(found), "machine")


def _peak(given: Derivation, dtype: str, suffix: str) -> Iterator[Step]:
    over = given.over
    machine, cores = over.machine, over.cores
    kind = given.count.kind
    peak = over.peak(dtype, kind)
    array = machine.array
    if over.peak_given:
        yield _step(f"Peak{suffix}", "P", "", peak, "FLOP/s", "given", "machine")
        return
    figures, note = _peak_source(machine, dtype, kind)
    if kind == "flops" and array is not None and figures and figures[0].name == "array":
        rate = array.rates[dtype]
        times = "" if rate == 1 else f" × {rate:g}"
        yield _step(
            f"Peak of one core{suffix}",
            "P = rows × columns × 2 × clock" + (" × rate" if times else ""),
            f"{array.rows} × {array.columns} × 2 × {short(array.clock_hz)}{times}",
            array.peak_flops_per_s(dtype),
            "FLOP/s",
            note,
            "machine",
        )
        name = f"Peak of LNC={cores}" if cores > 1 else "Peak of the kernel"
        each = short(array.peak_flops_per_s(dtype))
        yield _step(f"{name}{suffix}", f"P = {cores} × a core's", f"{cores} × {each}", peak, "FLOP/s", "", "machine")
        return
    said = "P" if over.share.whole else f"P = {cores} × {machine.name}'s ÷ {machine.cores} cores"
    yield _step(f"Peak{suffix}", said, "", peak, "FLOP/s", note, "machine")


def _peak_source(machine: Machine, dtype: str, kind: str) -> tuple[tuple[Figure, ...], str]:
    """The figures that a peak comes from, and what to say of them (see `Roof.peak` for what stands in)."""
    if kind == "flops":
        figures = machine.figures[f"peaks.{dtype}"]
        return figures, _used(figures)
    if f"vector_peaks.{dtype}" in machine.figures:
        figures = machine.figures[f"vector_peaks.{dtype}"]
        return figures, _used(figures)
    if "vector_peaks.float32" in machine.figures:
        figures = machine.figures["vector_peaks.float32"]
        return figures, f"the float32 peak, as none is known for {dtype}; {_used(figures)}"
    word = "float32" if "float32" in machine.peaks else dtype
    figures = machine.figures[f"peaks.{word}"]
    return figures, f"no peak of elementwise work is known: the {word} matmul peak lies above it; {_used(figures)}"


def _used(figures: tuple[Figure, ...]) -> str:
    first, others = figures[0], figures[1:]
    said = first.note.split("; ", 1)[-1] if first.name == "array" else first.note
    if first.noise is not None:
        said = f"median of {first.noise.n}, spread {first.noise.spread:.0%}"
    parts = [f"{first.provenance}: {first.source}" + (f" ({said})" if said else "")]
    parts += [f"not used: {other.name or 'another source'} {short(other.value)}" for other in others]
    return "; ".join(parts)


def _step(
    title: str, formula: str, numbers: str, value: Number | float, unit: str, note: str = "", part: str = "answer"
) -> Step:
    plain: float | int = whole(value) if isinstance(value, int | Fraction) else value  # type: ignore[assignment]
    plain = plain if isinstance(plain, int) else float(plain)
    text = {
        "s": lambda: duration(float(value)),
        "FLOP/s": lambda: flop_rate(value),
        "bytes/s": lambda: f"{short(value)} bytes/s",
        "FLOPs/byte": lambda: number(value),
    }.get(unit, f"{number(value)} {unit}".strip)()
    return Step(title, formula, numbers, plain, unit, text, note, part)
