# requires: torch>=2.6
# requires: transformers>=5.0
# requires: safetensors>=0.5
"""The reference server: a transformers model with a classifier on top, one text at a time, behind /classify.

A classifier's `probs` are probabilities: of one class among all, or of each by itself where the config says
`multi_label_classification`. A model with a single output, as reward models have it, gives that number as it is.

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
    """Tokenizer and classifier, as transformers loads them."""

    def __init__(self, folder: Path, device: str, dtype: str):
        import torch
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self.torch, self.device = torch, device
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        model: Any
        loaded: Any
        model, loaded = AutoModelForSequenceClassification.from_pretrained(
            folder, dtype=getattr(torch, dtype), output_loading_info=True
        )
        if loaded["missing_keys"]:  # they would be drawn by chance, anew each time
            raise SystemExit(f"error: {folder} is no classifier: it has no {', '.join(sorted(loaded['missing_keys']))}")
        self.model = model.eval().to(device)
        if self.tokenizer.pad_token is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token

    def scores(self, text: str) -> list[float]:
        """The scores of one text, a number a class."""
        inputs = self.tokenizer(text, return_tensors="pt", truncation=True).to(self.device)
        with self.torch.inference_mode():
            logits = self.model(**inputs).logits[0].double()
        if len(logits) > 1:
            each = self.model.config.problem_type == "multi_label_classification"
            logits = logits.sigmoid() if each else logits.softmax(dim=0)
        return [float(value) for value in logits]

    def answer(self, body: dict[str, Any]) -> tuple[str, bytes]:
        """One request: a text or a list of texts."""
        texts = body.get("input")
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
            raise ApiError("input must be a text or a list of texts", "input")
        data = []
        for index, text in enumerate(texts):
            scores = self.scores(text)
            best = max(range(len(scores)), key=lambda at: scores[at])
            label = self.model.config.id2label.get(best)
            data.append({"index": index, "label": label, "probs": scores, "num_classes": len(scores)})
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
    p.add_argument("--prompt", help="score once instead of serving")
    args = p.parse_args()
    model = Model(args.model_dir, best_device(args.device), args.dtype)
    if args.prompt:
        sys.stdout.buffer.write(model.answer({"input": args.prompt})[1])
        return 0
    serve({"/classify": model.answer}, model_name(HERE), args.host, args.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
