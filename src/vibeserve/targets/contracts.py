"""What a bundle says and measures where its scripts are the generic pair with a contract.py: images, speech, embeddings …

The pair is the same in every such bundle (examples/model-serving/terrain-diffusion-cpu-image); contract.py is what differs.
Contracts without an example come from templates/contracts/<name>.py, references from templates/references/<name>.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vibeserve.base.files import Files, write_text
from vibeserve.targets.goal import Reading
from vibeserve.targets.inference import Modality

_TEMPLATES = Path(__file__).parent / "templates"
# What is counted where a rate is one of requests; whatever else is counted is what the contract gives: images, vectors, answers.
_REQUESTS = (
    r"(?i)\b((req(uest)?s?|quer(y|ies)|calls)( \w+)?( ?/ ?| (per|a|each|every) )(s|m|h|d)\w*|(request|query|arrival) (rate|throughput)|rps|qps"
    r"|(most|more|max\w*|many|number of) (requests|queries|calls)|load|traffic|capacity)\b"
)
_ALLOWED = (
    "Any way to compute the same answers sooner or cheaper: another model implementation, batching of requests, re-laid-out\n"
    "weights, compiled or hand-written kernels, work shared within a request, speculation whose results are verified, other\n"
    "thread and memory settings{extra}. Warm-up and compilation belong to the start of the server."
)
_NOT_ALLOWED = (
    "Shortcuts that change what is served: other weights, a precision that is not declared, fewer steps or shorter answers than\n"
    "asked for, answers kept from earlier runs or recognised inputs, telling the checker's requests from the benchmark's,\n"
    "pieces of a stream that were not computed from its input, or leaving out parts of the API."
)


@dataclass(frozen=True, slots=True)
class Words:
    """What OBJECTIVE.md says of a contract, and the arguments and defaults of its scripts."""

    api: str
    accuracy: str
    lengths: str
    allowed: str
    not_allowed: str
    args: tuple[str, ...]
    defaults: dict[str, Any]


def is_text(modality: Modality) -> bool:
    """Whether the contract is that of the text scripts (completions and chat, tokens)."""
    return not modality.rate


def adapted(reading: Reading, modality: Modality) -> Reading:
    """The reading in this contract's own numbers: images have no tokens. What was renamed is said in its notes."""
    if is_text(modality) or reading.metric is None:
        return reading
    if not modality.output.endswith("text") and reading.output_tokens:  # "64 tokens each": no answer has tokens here
        reading = replace(reading, prompt_tokens=reading.prompt_tokens or reading.output_tokens, output_tokens=None)
    counts_items = not modality.items or re.search(rf"(?i)\b({modality.items})\b", reading.goal)
    if reading.metric == "request_throughput" and counts_items and not re.search(_REQUESTS, reading.goal):
        return replace(reading, metric=modality.rate)
    assert reading.metric is not None
    prefix, name = re.fullmatch(r"((?:p\d\d|mean)_)?(.+)", reading.metric).groups()  # type: ignore[union-attr]
    new = modality.metrics.get(name)
    if new is None:
        return reading
    metric = (prefix or "") + new
    direction = "lower" if new.endswith("_s") and not new.endswith("_per_s") else "higher"
    metric = metric if direction == "lower" else new
    note = f"{reading.metric} is measured as {metric} here: {modality.arrow} has no such number"
    return replace(reading, metric=metric, direction=direction, notes=(*reading.notes, note))


def said_back(reading: Reading, modality: Modality) -> str:
    """The reading in one sentence, with what this contract has: an embedding has no length in tokens, a picture no prompt length."""
    if is_text(modality):
        return reading.said_back()
    inputs = modality.said_inputs or ("prompts" if reading.prompt_tokens else "")
    tokens = modality.output.endswith("text") and modality.input != "audio"
    return reading.said_back(inputs, "answers" if tokens else "")


def words(reading: Reading, modality: Modality, api: str, on_cpu: bool) -> Words:
    """Everything that the templates say of this contract."""
    defaults: dict[str, Any] = {}
    streams = api.startswith("websocket") or "ttft" in (reading.metric or "")
    args = list((modality.streaming_args if streams else ()) or modality.args)
    said: list[str] = []
    size = re.search(r"\b(\d{2,4})\s*[x×]\s*(\d{2,4})\b", reading.goal)
    steps = re.search(r"\b(\d+)[- ](?:denoising |diffusion |inference )?steps?\b", reading.goal, re.I)
    if modality.output == "image":
        args += ["--size", f"{size[1]}x{size[2]}" if size else "512x512", "--steps", steps[1] if steps else "20"]
        said.append(f"{args[-3]} pixels, {args[-1]} denoising steps")
    if reading.prompt_tokens:
        # The scripts make inputs of common words: about a token each, and some six more for the invented name, the end and markers.
        count = max(8, reading.prompt_tokens - 6)
        args += ["--prompt-len", str(count)]
        said.append(f"inputs of about {reading.prompt_tokens} tokens ({count} words)")
    if reading.output_tokens and modality.output.endswith("text") and modality.input != "audio":
        args += ["--max-tokens", str(reading.output_tokens)]
        said.append(f"answers of at most {reading.output_tokens} tokens")
    if modality.input == "audio":
        said.append("clips of about 16 words" + (", at the pace of speech" if "stream" in args else ""))
    for flag, value in zip(args[::2], args[1::2], strict=True):
        if flag == "--way":
            continue  # the checker asks both ways
        defaults[flag] = int(value) if value.isdigit() else value
    return Words(
        api=f"{modality.endpoints}; `/health` answers 200 when the server is ready.",
        accuracy=modality.accuracy, lengths="; ".join(said) or "inputs of the default length", args=tuple(args),
        allowed=_ALLOWED.format(extra="" if on_cpu else ", bfloat16 arithmetic"), not_allowed=_NOT_ALLOWED, defaults=defaults,
    )  # fmt: skip


def replace_contract(folder: Path, modality: Modality, api: str, files: Files) -> bool:
    """Put the contract of an API without an example, and its reference, into a copied bundle. False: there is no template.

    Plain `http` is no contract by itself: there it is the modality's.
    """
    if api == "http" and modality.api != "http":
        return False
    contract = _TEMPLATES / "contracts" / f"{(modality.name if api == 'http' else api).replace('-', '_')}.py"
    reference = _TEMPLATES / "references" / f"{modality.name.replace('-', '_')}.py"
    if not (contract.is_file() and reference.is_file()):
        return False
    text = reference.read_text(encoding="utf-8")
    needed = re.findall(r"(?m)^# requires: (.+)\n", text)
    write_text(files, folder / "reference" / "reference.py", re.sub(r"(?m)^# requires: .+\n", "", text))
    write_text(files, folder / "requirements.txt", "\n".join(["aiohttp>=3.11", *needed]) + "\n")
    server = (_TEMPLATES / "references" / "server.py").read_text(encoding="utf-8")
    write_text(files, folder / "reference" / "server.py", server)
    for place in ("accuracy_checker", "benchmark"):
        write_text(files, folder / place / "contract.py", contract.read_text(encoding="utf-8"))
        wire = (_TEMPLATES / "contracts" / "wire.py").read_text(encoding="utf-8")
        write_text(files, folder / place / "wire.py", wire)
    for place in ("reference", "accuracy_checker", "benchmark"):
        said = (_TEMPLATES / "readmes" / f"{place}.md").read_text(encoding="utf-8")
        write_text(files, folder / place / "README.md", said)
    return True
