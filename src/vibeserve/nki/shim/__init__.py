"""`import vibeserve.nki.shim` makes `import nki` mean the simulator (a real nki that is installed is left alone)."""

from vibeserve.nki.shim.finder import install, uninstall

__all__ = ["install", "uninstall"]

install()
