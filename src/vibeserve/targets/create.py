"""VS Init: propose a bundle from a model id, a machine and a sentence; write it after a yes, by adapting an example."""

from __future__ import annotations

import ast
import json
import re
import secrets
import shutil
import tomllib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve.base.errors import InputError, MissingError
from vibeserve.base.files import DiskFiles, Files, write_text
from vibeserve.base.paths import expanded
from vibeserve.targets import contracts
from vibeserve.targets.bundle import packaged_bundles
from vibeserve.targets.bundle_toml import APIS
from vibeserve.targets.goal import Reading, read_goal
from vibeserve.targets.inference import Inference, Source, ask_suffix, gather, infer, modalities, source_for
from vibeserve.targets.objective import unit_of
from vibeserve.targets.slug import hyphenate, machine_in_goal, machine_of, slug_for

# Where an example itself is not there, the nearest one of the same contract.
_PLAIN_TEXT = ("Llama-3-8B", "smollm2-135m-cpu-chat")
_API_WORDS = {
    "openai-completions": "OpenAI completions", "openai-chat": "OpenAI chat completions", "openai-images": "OpenAI images",
    "openai-transcriptions": "OpenAI transcriptions", "openai-speech": "OpenAI speech", "openai-videos": "OpenAI videos",
    "openai-realtime": "OpenAI realtime", "openai-embeddings": "OpenAI embeddings", "websocket-audio": "a WebSocket audio stream", "http": "plain HTTP",
}  # fmt: skip
_ASK_GOAL = (
    "What should be measured? Please describe the workload in plain English: the metric (throughput, p95 latency, time to first "
    "token …), the load (requests per second, or how many at once), and the prompt and answer lengths."
)


@dataclass(frozen=True)
class Proposal:
    """What would be made; nothing is written before it is confirmed."""

    model: str
    revision: str | None
    machine: str | None
    machine_text: str
    inference: Inference
    reading: Reading
    source_name: str
    source: Path | None
    slug: str
    path: Path
    source_reason: str = ""
    machine_note: str = ""

    @property
    def question(self) -> str:
        """The one question."""
        modality, api = self.inference.modality, _API_WORDS.get(self.inference.api, self.inference.api)
        if self.reading.vague:
            return _ASK_GOAL
        where = f"{self.shown_path}/"
        doubts = "".join(f" Also: {doubt}{'' if doubt.endswith('?') else '.'}" for doubt in self.inference.doubts)
        if modality.source is None:
            doubts += f" No example has this contract: it would be adapted from the {modality.transport} pattern of {modality.closest}."
            doubts += f" Which contract should be measured: {'; or '.join(modality.measures)}?"
        if self.inference.alternatives:
            others = " or ".join(other.arrow for other in self.inference.alternatives)
            return (
                f"I think this is probably {modality.arrow} via {api}, but it may be {others}. Which modality should this "
                f"benchmark exercise? I would create {where}.{doubts}"
            )
        return f"I infer this is {modality.arrow} via {api}, and I would create {where}. Is that right?{doubts}"

    @property
    def said_back(self) -> str:
        """The reading of the goal, in one sentence."""
        return contracts.said_back(self.reading, self.inference.modality)

    @property
    def shown_path(self) -> str:
        """The bundle's path as commands are written with it: relative where it lies below here."""
        here = Path.cwd()
        return str(self.path.relative_to(here)) if self.path.is_relative_to(here) else str(self.path)

    @property
    def next_command(self) -> str:
        """The exact command in the form of three flags."""
        path = self.shown_path
        return f"vibeserve --ref {path}/reference --acc-checker {path}/accuracy_checker --bench {path}/benchmark"

    def document(self, written: bool = False, files: Collection[Path] = ()) -> dict[str, Any]:
        """The JSON of `init`."""
        modality = self.inference.modality
        return {
            "modality": {
                "name": modality.name, "input": modality.input, "output": modality.output, "api": self.inference.api,
                "confidence": self.inference.confidence, "doubts": list(self.inference.doubts),
                "alternatives": [{"name": a.name, "input": a.input, "output": a.output, "api": a.api} for a in self.inference.alternatives],
            },
            "source_example": self.source_name, "source_reason": self.source_reason, "source_path": self.source, "slug": self.slug, "path": self.shown_path,
            "question": self.question, "reading": {**_reading(self.reading), "said_back": self.said_back},
            "hardware": self.machine, "written": written, "files": [str(f.relative_to(self.path)) for f in files],
            "next_command": self.next_command,
        }  # fmt: skip


