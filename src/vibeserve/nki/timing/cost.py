"""What one instruction costs its engine: work, and what is added where it waited or was queued (all in ps).

Forms and constants: docs/timing.md. N is the elements of the main operand in each partition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vibeserve.nki.observe import Operand
from vibeserve.nki.timing.ops import Plan, describe, free_elements, is_transpose, role, rows_per_cycle
from vibeserve.nki.timing.params import Params

_FAST = ("bfloat16", "float16")
_INPUTS = ("data", "src", "data0", "data1", "operand", "on_true")
_TABLELESS = ("copy", "identity", "relu", "square", "abs", "sign", "")
_VECTOR_DOUBLE = ("tensor_tensor_scan", "scalar_tensor_tensor")


@dataclass(frozen=True, slots=True)
class Cost:
    """ps: an instruction that waited ends at start + work + lat; a queued one at the previous end + work + gap.

    `table` names the function table that the scalar engine needs ("": any); `ports` the ports that it holds alone while it
    works; `speed` is the factor of a vector engine's fast mode, lost while gpsimd is on their shared bus.
    """

    work: int
    lat: int
    gap: int
    table: str = ""
    ports: tuple[str, ...] = ()
    speed: int = 1

    @property
    def special(self) -> bool:
        """Whether more than its engine decides when it can start."""
        return bool(self.table or self.ports or self.speed > 1)


@dataclass(frozen=True, slots=True)
class MatmulCost:
    """ps of a product, warm and cold: queued interval, weight load, stream of the moving tensor, fixed part."""

    warm_interval: int
    cold_interval: int
    warm_first: int
    cold_first: int


def ps(cycles: float, clock_ghz: float) -> int:
    """Cycles at a clock in ps."""
    return round(cycles * 1000 / clock_ghz)


def compute(op: Plan, params: Params, generation: int) -> Cost:
    """The cost of a vector, scalar or gpsimd instruction."""
    if op.engine == "scalar":
        return replace(_scalar(op, params, generation), table=_table(op), ports=ports(op, generation))
    if op.engine == "gpsimd":
        return replace(_gpsimd(op, params), ports=ports(op, generation))
    if op.engine == "vector":
        fast = op.opcode in ("tensor_copy", "tensor_scalar")
        speed = _copy_speed(op, generation, not _touches_psum(op), _two_byte(op)) if fast else 1
        return replace(_vector(op, params, generation), ports=ports(op, generation), speed=speed)
    register = "register_from_hbm" if op.hbm_read or op.hbm_write else "register"
    length = round(params[f"sync_ns.{register}"] * 1000)
    return Cost(length, 0, 0)


def ports(op: Plan, generation: int) -> tuple[str, ...]:
    """The ports that an engine holds alone: on trn1 vector and gpsimd share one to SBUF, vector and scalar one to PSUM;
    later ones share only a PSUM bank ("bank") and the bus of vector's fast modes ("bus")."""
    on = {operand.region for operand in op.operands}
    found = []
    if generation < 3:
        if "sbuf" in on and op.engine in ("vector", "gpsimd"):
            found.append("sbuf")
        if "psum" in on and op.engine in ("vector", "scalar"):
            found.append("psum")
    else:
        if "psum" in on and op.engine in ("vector", "scalar"):
            found.append("bank")
        if op.engine == "gpsimd":
            found.append("bus")
    return tuple(found)


def _table(op: Plan) -> str:
    """The table of an activation function; those that only copy, compare or multiply need none."""
    name = describe(op.params.get("op", ""))
    return "" if op.opcode in ("tensor_copy", "tensor_scalar") or name in _TABLELESS else name


def _two_byte(op: Plan) -> bool:
    operands = [operand for operand in op.operands if operand.elements > operand.shape[0]]
    return all(operand.dtype in _FAST for operand in operands)


def _main(op: Plan) -> Operand | None:
    for name in _INPUTS:
        found = role(op, name)
        if found is not None:
            return found
    return op.operands[0] if op.operands else None


