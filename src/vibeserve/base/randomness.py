"""Random numbers are handed in: one seed, and an independent stream for each name.

A stream depends on the seed and on its name alone, so that adding a user of random numbers changes nobody else's, and
a resumed run draws what an unbroken one would have drawn.
"""

from __future__ import annotations

import hashlib
import random


def derive_seed(seed: int, *names: object) -> int:
    """A 63-bit seed that depends on `seed` and on `names` (by their text) alone."""
    text = "\x1f".join([str(seed), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def stream(seed: int, *names: object) -> random.Random:
    """An independent generator for `names` under `seed`."""
    return random.Random(derive_seed(seed, *names))
