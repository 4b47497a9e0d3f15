"""Names: the machine's short name, and a bundle's slug `<family>-<size>-<hardware-or-workload>`."""

from __future__ import annotations

import re

# How people name machines → the short name in slugs, and what vibeserve hardware knows it by.
_MACHINES = (
    (r"\b(trn|trainium)[- ]?3|trn3", "trn3"), (r"\b(trn|trainium)[- ]?2|trn2", "trn2"),
    (r"\b(trn|trainium)[- ]?1|trn1", "trn1"), (r"\btrainium\b", "trn2"), (r"\binf(erentia)?[- ]?2|inf2", "inf2"),
    (r"\bgb200\b", "gb200"), (r"\bb200\b", "b200"), (r"\bh200\b", "h200"), (r"\bh100\b", "h100"), (r"\bh20\b", "h20"),
    (r"\ba100\b", "a100"), (r"\ba10g?\b", "a10"), (r"\bl40s?\b", "l40s"), (r"\bl4\b", "l4"), (r"\bt4\b", "t4"),
    (r"\bv100\b", "v100"), (r"\b(rtx[- ]?)?(3090|4090|5090)\b", "rtx"), (r"\bmi3(00|25|55)x?\b", "mi300"),
    (r"\b(macbook|mac ?(studio|mini)?|apple|m[1-5]( (pro|max|ultra))?|mlx)\b", "macbook"), (r"\btpu\b", "tpu"),
    (r"\bcpu\b|\bxeon\b|\bepyc\b|\bzen\b|\bcores?\b|\blaptop\b", "cpu"),
)  # fmt: skip
_DROP = {
    "meta", "hf", "instruct", "chat", "it", "base", "pt", "sft", "dpo", "gguf", "awq", "gptq", "mlx", "exl2", "exl3", "nvfp4", "mxfp4", "dwq", "neuron", "onnx",
    "openvino", "bnb", "fp8", "fp16", "bf16", "int4", "int8", "4bit", "8bit", "6bit", "3bit", "quantized", "preview", "hq", "model",
    "community", "thinking", "reasoning", "unsloth", "optimized", "torch", "safetensors", "lora", "adapter",
}  # fmt: skip
_SIZE = re.compile(
    r"^(\d+x)?\d+(\.\d+)?[bm](-?a\d+(\.\d+)?b)?$|^(tiny|small|base|medium|large|xl|mini|nano|micro|turbo|schnell)(\.en)?$",
    re.I,
)


def hyphenate(text: str) -> str:
    """Lowercase letters, digits and hyphens only."""
    return re.sub(r"-{2,}", "-", re.sub(r"[^a-z0-9]+", "-", text.lower())).strip("-")


def machine_of(text: str | None) -> str | None:
    """The short name of the machine that a text names; the text itself in hyphen case where it is no known one."""
    if not text or not text.strip():
        return None
    for pattern, name in _MACHINES:
        if found := re.search(pattern, text, re.I):
            return f"rtx{found.group(2)}" if name == "rtx" else name
    return hyphenate(text) or None


def machine_in_goal(goal: str) -> str | None:
    """A machine that the goal names in passing; None where it names none."""
    for pattern, name in _MACHINES:
        if name not in ("cpu",) and (found := re.search(pattern, goal, re.I)):
            return f"rtx{found.group(2)}" if name == "rtx" else name
    return "cpu" if re.search(r"\bcpus?\b", goal, re.I) else None


def family_and_size(model: str) -> str:
    """`qwen3-8b` out of `Qwen/Qwen3-8B-Instruct-AWQ`: the name up to its size, packaging words left out."""
    name = model.rstrip("/").split("/")[-1].removesuffix(".gguf")
    parts = [part for part in re.split(r"[-_\s]+", name) if part]
    sized = any(_SIZE.match(part) for part in parts)
    kept: list[str] = []
    for part in parts:
        lower = part.lower()
        is_version = sized and re.fullmatch(r"v\d+(\.\d+)*|\d{4,}", lower)
        if lower in _DROP and not (lower == "base" and not any(_SIZE.match(p) for p in parts if p.lower() != "base")):
            continue
        if is_version or (re.fullmatch(r"q\d(_\w+)?|iq\d\w*|w\d+a\d+|k|m|s|\d+k", lower) and kept):
            continue
        kept.append(lower)
        if _SIZE.match(part):
            break
    return hyphenate("-".join(kept)) or "model"


def slug_for(model: str, hardware: str | None, workload: str) -> str:
    """`<family>-<size>-<hardware>-<workload>`, what is not known left out."""
    parts = [family_and_size(model)]
    parts += [hardware] if hardware and hardware not in parts[0].split("-") else []
    parts += [workload] if workload and workload not in parts[0] else []
    return hyphenate("-".join(parts))
