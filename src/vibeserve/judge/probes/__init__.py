"""One probe a file: `look(session) -> ProbeResult`. A new probe is a new module and a line in `ALL`."""

from vibeserve.judge.probes import (
    agreement,
    answering,
    batch,
    clock,
    forced,
    lengths,
    repeat,
    restart,
    sampling,
    sensitivity,
    stop,
    streaming,
    usage,
)

ALL = (
    answering, agreement, forced, sensitivity, repeat, batch, streaming, lengths, stop, sampling, usage, clock, restart,
)  # fmt: skip

__all__ = ["ALL"]
