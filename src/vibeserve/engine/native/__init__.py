"""C++ kernels of the engine: sources, and how they are built and loaded."""

from .build import compiler, library

__all__ = ["compiler", "library"]
