"""One report of a profile: quality, bounds with gaps, engine times, findings ordered by relevance. Data, not prose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vibeserve.profiles import quality as checks
from vibeserve.profiles import summary
from vibeserve.profiles.bounds import Bounds, bounds
from vibeserve.profiles.investigations import Finding, investigate
from vibeserve.profiles.profile import Profile
from vibeserve.profiles.quality import Finding as QualityFinding
from vibeserve.profiles.sources import kept

_COVERED = ("dma", "tensor")


@dataclass(frozen=True, slots=True)
class SourceCost:
    """What one source line cost on one engine: summed durations (not wall clock), waits, rows, HBM bytes."""

    location: str
    engine: str
    instructions: int
    duration_s: float
    wait_s: float
    hbm_bytes: int


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that `profile analyze` reports. `texts`: the sources as they were kept with the profile, by their paths."""

    profile: str
    info: dict[str, Any]
    metrics: dict[str, Any]
    quality: tuple[QualityFinding, ...]
    bounds: Bounds
    findings: tuple[Finding, ...]
    sources: tuple[SourceCost, ...]
    texts: dict[str, str]
    wording: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The JSON of `profile analyze`."""
        return {
            "profile": self.profile,
            "provenance": self.info.get("provenance", "measured"),
            "source": self.info.get("source", ""),
            "quality": [item.document() for item in self.quality],
            "bounds": self.bounds.document(),
            "investigations": [item.document() for item in self.findings],
            "sources": [
                {
                    "location": item.location,
                    "engine": item.engine,
                    "instructions": item.instructions,
                    "duration_s": item.duration_s,
                    "wait_s": item.wait_s,
                    "hbm_bytes": item.hbm_bytes,
                }
                for item in self.sources
            ],
            "summary": self.metrics,
            "reading": list(self.wording),
        }


def analyze(profile: Profile, span: tuple[int, int] | None = None, pcore: int | None = None) -> Analysis:
    """Bounds, gaps, quality and every investigation of a profile, or of a window of it (ns)."""
    held = bounds(profile, span, pcore)
    return Analysis(
        profile=profile.name,
        info=dict(profile.info),
        metrics=summary.metrics(profile),
        quality=tuple(checks.quality(profile)),
        bounds=held,
        findings=tuple(investigate(profile, held=held)),
        sources=source_costs(profile, held),
        texts=kept(profile),
        wording=_wording(held),
    )


def source_costs(profile: Profile, held: Bounds, most: int = 200) -> tuple[SourceCost, ...]:
    """Cost by source line and engine, dearest first. Durations of one engine overlap: the sum is no wall-clock time.

    Of the whole run where no window was given: what starts the first transfer stands before the first DMA packet.
    """
    inside = held.window.on_core() if held.window.whole else held.window.starts_in()
    if not profile.rows("Instruction"):
        return ()
    with profile.connect(["Instruction"]) as db:
        rows = db.execute(
            f"""SELECT bir_debug_info_source_location, lower(engine), count(*), sum(duration_ns), sum(coalesce(evt_wait_time_ns, 0)),
              sum(coalesce(hbm_read_bytes, 0) + coalesce(hbm_write_bytes, 0))
            FROM Instruction WHERE coalesce(bir_debug_info_source_location, '') <> '' AND {inside}
            GROUP BY 1, 2 ORDER BY 4 DESC, 1, 2 LIMIT {most}"""
        ).fetchall()
    return tuple(SourceCost(row[0], row[1], row[2], row[3] / 1e9, row[4] / 1e9, int(row[5])) for row in rows)


def _wording(held: Bounds) -> tuple[str, ...]:
    """What the numbers say and no more: no cause of idle time, no promised saving."""
    if not held.bottleneck:
        return ("No engine has a busy span in the window: nothing can be said of a bottleneck.",)
    total = held.total_time_s
    shown = ", ".join(f"{name} ({held.engines[name] / total:.0%} of the time)" for name in held.bottleneck)
    out = [f"Busiest: {shown}."]
    if not any(name in _COVERED for name in held.bottleneck):
        out.append(f"{held.bottleneck[0]} is the bottleneck: inefficiency inside that engine is not analysed yet.")
    if len(held.bottleneck) > 1:
        out.append(
            "Several engines are within 10 % of each other: look at windows of the kernel one by one (--window)."
        )
    out.append(
        "A gap counts as lost time only in the bottleneck's family, and only once the gaps before it are near zero."
    )
    out.append("A gap is not a saving: bounds assume ideal rates, and another engine may set the time.")
    return tuple(out)
