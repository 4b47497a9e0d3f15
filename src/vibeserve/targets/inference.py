"""What a model does, as a hypothesis: clues of modality.toml weighed over id, tags, config and goal."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError
from vibeserve.base.files import read_json
from vibeserve.base.paths import expanded
from vibeserve.targets.goal import read_goal
from vibeserve.targets.slug import family_and_size

_DATA = Path(__file__).with_name("modality.toml")


@dataclass(frozen=True, slots=True)
class Modality:
    """One contract: what goes in, what comes out, over which API; and the example to start from (None: there is none)."""

    name: str
    input: str
    output: str
    api: str
    task: str
    source: str | None = None
    closest: str = ""
    transport: str = ""
    base: str = ""
    chat_api: str = ""
    streaming_api: str = ""
    sources_by_hardware: dict[str, str] = field(default_factory=dict)
    rate: str = ""
    metrics: dict[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    streaming_args: tuple[str, ...] = ()
    endpoints: str = ""
    accuracy: str = ""
    measures: tuple[str, ...] = ()
    inputs: str = ""
    max_tokens: int = 0
    items: str = ""
    said_inputs: str = ""

    @property
    def arrow(self) -> str:
        """`input -> output`."""
        return f"{self.input} -> {self.output}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a model, from where it can be read without a network."""

    model: str
    goal: str = ""
    tags: tuple[str, ...] = ()
    config: tuple[str, ...] = ()

    def texts(self, where: str) -> tuple[str, ...]:
        """The texts that a clue looks at."""
        name = self.model.rstrip("/").split("/")[-1] if where == "id" else ""
        org = self.model.split("/")[0] if "/" in self.model and where == "id" else ""
        return {"id": (name, org), "tag": self.tags, "config": self.config, "goal": (self.goal,)}[where]


@dataclass(frozen=True, slots=True)
class Inference:
    """The likeliest modality, how sure (0 to 1), the alternatives, and what is to be asked about."""

    modality: Modality
    api: str
    confidence: float
    alternatives: tuple[Modality, ...]
    doubts: tuple[str, ...]
    chat: bool
    scores: dict[str, float]


@cache
def _tables() -> dict[str, Any]:
    return tomllib.loads(_DATA.read_text(encoding="utf-8"))


def modalities() -> dict[str, Modality]:
    """All contracts, by name."""
    made: dict[str, Modality] = {}
    for entry in _tables()["modality"]:
        fields: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        made[entry["name"]] = Modality(**fields)
    return made


def gather(model: str, goal: str) -> Evidence:
    """Read tags, architectures and file names of a model from a folder or the hub's local cache, where it is there."""
    folder = expanded(model)
    if not folder.is_dir():
        hub = Path(os.environ.get("HF_HUB_CACHE") or expanded("~/.cache/huggingface/hub"))
        found = sorted((hub / f"models--{model.replace('/', '--')}" / "snapshots").glob("*"))
        if not found:
            return Evidence(model, goal)
        folder = found[-1]
    config: list[str] = []
    for name, keys in (("config.json", ("architectures",)), ("model_index.json", ("_class_name",))):
        try:
            document = read_json(folder / name)
        except (OSError, ValueError):
            continue
        for key in keys:
            value = document.get(key) or []
            config += [value] if isinstance(value, str) else [str(item) for item in value]
        config += [key for key in ("vision_config", "audio_config") if key in document]
    config += ["adapter_config.json"] if (folder / "adapter_config.json").is_file() else []
    config += ["several gguf files"] if len(list(folder.glob("*.gguf"))) > 1 else []
    return Evidence(model, goal, tuple(_card_tags(folder / "README.md")), tuple(config))


def _card_tags(readme: Path) -> list[str]:
    """Pipeline tag, library and tags out of a model card's front matter."""
    try:
        text = readme.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    match = re.match(r"---\n(.*?)\n---", text, re.S)
    if not match:
        return []
    import yaml

    try:
        card = yaml.safe_load(match.group(1)) or {}
    except yaml.YAMLError:
        return []
    if not isinstance(card, dict):
        return []
    tags = card.get("tags") or []
    values = [card.get("pipeline_tag"), card.get("library_name"), *(tags if isinstance(tags, list) else [tags])]
    return [str(value) for value in values if value]


def _matches(entry: dict[str, Any], evidence: Evidence) -> list[str]:
    found = []
    for where in entry["where"]:
        for text in evidence.texts(where):
            if hit := re.search(entry["pattern"], text, re.I if where != "config" else 0):
                found.append(hit.group(0))
    return found


def infer(evidence: Evidence, *, modality: str | None = None, api: str | None = None) -> Inference:
    """Weigh the clues. `modality` (a name, or `INPUT -> OUTPUT`) and `api` are the user's corrections and win.

    Raises InputError for a modality that is none of modality.toml's.
    """
    known = modalities()
    scores: dict[str, float] = {}
    goal_scores: dict[str, float] = {}
    for clue in _tables()["clue"]:
        if _matches(clue, evidence):
            into = goal_scores if clue["where"] == ["goal"] else scores
            into[clue["for"]] = into.get(clue["for"], 0) + clue["weight"]
    reading = read_goal(evidence.goal)
    if reading.shared_prefix_tokens:  # however it is worded
        goal_scores.setdefault("prefix-caching", 6)
    base, sure = _likeliest_base(scores, goal_scores, known)
    doubts = [a["says"].format(match=hits[0]) for a in _tables()["ambiguity"] if (hits := _matches(a, evidence))]
    name = base
    workload = max((n for n in goal_scores if known[n].base == base), key=lambda n: goal_scores[n], default=None)
    if workload is not None:
        name = workload
    chat = _is_chat(evidence)
    alternatives = _alternatives(name, base, scores, goal_scores, known)
    converses = (
        workload
        or "long-context" in reading.features
        or re.search(r"\bchat|conversation|assistant|support bot|q&a", evidence.goal, re.I)
    )
    if base == "text" and not chat and converses and modality is None:
        doubts.append("it may be a base model, which is not trained to chat or to follow such a workload")
    if modality is not None:
        name, sure, alternatives = _asked_for(modality, known), 1.0, []
    chosen = known[name]
    confidence = max(0.1, min(1.0, sure - 0.15 * bool(alternatives) - 0.1 * bool(doubts)))
    return Inference(chosen, api or _api(chosen, evidence, chat), round(confidence, 2), tuple(known[n] for n in alternatives),
                     tuple(doubts), chat, {**scores, **{f"goal:{k}": v for k, v in goal_scores.items()}})  # fmt: skip


