"""Small readings of a run's document that several parts of the report share."""

from __future__ import annotations

from typing import Any

from vibeserve.base.provenance import Provenance, Quantity
from vibeserve.report import Pill
from vibeserve.report.sections import Tone

VERDICTS: dict[str | None, tuple[Tone, str]] = {
    "kept": ("good", "its whole interval is above 1: it became the new best"),
    "not-better": ("plain", "measured, and not shown to be better"),
    "rejected-accuracy": ("bad", "its answers are not those of the reference"),
    "rejected-integrity": ("bad", "a probe caught it, or what it is measured with was changed"),
    "failed-start": ("warn", "it could not be built or did not get ready"),
    "failed-run": ("warn", "it did not come through its measurement"),
    None: ("info", "in progress"),
}


def verdict_pill(verdict: str | None) -> Pill:
    """A verdict in its colour; hovering says what it means."""
    tone, meaning = VERDICTS.get(verdict, ("plain", ""))
    return Pill((verdict or "in progress").replace("-", " "), tone, meaning)


def quantity(fact: dict[str, Any] | None) -> Quantity | None:
    """An entry of the document's evidence as a quantity."""
    if not fact or fact.get("value") is None:
        return None
    return Quantity(
        float(fact["value"]), fact.get("unit") or "", provenance(fact.get("provenance")), fact.get("source") or ""
    )


def provenance(word: str | None) -> Provenance:
    """A provenance from its word; what says nothing of itself is assumed."""
    try:
        return Provenance(word or "")
    except ValueError:
        return Provenance.ASSUMED


def measured(value: float | None, unit: str, source: str) -> Quantity | None:
    """A measured quantity, or None."""
    return None if value is None else Quantity(float(value), unit, Provenance.MEASURED, source)


def title_of(entry: dict[str, Any]) -> str:
    """A round's name: its title, else its technique."""
    return str(entry.get("title") or entry.get("technique") or entry["candidate"]).replace("_", " ")


def short_of(entry: dict[str, Any]) -> str:
    """A round's technique in a word or two, for plots; of several at once the first, and how many more."""
    if entry["round"] == 0:
        return "reference"
    names = [name.strip() for name in str(entry.get("technique") or entry["candidate"]).split(",")]
    more = f" +{len(names) - 1}" if len(names) > 1 else ""
    return names[0].replace("_", " ").replace("-", " ") + more


def noise_pill(*reasons: str | None) -> Pill:
    """Whether the machine was quiet; hovering says what was seen."""
    seen = [reason for reason in reasons if reason]
    return Pill("noisy", "warn", "; ".join(seen)) if seen else Pill("quiet", "plain")


def entry_of(document: dict[str, Any], candidate: str | None) -> dict[str, Any] | None:
    """The round of a candidate."""
    return next((entry for entry in document["rounds"] if entry["candidate"] == candidate), None)


def moment(started: Any) -> str:
    """When a run began, to the minute; a dash where that is not known."""
    return f"{str(started)[:16].replace('T', ' ')} UTC" if started else "–"


def anchor(entry: dict[str, Any]) -> str:
    """The anchor of a round's explanation."""
    return f"round-{entry['round']}"


def improved(document: dict[str, Any]) -> bool:
    """Whether the final comparison shows a better server than the reference, beyond doubt."""
    interval = document["improvement"].get("ci95")
    return bool(interval) and interval[0] > 1.0


def metric_words(metric: dict[str, Any]) -> str:
    """The metric's name as words: 'output tokens per second', 'p95 latency'."""
    name = str(metric["name"])
    if metric["unit"] == "s":
        name = name.removesuffix("_s")
    return name.replace("_per_s", "_per_second").replace("_", " ")


def as_text(value: Any) -> str:
    """A value of the document in words."""
    match value:
        case None | "":
            return "–"
        case bool():
            return "yes" if value else "no"
        case list() | tuple():
            return ", ".join(as_text(item) for item in value) or "none"
        case dict():
            return ", ".join(f"{key} {as_text(item)}" for key, item in value.items() if item is not None) or "none"
        case float():
            return f"{value:g}"
    return str(value)