def _reading(reading: Reading) -> dict[str, Any]:
    return {name: getattr(reading, name) for name in Reading.__dataclass_fields__}


def propose(
    model: str,
    hardware: str | None = None,
    goal: str = "",
    *,
    revision: str | None = None,
    modality: str | None = None,
    api: str | None = None,
    slug: str | None = None,
    exact_slug: bool = False,
    dest: Path | None = None,
    source: str | None = None,
) -> Proposal:
    """Infer modality, API, source example and slug, and read the goal; writes nothing, asks no network.

    `modality`, `api`, `slug` and `source` are the user's corrections. Raises InputError (exit 2) for a correction that
    is none, and for a directory that is already there.
    """
    if not model.strip():
        raise InputError("no model is given", hint="--model ORG/NAME, or the path of a checkpoint directory")
    if api is not None and api not in APIS:
        raise InputError(f"--api {api!r}: unknown", hint=f"one of: {', '.join(APIS)}")
    evidence = gather(model, goal)
    inference = infer(evidence, modality=modality, api=api)
    machine = machine_of(hardware) or machine_in_goal(goal)
    reading = contracts.adapted(read_goal(goal), inference.modality)
    nearest = source_for(inference.modality, machine, evidence)
    chosen_source = Source(source, "asked for", nearest.note) if source else nearest
    name = chosen_source.name
    folder = dest or Path("examples") / "model-serving"
    chosen = (
        slug
        if slug and exact_slug
        else hyphenate(slug)
        if slug
        else slug_for(model, machine, _workload(inference, reading))
    )
    if not chosen or "/" in chosen or chosen in (".", ".."):
        raise InputError(f"--slug {slug!r}: not a name for a directory", hint="letters, digits and hyphens")
    path = (folder / chosen).absolute()
    if path.exists() or path.is_symlink():
        raise InputError(
            f"{path} is already there; it is never overwritten", hint="choose another --slug, or remove it first"
        )
    return Proposal(model, revision, machine, hardware or machine or "whatever machine runs it", inference, reading, name,
                    _find_source(name, explicit=source is not None, plain=inference.modality.name == "text"), chosen, path, chosen_source.reason, chosen_source.note)  # fmt: skip


def _workload(inference: Inference, reading: Reading) -> str:
    modality = inference.modality
    if modality.base:
        return modality.name
    if modality.name != "text":
        return ""
    if "long-context" in reading.features:
        return "long-context"
    return "chat" if inference.api == "openai-chat" else ""


def _find_source(name: str, *, explicit: bool, plain: bool) -> Path | None:
    """The user's own bundle of that name, else the packaged one, else (plain text only) a sibling of the same contract."""
    packaged = packaged_bundles()
    for candidate in (name, *(_PLAIN_TEXT if plain and not explicit else ())):
        own = Path("examples") / "model-serving" / candidate
        for path in (Path(candidate) if explicit else own, own):
            if (path / "reference" / "reference.py").is_file():
                return path.resolve()
        if candidate in packaged:
            return packaged[candidate]
    if explicit:
        raise InputError(f"--source {name!r}: no such bundle", hint=f"a directory, or one of: {', '.join(packaged)}")
    return None


# ------------------------------------------------------------------------------------------------------- writing


