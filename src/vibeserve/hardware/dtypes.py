"""Names and sizes of data types. A machine's peaks, a tensor's bytes and a profile's metrics all use these names."""

from __future__ import annotations

from fractions import Fraction

from vibeserve.base.errors import InputError

# Bytes of one element. The MX formats add one shared 8-bit scale for 32 elements (OCP MX specification).
BYTES: dict[str, Fraction] = {
    "float64": Fraction(8),
    "float32": Fraction(4),
    "tf32": Fraction(4),
    "bfloat16": Fraction(2),
    "float16": Fraction(2),
    "float8_e4m3": Fraction(1),
    "float8_e5m2": Fraction(1),
    "float6": Fraction(3, 4),
    "float4": Fraction(1, 2),
    "mxfp8": 1 + Fraction(1, 32),
    "mxfp4": Fraction(1, 2) + Fraction(1, 32),
    "int64": Fraction(8),
    "int32": Fraction(4),
    "int16": Fraction(2),
    "int8": Fraction(1),
    "uint8": Fraction(1),
    "int4": Fraction(1, 2),
    "bool": Fraction(1),
}

ALIASES: dict[str, str] = {
    "fp64": "float64",
    "double": "float64",
    "fp32": "float32",
    "float": "float32",
    "tfloat32": "tf32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "fp8": "float8_e4m3",
    "float8": "float8_e4m3",
    "cfp8": "float8_e4m3",
    "float8_e4m3fn": "float8_e4m3",
    "fp6": "float6",
    "fp4": "float4",
    "nvfp4": "float4",
}


def canonical(name: str) -> str:
    """The name that this project uses for a data type (`bf16` is `bfloat16`). Raises InputError for an unknown one."""
    word = name.strip().lower()
    word = ALIASES.get(word, word)
    if word not in BYTES:
        raise InputError(f"unknown data type {name!r}", hint="known ones: " + ", ".join(BYTES))
    return word


def bytes_of(name: str) -> Fraction:
    """Bytes of one element, exact (int4 is 1/2)."""
    return BYTES[canonical(name)]
