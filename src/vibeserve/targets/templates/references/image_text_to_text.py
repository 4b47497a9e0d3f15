# requires: torch>=2.6
# requires: transformers>=5.0
# requires: Pillow>=10
# requires: safetensors>=0.5
"""The reference server: a vision-language model of transformers, greedy, behind /v1/chat/completions.

python reference.py --model-dir model --host 127.0.0.1 --port 8000
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
from pathlib import Path
from typing import Any

from server import ApiError, best_device, json_of, model_name, serve, whole

HERE = Path(__file__).resolve().parent


class Model:
    """Processor and model, as transformers loads them."""

    def __init__(self, folder: Path, device: str, dtype: str):
        import torch
        from transformers import AutoModelForImageTextToText, AutoProcessor

        self.torch, self.device = torch, device
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        model: Any = AutoModelForImageTextToText.from_pretrained(folder, dtype=getattr(torch, dtype))
        self.model = model.eval().to(device)

    def answer(self, body: dict[str, Any]) -> tuple[str, bytes]:
        """One greedy answer."""
        messages = [{"role": m.get("role", "user"), "content": parts(m)} for m in messages_of(body)]
        count = whole(body, "max_tokens", 128, 1, 8192)
        inputs = self.processor.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        ).to(self.device, self.model.dtype)
        with self.torch.inference_mode():
            ids = self.model.generate(**inputs, do_sample=False, max_new_tokens=count)[
                0, inputs["input_ids"].shape[1] :
            ]
        text = self.processor.decode(ids, skip_special_tokens=True)
        reason = "length" if len(ids) >= count else "stop"
        message = {"role": "assistant", "content": text}
        return json_of(
            {"choices": [{"index": 0, "message": message, "finish_reason": reason}], "model": model_name(HERE)}
        )


def messages_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The conversation of a request."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise ApiError("messages is missing", "messages")
    return messages


def parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message's parts as the processor takes them: pictures opened."""
    from PIL import Image

    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    made: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else []:
        if part.get("type") == "image_url":
            _, _, data = str(part["image_url"]["url"]).partition("base64,")
            try:
                made.append({"type": "image", "image": Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")})
            except (ValueError, OSError) as error:
                raise ApiError(f"image_url holds no base64 picture: {error}", "messages") from None
        else:
            made.append({"type": "text", "text": str(part.get("text", ""))})
    return made


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
    p.add_argument("--prompt", help="answer once, without a picture, instead of serving")
    args = p.parse_args()
    model = Model(args.model_dir, best_device(args.device), args.dtype)
    if args.prompt:
        sys.stdout.buffer.write(model.answer({"messages": [{"role": "user", "content": args.prompt}]})[1])
        return 0
    serve({"/v1/chat/completions": model.answer}, model_name(HERE), args.host, args.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
