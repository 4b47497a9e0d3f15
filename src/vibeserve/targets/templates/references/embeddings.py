# requires: torch>=2.6
# requires: transformers>=5.0
# requires: safetensors>=0.5
"""The reference server: a transformers encoder, its last hidden states averaged over the tokens, normalised, behind /v1/embeddings.

python reference.py --model-dir model --host 127.0.0.1 --port 8000
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from server import ApiError, best_device, json_of, model_name, serve

HERE = Path(__file__).resolve().parent


class Model:
    """Tokenizer and encoder, as transformers loads them."""

    def __init__(self, folder: Path, device: str, dtype: str):
        import torch
        from transformers import AutoModel, AutoTokenizer

        self.torch, self.device = torch, device
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model = model.eval().to(device)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def vector(self, text: str) -> list[float]:
        """The embedding of one text: the mean over its tokens, of length 1."""
        inputs = self.tokenizer(text, return_tensors="pt", truncation=True).to(self.device)
        with self.torch.inference_mode():
            states = self.model(**inputs).last_hidden_state[0].float()
        mean = states.mean(dim=0)
        return [float(value) for value in mean / mean.norm()]

    def answer(self, body: dict[str, Any]) -> tuple[str, bytes]:
        """One request: a text or a list of texts."""
        texts = body.get("input")
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise ApiError("input must be a text or a list of texts", "input")
        data = [{"object": "embedding", "index": i, "embedding": self.vector(text)} for i, text in enumerate(texts)]
        return json_of({"object": "list", "data": data, "model": model_name(HERE)})


def main() -> int:
    """Serve, or answer once."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--model-dir", type=Path, default=HERE / "model", help="the weights (default: model beside this file)"
    )
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--device", default="cpu", help="cuda, mps, cpu or auto (default %(default)s)")
    p.add_argument("--dtype", default="float32", help="(default %(default)s)")
    p.add_argument("--prompt", help="embed once instead of serving")
    args = p.parse_args()
    model = Model(args.model_dir, best_device(args.device), args.dtype)
    if args.prompt:
        sys.stdout.buffer.write(model.answer({"input": args.prompt})[1])
        return 0
    serve({"/v1/embeddings": model.answer}, model_name(HERE), args.host, args.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