def write(proposal: Proposal, *, known_hardware: Collection[str] = (), files: Files | None = None) -> list[Path]:
    """Write the bundle; whole or not at all. Returns its files.

    Raises InputError where the goal is vague or the directory is there, MissingError (exit 3) where this version has no
    example to start from.
    """
    files = files or DiskFiles()
    if proposal.reading.vague:
        raise InputError("the goal names no metric", hint=_ASK_GOAL, code="vague-goal")
    if proposal.source is None:
        raise MissingError(
            f"this version has no example '{proposal.source_name}' for {proposal.inference.modality.arrow}",
            hint="--source NAME starts from another one; examples here: " + ", ".join(packaged_bundles()),
            code="no-example",
        )
    if proposal.path.exists():
        raise InputError(f"{proposal.path} is already there; it is never overwritten", hint="choose another --slug")
    temporary = proposal.path.with_name(f".{proposal.slug}.{secrets.token_hex(4)}.tmp")
    files.make_dir(temporary.parent)
    try:
        ignore = shutil.ignore_patterns("model", "draft_model", "__pycache__", "*.pyc", ".*")
        shutil.copytree(proposal.source, temporary, ignore=ignore)
        _replace_contract(proposal, temporary, files)
        _adapt(proposal, temporary, set(known_hardware), files)
        files.replace(temporary, proposal.path)
    except BaseException:
        files.remove(temporary)
        raise
    return sorted(path for path in proposal.path.rglob("*") if path.is_file())


def _replace_contract(proposal: Proposal, folder: Path, files: Files) -> None:
    """Where no example has the contract, the generic scripts of the closest one get it from a template."""
    modality, api = proposal.inference.modality, proposal.inference.api
    if modality.source is not None or not (folder / "benchmark" / "contract.py").is_file():
        return
    said = folder / "bundle.toml"
    serving = tomllib.loads(said.read_text(encoding="utf-8")).get("serving", {}) if said.is_file() else {}
    if (serving.get("modality"), serving.get("api")) == (modality.arrow, api):
        return  # a bundle of the user's own, which has this contract
    if not contracts.replace_contract(folder, modality, api, files):
        another = f"--api {modality.api}, or " if api != modality.api else ""
        raise MissingError(
            f"there is neither an example nor a template for {modality.arrow} via {api}",
            hint=f"{another}--source DIR starts from a bundle of yours whose contract.py has it, --modality NAME corrects the modality",
            code="no-example",
        )


def _adapt(proposal: Proposal, folder: Path, known_hardware: set[str], files: Files) -> None:
    source_meta = json.loads((folder / "reference" / "meta.json").read_text(encoding="utf-8"))
    for name in ("reference", "accuracy_checker", "benchmark"):
        readme = folder / name / "README.md"
        if readme.is_file():
            write_text(files, readme, _renamed(readme.read_text(encoding="utf-8"), proposal, source_meta))
    write_text(files, folder / "reference" / "meta.json", json.dumps(_meta(proposal, source_meta), indent=2) + "\n")
    values = _values(proposal, known_hardware)
    for name in ("OBJECTIVE.md", "README.md", "bundle.toml"):
        write_text(files, folder / name, _render(name, values))
    device, dtype = values["device"], values["dtypes"][0]
    for script in (folder / "reference" / "reference.py", folder / "accuracy_checker" / "checker.py"):
        text = script.read_text(encoding="utf-8")
        for flag, default in (
            ("--device", device),
            ("--dtype", dtype),
            *([values["quiet"]] if values["quiet"] else []),
        ):
            text = set_default(text, flag, default)
        write_text(files, script, text)
    for script in (folder / "benchmark" / "benchmark.py", *folder.glob("*/contract.py")):
        text = script.read_text(encoding="utf-8")
        for flag, value in values["defaults"].items():
            text = set_default(text, flag, value)
        write_text(files, script, text)
    _trim_requirements(folder, files)


def _renamed(text: str, proposal: Proposal, source_meta: dict[str, Any]) -> str:
    assert proposal.source is not None
    text = text.replace(proposal.source.name, proposal.slug)
    if (old := source_meta.get("model_id")) and old != proposal.model:
        # What a README says about where the source's weights come from does not hold for another model.
        text = re.sub(
            r"(?s)`meta\.json` says.*?`vibeserve materialize`",
            "`meta.json` says which model; `vibeserve materialize`",
            text,
        )
        text = text.replace(old, proposal.model)
    return text


