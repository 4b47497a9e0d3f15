"""One probe a file: `look(session) -> ProbeResult`. A new probe is a new module and a line in `ALL`."""

from vibeserve.judge.probes import agreement, answering, lengths, repeat, sensitivity, streaming, usage

ALL = (answering, agreement, sensitivity, repeat, streaming, lengths, usage)

__all__ = ["ALL"]
