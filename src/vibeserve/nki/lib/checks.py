"""Checks of a kernel's inputs, in the form that the tool chain prints."""

from __future__ import annotations

from typing import Any

PREFIX = "[INTERNAL_ERROR] [NCC_INKI016] Kernel validation exception: "


def kernel_assert(condition: Any, message: str = "") -> None:
    """Stop the kernel with `message` where `condition` does not hold.

    Args:
        condition: what a valid call fulfils; ints and bools of trace time, never a tensor's contents.
        message: what the caller did wrong, with the value at fault.

    Raises:
        AssertionError: "[INTERNAL_ERROR] [NCC_INKI016] Kernel validation exception: <message>".
    """
    if not condition:
        raise _validation_error(f"{PREFIX}{message}")


def assert_shape(tensor: Any, shape: Any, name: str = "tensor") -> None:
    """Check `tensor.shape`; None in `shape` stands for any size."""
    wanted, found = tuple(shape), tuple(tensor.shape)
    fits = len(wanted) == len(found) and all(w is None or w == f for w, f in zip(wanted, found, strict=True))
    kernel_assert(fits, f"{name} has shape {found}, expected {wanted}")


def _validation_error(text: str) -> AssertionError:
    try:
        from vibeserve.nki.errors import KernelError
    except ImportError:
        return AssertionError(text)
    return KernelError(text, code="NCC_INKI016")
