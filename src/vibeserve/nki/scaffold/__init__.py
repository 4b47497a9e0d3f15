"""`nki new`: a kernel of one's own, started from a template that runs and passes as made."""

from vibeserve.nki.scaffold.new import KINDS, new

__all__ = ["KINDS", "new"]
