"""The element types of the language, and how values become them.

A `DType` equals and hashes like the NumPy dtype made from it, in both directions, and NumPy takes it wherever it takes a
dtype. `tfloat32` and the packed x4 types are float32 and unsigned integers to NumPy, `bool_` is bool; among themselves
all element types differ.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

FP32_MIN = float(np.finfo(np.float32).min)


class DType:
    """One element type: its name, its NumPy dtype, its size, and its kind.

    `dtype` is what NumPy takes it for, and `stored` what its bytes are held as (uint8 for `bool_`, else the same);
    `kind` is "float", "int", "uint" or "packed"; `lanes` is the number of values that one element packs.
    """

    __slots__ = (
        "_hash",
        "dtype",
        "is_float",
        "is_int",
        "itemsize",
        "kind",
        "lane",
        "lanes",
        "low_precision",
        "name",
        "stored",
    )

    def __init__(self, name: str, storage: Any, kind: str, *, lanes: int = 1, lane: Any = None, face: Any = None):
        self.name = name
        self.stored = np.dtype(storage)
        self.dtype = self.stored if face is None else np.dtype(face)
        self.itemsize = self.dtype.itemsize
        self.kind = kind
        self.lanes = lanes
        self.lane = None if lane is None else np.dtype(lane)
        self.is_float = kind == "float"
        self.is_int = kind in ("int", "uint")
        self.low_precision = self.is_float and self.itemsize < 4
        self._hash = hash(self.dtype)

    @property
    def __name__(self) -> str:
        return self.name

    @property
    def type(self) -> Any:
        """The NumPy scalar type."""
        return self.dtype.type

    @property
    def size(self) -> int:
        """Bytes per element (a name that some helpers use for `itemsize`)."""
        return self.itemsize

    def __call__(self, value: Any = 0) -> Any:
        return self.dtype.type(value)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, DType):
            return False
        if isinstance(other, np.dtype):
            return bool(self.dtype == other)
        if isinstance(other, type):
            return other is self.dtype.type or (other is bool and self.dtype == np.bool_)
        return resolve(other, strict=False) is self

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return self.name

    __str__ = __repr__

    def __reduce__(self) -> Any:
        return (by_name, (self.name,))

    def __copy__(self) -> DType:
        return self

    def __deepcopy__(self, memo: Any) -> DType:
        return self


bool_ = DType("bool_", np.uint8, "uint", face=np.bool_)
int8 = DType("int8", np.int8, "int")
int16 = DType("int16", np.int16, "int")
int32 = DType("int32", np.int32, "int")
uint8 = DType("uint8", np.uint8, "uint")
uint16 = DType("uint16", np.uint16, "uint")
uint32 = DType("uint32", np.uint32, "uint")
float16 = DType("float16", np.float16, "float")
float32 = DType("float32", np.float32, "float")
bfloat16 = DType("bfloat16", ml_dtypes.bfloat16, "float")
tfloat32 = DType("tfloat32", np.float32, "float")
float8_e4m3 = DType("float8_e4m3", ml_dtypes.float8_e4m3, "float")
float8_e4m3fn = DType("float8_e4m3fn", ml_dtypes.float8_e4m3fn, "float")
float8_e5m2 = DType("float8_e5m2", ml_dtypes.float8_e5m2, "float")
float8_e8m0fnu = DType("float8_e8m0fnu", ml_dtypes.float8_e8m0fnu, "float")
float8_e5m2_x4 = DType("float8_e5m2_x4", np.uint32, "packed", lanes=4, lane=ml_dtypes.float8_e5m2)
float8_e4m3fn_x4 = DType("float8_e4m3fn_x4", np.uint32, "packed", lanes=4, lane=ml_dtypes.float8_e4m3fn)
float4_e2m1fn_x4 = DType("float4_e2m1fn_x4", np.uint16, "packed", lanes=4, lane=ml_dtypes.float4_e2m1fn)

ALL: tuple[DType, ...] = (
    bool_, int8, int16, int32, uint8, uint16, uint32, float16, float32, bfloat16, tfloat32,
    float8_e4m3, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, float8_e5m2_x4, float8_e4m3fn_x4, float4_e2m1fn_x4,
)  # fmt: skip
FP8 = (float8_e4m3, float8_e4m3fn, float8_e5m2)
X4 = (float8_e5m2_x4, float8_e4m3fn_x4, float4_e2m1fn_x4)

_BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in ALL} | {
    "bool": bool_, "fp32": float32, "fp16": float16, "bf16": bfloat16, "tf32": tfloat32,
    "fp8_e4m3": float8_e4m3, "fp8_e5m2": float8_e5m2, "float8e4": float8_e4m3, "float8e5": float8_e5m2,
}  # fmt: skip
_BY_NUMPY: dict[np.dtype, DType] = {
    dtype.stored: dtype for dtype in ALL if dtype.name not in ("bool_", "tfloat32") and dtype.kind != "packed"
} | {np.dtype(np.bool_): bool_}


def by_name(name: str) -> DType:
    """The element type called `name` ("bfloat16", also "bf16")."""
    return _BY_NAME[name]


def resolve(value: Any, *, strict: bool = True) -> DType | None:
    """`value` as an element type: a `DType`, a NumPy or torch dtype, or a name; None (or TypeError) for anything else."""
    if isinstance(value, DType):
        return value
    if value is None or isinstance(value, int | float | tuple | list):
        found = None
    elif isinstance(value, str):
        found = _BY_NAME.get(value.removeprefix("torch."))
    elif isinstance(value, np.dtype):
        found = _BY_NUMPY.get(value)
    elif isinstance(value, type):
        try:
            found = _BY_NUMPY.get(np.dtype(value))
        except TypeError:
            found = None
    elif type(value).__module__.split(".")[0] == "torch":
        found = _BY_NAME.get(str(value).removeprefix("torch."))
    else:
        inner = getattr(value, "dtype", None)
        found = _BY_NUMPY.get(inner) if isinstance(inner, np.dtype) else None
    if found is None and strict:
        raise TypeError(f"not an element type: {value!r}")
    return found


def round_tf32(values: np.ndarray) -> np.ndarray:
    """float32 rounded to 10 mantissa bits, ties to even; infinities and NaN stay. Returns a new float32 array."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(0xFFFFE000)
    special = (bits & np.uint32(0x7F800000)) == np.uint32(0x7F800000)
    return np.where(special, bits, rounded).view(np.float32)


