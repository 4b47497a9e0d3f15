"""The NKI kernel language and instruction set on CPU."""