def _elements(op: Plan) -> int:
    main, target = _main(op), role(op, "dst")
    return max(free_elements(main), 0 if op.opcode.startswith("tensor_reduce") else free_elements(target))


def _column_operands(op: Plan) -> int:
    """Operands that give one value for each partition."""
    names = ("bias", "scale", "operand0", "operand1")
    return sum(1 for operand in op.operands if operand.role in names and free_elements(operand) == 1)


def _touches_psum(op: Plan) -> bool:
    return any(operand.region == "psum" for operand in op.operands)


def _strided(op: Plan) -> bool:
    """Whether an innermost stride is over 16 bytes: the port then runs at half rate."""
    return any(
        operand.region in ("sbuf", "psum") and operand.shape[-1] > 1 and operand.strides[-1] * operand.itemsize > 16
        for operand in op.operands
    )


def _least_dynamic(op: Plan, params: Params, cycles: float) -> float:
    moves = any(operand.dynamic for operand in op.operands)
    return max(cycles, params["dynamic_cycles.least"]) if moves else cycles


def _vector(op: Plan, params: Params, generation: int) -> Cost:
    clock = params["clock_ghz.vector"]
    where = "psum" if _touches_psum(op) else "sbuf"
    work = _vector_cycles(op, params, generation) * (2 if _strided(op) else 1)
    work = _least_dynamic(op, params, work)
    lat, gap = params[f"vector_cycles.lat_{where}"], params[f"vector_cycles.gap_{where}"]
    if _column_operands(op):
        lat, gap = lat + params["vector_cycles.lat_operand"], gap + params["vector_cycles.gap_operand"]
    return Cost(ps(work, clock), ps(lat, clock), ps(gap, clock))


def _vector_cycles(op: Plan, params: Params, generation: int) -> float:
    n = _elements(op)
    two_byte = _two_byte(op)
    in_sbuf = not _touches_psum(op)
    reciprocal = n * params["vector_cycles.reciprocal_per_element"] + params["vector_cycles.reciprocal_fixed"]
    if op.opcode == "reciprocal":
        return reciprocal
    if op.opcode == "vector_function" and op.params.get("function") == "divide":  # as it would have to be written
        return reciprocal + 2 * n
    if op.opcode in ("tensor_copy", "tensor_scalar"):
        return n / _copy_speed(op, generation, in_sbuf, two_byte)
    if op.opcode == "tensor_tensor":
        spaces = {role_.region for name in ("data1", "data2") if (role_ := role(op, name)) is not None}
        return n if len(spaces) == 2 or (two_byte and in_sbuf) else 2 * n
    if op.opcode in _VECTOR_DOUBLE:
        return 2 * n
    if op.opcode == "tensor_copy_predicated":
        return n if _touches_psum(op) else 2 * n
    if op.opcode == "tensor_reduce":
        simple = getattr(op.params.get("op"), "__name__", str(op.params.get("op")))
        return n / 2 if two_byte and in_sbuf and simple in ("add", "maximum") else n
    if op.opcode == "memset":
        return n / 2 if two_byte and op.params.get("value") == 0 else n
    if op.opcode == "bn_aggr":
        return 13 * n / 3
    if op.opcode in ("exponential", "quantize_mx", "rand2"):
        return n / 4
    if op.opcode == "tensor_scalar_reduce":
        return n + params["vector_cycles.accumulator_read"]
    return n


def _copy_speed(op: Plan, generation: int, in_sbuf: bool, two_byte: bool) -> int:
    """Elements in a cycle: 4 and 2 for two-byte data from v3 on, 2 for fp32 tensor_scalar in SBUF on v3."""
    if generation < 3:
        return 1
    if two_byte:
        contiguous = all(o.strides[-1] == 1 or o.shape[-1] == 1 for o in op.operands)
        return 4 if in_sbuf and contiguous else 2 if in_sbuf or contiguous else 1
    everything_fp32 = all(o.dtype == "float32" for o in op.operands)
    return 2 if op.opcode == "tensor_scalar" and in_sbuf and everything_fp32 else 1