def _likeliest_base(scores: dict[str, float], goal: dict[str, float], known: dict[str, Modality]) -> tuple[str, float]:
    """The modality of the model itself; the goal decides where the model says nothing, or can do both."""
    together = dict(scores)
    for name, weight in goal.items():
        base = known[name].base or name
        together[base] = together.get(base, 0) + (weight if scores.get(base) or not scores else weight / 3)
    if not together:
        return "text", 0.3
    ranked = sorted(together.items(), key=lambda item: -item[1])
    best = ranked[0][1]
    second = ranked[1][1] if len(ranked) > 1 else 0.0
    return ranked[0][0], 0.95 if second < 0.4 * best else 0.75 if second < 0.75 * best else 0.55


def _alternatives(
    name: str, base: str, scores: dict[str, float], goal: dict[str, float], known: dict[str, Modality]
) -> list[str]:
    own = {name, base}
    other = [n for n, w in {**scores, **goal}.items() if n not in own and w >= 5 and (known[n].base or n) != base]
    if base == "image-text-to-text" and "text" not in own:
        other.append("text")
    others_of_goal = [n for n, w in goal.items() if n not in own and known[n].base == base and w >= 5]
    return list(dict.fromkeys([*other, *others_of_goal]))


def _asked_for(text: str, known: dict[str, Modality]) -> str:
    if text in known:
        return text
    squeezed = re.sub(r"\s*(->|→|to)\s*", "->", text.strip().lower())
    for name, modality in known.items():
        if squeezed == f"{modality.input}->{modality.output}":
            return name
    listed = ", ".join(f"{m.name} ({m.arrow})" for m in known.values())
    raise InputError(f"--modality {text!r}: unknown", hint=f"one of: {listed}")


def _words(text: str) -> str:
    return re.sub(r"[-_./]", " ", text)


def _is_chat(evidence: Evidence) -> bool:
    words = _words(evidence.model)
    if re.search(_tables()["base"], words, re.I):
        return False
    return bool(re.search(_tables()["chat"], words, re.I)) or "conversational" in evidence.tags


def _api(modality: Modality, evidence: Evidence, chat: bool) -> str:
    wants_chat = chat or re.search(r"\b(chat\w*|conversation\w*|assistant)\b", evidence.goal, re.I)
    if modality.chat_api and wants_chat:
        return modality.chat_api
    if modality.streaming_api and re.search(
        r"stream|(?<!x )(?<!than )(?<!times )real-?time(?![- ]factor)|live|partial|ttft|first (word|token|partial)",
        evidence.goal + " " + evidence.model,
        re.I,
    ):
        return modality.streaming_api
    return modality.api


def ask_suffix(model: str) -> str:
    """What ends a conversation's question so that a model that can think aloud answers at once; empty where nothing does."""
    name = model.rstrip("/").split("/")[-1]
    return next((t["suffix"] for t in _tables()["thinking"] if re.search(t["pattern"], name, re.I)), "")


@dataclass(frozen=True, slots=True)
class Source:
    """The example to start from, why it is that one, and what OBJECTIVE.md says of a machine's set-up."""

    name: str
    reason: str
    note: str = ""


def source_for(modality: Modality, machine: str | None, evidence: Evidence) -> Source:
    """The example to start from: by modality first, the machine second, and a machine's own set-up where it matters."""
    for start, name in modality.sources_by_hardware.items():
        if machine and machine.startswith(start):
            return Source(name, f"the example of {modality.arrow} on such a machine")
    generic = modality.source or modality.closest
    for setup in _tables()["setup"]:
        if setup["for"] != modality.name or not (machine and re.search(setup["machines"], machine)):
            continue
        if matters := _setup_matters(setup, evidence):
            return Source(setup["source"], f"{setup['of']}-specific set-up matters: {matters}", setup["note"])
        reason = f"nothing asks for {setup['of']}'s own set-up (kernels, compiled graphs, fixed shapes): --source {setup['source']} has it"
        return Source(generic, reason, setup["note"])
    if modality.source:
        return Source(generic, f"the example of {modality.arrow}")
    return Source(generic, f"no example has this contract; the nearest by transport ({modality.transport})")


def _setup_matters(setup: dict[str, Any], evidence: Evidence) -> str:
    """Why a machine's own set-up matters, in words; empty where nothing says so."""
    for hit in re.finditer(setup["said"], evidence.goal, re.I):
        if not re.match(r"(?i)(no|not|without) ", hit.group(0)):
            return f"the goal speaks of {hit.group(0)!r}"
    for where, text in (("id", evidence.model.rstrip("/").split("/")[-1]), *(("tag", tag) for tag in evidence.tags)):
        if hit_name := re.search(setup["made_for"], text, re.I):
            return f"the model's {where} says {hit_name.group(0)!r}"
    if family_and_size(evidence.model) == setup["model"]:
        return "the example is of this very model"
    return ""