def _meta(proposal: Proposal, source_meta: dict[str, Any]) -> dict[str, Any]:
    local = expanded(proposal.model)
    meta: dict[str, Any] = {
        "model_id": local.name if local.exists() else proposal.model,
        "revision": proposal.revision,
        "task": proposal.inference.modality.task,
    }
    if local.exists():
        meta["sources"] = [f"file:{local.resolve()}"]
    elif source_meta.get("model_id") == proposal.model and "sources" in source_meta:
        meta["sources"] = source_meta["sources"]
    return meta


def _values(proposal: Proposal, known_hardware: set[str]) -> dict[str, Any]:
    """Everything that the templates say."""
    reading, modality = proposal.reading, proposal.inference.modality
    on_cpu = proposal.machine in (None, "cpu")
    chat = proposal.inference.api == "openai-chat"
    generic = not contracts.is_text(modality)
    said_of = contracts.words(reading, modality, proposal.inference.api, on_cpu)
    shared = reading.shared_prefix_tokens or (1024 if modality.name == "prefix-caching" else 0)
    long = "long-context" in reading.features
    prompt = reading.prompt_tokens or (4096 if long else 64 if on_cpu else 256)
    output = reading.output_tokens or modality.max_tokens or (64 if on_cpu else 128)
    arguments = list(said_of.args) if generic else ["--endpoint", "/v1/chat/completions" if chat else "/v1/completions"]
    defaults: dict[str, Any] = (
        said_of.defaults if generic else {"--endpoint": arguments[1], "--prompt-len": prompt, "--max-tokens": output}
    )
    quiet = [] if generic else _unthinking(proposal)
    defaults |= {quiet[0]: quiet[1]} if quiet else {}
    if reading.rate is not None:
        arguments += ["--rate", f"{reading.rate:g}"]
        defaults["--rate"] = reading.rate
        load = f"{reading.rate:g} requests/s, Poisson arrivals"
    else:
        concurrency = reading.concurrency or (4 if generic else 16)
        arguments += ["--concurrency", str(concurrency)]
        defaults["--concurrency"] = concurrency
        load = f"{concurrency} requests in flight" + (
            "" if reading.concurrency else " (by default: the goal names no load)"
        )
    if not generic:
        arguments += ["--prompt-len", str(prompt), "--max-tokens", str(output)]
        arguments += ["--shared-prefix", str(shared)] if shared else []
        arguments += quiet
    checker_args = ["--prefix-words", str(min(shared, 2000))] if shared and not generic else []
    if long and prompt >= 1024 and modality.name in ("text", "prefix-caching"):
        checker_args += ["--long-tokens", str(prompt)]
    slo = {k: v for k, v in (("ttft_s", reading.slo_ttft_s), ("tpot_s", reading.slo_tpot_s)) if v is not None}
    unsaid = [n for n, v in (("prompt", reading.prompt_tokens), ("answer", reading.output_tokens)) if v is None]
    said = f" (by default: the goal names no {' or '.join(unsaid)} length)" if unsaid else ""
    exact = (
        "greedy token ids equal to Hugging Face's in fp32, exactly, alone and among other requests, streamed and not."
    )
    near = (
        "greedy token ids equal to Hugging Face's in bfloat16; a divergence passes, and is listed, only where the gap of logits is "
        "below 0.125, one step of bfloat16 between 16 and 32, and 98 % of the tokens are the reference's first choice."
    )
    lengths = (
        f"{prompt} prompt tokens"
        + (f" after {shared} shared ones" if shared else "")
        + f", {output} output tokens{said}"
    )
    lengths = modality.inputs.format(output=output) if modality.inputs else lengths
    api = (
        "OpenAI-compatible `/v1/completions` and `/v1/chat/completions`, streaming (SSE) and not; `/v1/models`; `/health` answers "
        "200 when the server is ready."
    )
    # What is asked of a text workload is special; what serves it is not.
    served = modalities()[modality.base].arrow if modality.base and not generic else modality.arrow
    return {
        "title": f"Serve {proposal.model} on {proposal.machine_text}", "model": proposal.model, "revision": proposal.revision,
        "modality": modality.arrow, "served": served, "hardware": proposal.machine_text, "metric": reading.metric,
        "direction": reading.direction, "limit": (f", to stay within {reading.limit:g} s" if reading.limit else "") + (f", with {reading.bound}" if reading.bound else "") + "".join(f", with {name[:-2]} at most {seconds:g} s" for name, seconds in slo.items()),
        "unit": unit_of(reading.metric or ""), "load": load,
        "lengths": said_of.lengths if generic else lengths, "api": said_of.api if generic else f"{api} {modality.endpoints}".strip(), "said_of": said_of,
        "generic": generic,
        "api_name": proposal.inference.api, "accuracy": said_of.accuracy if generic else f"{exact if on_cpu else near} {modality.accuracy}".strip(), "goal": reading.goal,
        "notes": [*reading.notes, *proposal.inference.doubts, *([proposal.machine_note] if proposal.machine_note else []), *([f"`{quiet[1]}` ends each question: the model answers without thinking aloud first"] if quiet else [])], "allowed": "" if on_cpu else ", bfloat16 arithmetic",
        "target": proposal.machine if proposal.machine in known_hardware else None,
        "dtypes": ["float32"] if on_cpu else ["bfloat16", "float32"], "margin": 0.0 if on_cpu else 0.125,
        "min_top1": 1.0 if on_cpu else 0.98, "slo": slo, "device": "cpu" if on_cpu else "auto",
        "checker_args": [*checker_args, *quiet], "quiet": quiet, "benchmark_args": arguments,
        "defaults": defaults, "slug": proposal.slug, "path": proposal.shown_path, "command": proposal.next_command,
        "source": proposal.source.name if proposal.source else "",
    }  # fmt: skip