def _only_copies(op: Plan) -> bool:
    """Whether an activation is a copy: no function, and no bias."""
    function = describe(op.params.get("op", ""))
    return op.opcode == "activation" and function in ("copy", "identity") and role(op, "bias") is None


def _scalar(op: Plan, params: Params, generation: int) -> Cost:
    clock = params["clock_ghz.scalar"]
    n = float(_elements(op))
    copies = op.opcode in ("tensor_copy", "tensor_scalar") or _only_copies(op)
    if op.opcode != "activation" and copies and generation >= 4 and all(o.dtype in _FAST for o in op.operands):
        n /= 2
    kind = "copy" if copies else "activation"
    lat, gap = params[f"scalar_cycles.lat_{kind}"], params[f"scalar_cycles.gap_{kind}"]
    if not copies and not _touches_psum(op):
        lat, gap = (
            lat + params["scalar_cycles.activation_from_sbuf"],
            gap + params["scalar_cycles.activation_from_sbuf"],
        )
    if op.opcode == "activation_reduce" or any(o.role == "reduce_res" for o in op.operands):
        n += params["scalar_cycles.accumulator_read"]
    work = _least_dynamic(op, params, n * (2 if _strided(op) else 1))
    return Cost(ps(work, clock), ps(lat, clock), ps(gap, clock))


def _gpsimd(op: Plan, params: Params) -> Cost:
    clock, n = params["clock_ghz.gpsimd"], _elements(op)
    work = {
        "tensor_tensor": 2 * n, "tensor_scalar": 4 * n, "topk": 4 * n, "sequence_bounds": 4 * n, "nonzero_with_count": 2 * n,
        "nc_n_gather": -(-n // 512) * 1024, "tensor_partition_reduce": n * 8,
    }.get(op.opcode, n)  # fmt: skip
    start = params["gpsimd_cycles.start"]
    return Cost(
        ps(_least_dynamic(op, params, work), clock), ps(start + params["gpsimd_cycles.lat"], clock), ps(start, clock)
    )


def matmul(op: Plan, params: Params) -> MatmulCost:
    """The cost of a Tensor Engine instruction: passes of a weight load (hidden when queued) and a moving stream."""
    transposes = is_transpose(op)
    stationary, moving = role(op, "stationary"), role(op, "moving") or role(op, "data")
    if moving is None:  # a composite of nki.language
        moving = _main(op)
    rows = rows_per_cycle(op)
    n = max(free_elements(moving) / rows, params["tensor_cycles.least_moving"])
    m = free_elements(stationary) / rows if stationary is not None else (moving.shape[0] if moving is not None else 128)
    passes, per_column, load = 1.0, 1.0, m / params["tensor_cycles.fast_load_columns_per_cycle"]
    if moving is not None and moving.dtype == "float32":
        per_column = params["tensor_cycles.fp32_cycles_per_column"]
        passes = 1.0 if transposes else params["tensor_cycles.fp32_passes"]
        load = m if transposes else 2.0 * m
    stream = per_column * n
    warm, cold = params["clock_ghz.tensor"], params["clock_ghz.tensor_cold"]
    seen = load * (1 - params["tensor_cycles.load_hidden"])
    interval = seen + max(stream + params["tensor_cycles.product_extra"], load + params["tensor_cycles.load_extra"])
    rest = (passes - 1) * interval
    return MatmulCost(
        ps(passes * interval, warm),
        ps(passes * (seen + max(stream, load)), cold),
        ps(load + stream + rest, warm) + round(params["tensor_ns.fixed_warm"] * 1000),
        ps(load + stream + (passes - 1) * max(stream, load), cold) + round(params["tensor_ns.fixed_cold"] * 1000),
    )