def to_f32(values: np.ndarray) -> np.ndarray:
    """Values as float32 (the array itself where it is float32 already)."""
    return values if values.dtype == np.float32 else values.astype(np.float32)


def from_f32(values: np.ndarray, dtype: DType) -> np.ndarray:
    """float32 (or float64) values as `dtype`: floats by round to nearest even, integers by that and saturation.

    NaN becomes 0 in an integer. A packed type raises TypeError: it is never cast.
    """
    if dtype is float32:
        return values
    if dtype is tfloat32:
        return round_tf32(values)
    if dtype.is_float:
        return values.astype(dtype.stored)
    if dtype.is_int:
        info = np.iinfo(dtype.stored)
        whole = np.rint(values.astype(np.float64))
        return np.nan_to_num(np.clip(whole, info.min, info.max), nan=0.0).astype(dtype.stored)
    raise TypeError(f"{dtype} is never cast")


def convert(values: np.ndarray, source: DType, target: DType) -> np.ndarray:
    """A copy of `values` from one element type to another: bits kept where the types are equal, else through float32."""
    if source is target or source.stored == target.stored == np.uint8:
        return values
    if source.kind == "packed" or target.kind == "packed":
        raise TypeError(f"{source} to {target}: packed types are never cast")
    return from_f32(to_f32(values), target)


def unpack_x4(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Packed elements [..., F] as float32 [..., F, 4]; lane 0 is in the lowest bits."""
    if dtype is float4_e2m1fn_x4:
        raw = np.ascontiguousarray(values, dtype=np.uint16)
        nibbles = np.stack([(raw >> np.uint16(4 * lane)) & np.uint16(0xF) for lane in range(4)], axis=-1)
        return nibbles.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    raw8 = np.ascontiguousarray(values, dtype=np.uint32).view(np.uint8).reshape(*values.shape, 4)
    assert dtype.lane is not None
    return raw8.view(dtype.lane).astype(np.float32)


def pack_x4(values: np.ndarray, dtype: DType) -> np.ndarray:
    """float32 [..., F, 4] as packed elements [..., F]; the inverse of `unpack_x4` up to rounding."""
    assert dtype.lane is not None
    lanes = values.astype(dtype.lane)
    if dtype is float4_e2m1fn_x4:
        nibbles = lanes.view(np.uint8).astype(np.uint16)
        shifts = np.arange(0, 16, 4, dtype=np.uint16)
        return np.bitwise_or.reduce(nibbles << shifts, axis=-1).astype(np.uint16)
    return np.ascontiguousarray(lanes).view(np.uint8).reshape(*values.shape[:-1], 4).view(np.uint32)[..., 0]