def _unthinking(proposal: Proposal) -> list[str]:
    """Flag and words with which a model that can think aloud answers at once; none where the goal asks for thinking."""
    if proposal.inference.api != "openai-chat" or re.search(r"(?i)\b(think|reason)", proposal.reading.goal):
        return []
    suffix = ask_suffix(proposal.model)
    return ["--ask-suffix", suffix] if suffix else []


def _render(name: str, values: dict[str, Any]) -> str:
    from jinja2 import Environment, StrictUndefined

    text = (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True, autoescape=False)
    return re.sub(r"\n{3,}", "\n\n", environment.from_string(text).render(**values))


def set_default(source: str, flag: str, value: Any) -> str:
    """`source` with another default for an argparse flag; unchanged where it has no such flag."""
    for node in ast.walk(ast.parse(source)):
        if not (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"
        ):
            continue
        if not any(isinstance(arg, ast.Constant) and arg.value == flag for arg in node.args):
            continue
        lines = source.splitlines(keepends=True)

        def offset(line: int, column: int, lines: list[str] = lines) -> int:
            return sum(len(text) for text in lines[: line - 1]) + len(lines[line - 1].encode()[:column].decode())

        for keyword in node.keywords:
            if keyword.arg == "default":
                assert keyword.value.end_lineno is not None
                assert keyword.value.end_col_offset is not None
                start = offset(keyword.value.lineno, keyword.value.col_offset)
                end = offset(keyword.value.end_lineno, keyword.value.end_col_offset)
                return source[:start] + _literal(value) + source[end:]
        last = node.args[-1]
        assert last.end_lineno is not None
        assert last.end_col_offset is not None
        at = offset(last.end_lineno, last.end_col_offset)
        return f"{source[:at]}, default={_literal(value)}{source[at:]}"
    return source


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _trim_requirements(folder: Path, files: Files) -> None:
    """Keep what the three scripts import, and what transformers needs to read a checkpoint."""
    path = folder / "requirements.txt"
    if not path.is_file():
        return
    imported: set[str] = {"safetensors"}
    for script in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if re.split(r"[<>=!~\[ ;]", line.strip())[0].replace("-", "_").lower() in imported]
    write_text(files, path, "\n".join(kept) + "\n")
