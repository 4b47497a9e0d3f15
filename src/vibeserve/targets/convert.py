"""Turn a GGUF file or a PyTorch checkpoint into a plain fp32 model directory. Runs as a process of its own:

    python -m vibeserve.targets.convert SOURCE DESTINATION [--trust-remote-code]

so that importing vibeserve.targets never imports torch, and the memory is given back when it ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def convert(source: Path, destination: Path, *, trust_remote_code: bool = False) -> None:
    """Write config, generation config, tokenizer, chat template and fp32 safetensors of `source` to `destination`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    folder, loading = source, dict(options)
    if source.suffix == ".gguf":
        folder, options["gguf_file"] = source.parent, source.name
        # Without dequantize=True the blocks stay packed, and save_pretrained refuses to write them.
        loading = {**options, "quantization_config": GgufConfig(dequantize=True)}
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **loading)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    if source.suffix == ".gguf":
        model.config.name_or_path = model.config._name_or_path = ""
        _complete_generation_config(model, tokenizer)
    model.save_pretrained(destination, max_shard_size="4GB")
    tokenizer.save_pretrained(destination)
    _forget_source(destination / "tokenizer_config.json", str(folder))
    for name in ("config.json", "generation_config.json"):
        _forget_source(destination / name, str(folder))


def _complete_generation_config(model: Any, tokenizer: Any) -> None:
    # A GGUF file carries no generation_config.json; its special tokens are the tokenizer's.
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(tokenizer, name, None)
        if value is None:
            continue
        if getattr(model.config, name, None) is None:
            setattr(model.config, name, value)
        setattr(model.generation_config, name, value)


def _forget_source(path: Path, folder: str) -> None:
    """Drop this machine's paths from a saved JSON file: the cache is moved and compared."""
    if not path.is_file():
        return
    document = json.loads(path.read_text(encoding="utf-8"))
    kept = {key: value for key, value in document.items() if not (isinstance(value, str) and folder in value)}
    kept.pop("_from_model_config", None)
    kept.pop("gguf_file", None)
    path.write_text(json.dumps(kept, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> int:
    """Convert; the last line on stderr says what went wrong where it did."""
    parser = argparse.ArgumentParser(description="GGUF or PyTorch checkpoint to an fp32 model directory")
    parser.add_argument("source", type=Path)
    parser.add_argument("destination", type=Path)
    parser.add_argument("--trust-remote-code", action="store_true")
    args = parser.parse_args()
    try:
        convert(args.source, args.destination, trust_remote_code=args.trust_remote_code)
    except Exception as error:
        print(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
