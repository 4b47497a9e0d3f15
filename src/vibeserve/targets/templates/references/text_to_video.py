# requires: torch>=2.6
# requires: diffusers>=0.33
# requires: transformers>=4.47
# requires: numpy>=2.0
"""The reference server: a text-to-video pipeline of diffusers behind /v1/videos, raw frames out.

python reference.py --model-dir model --host 127.0.0.1 --port 8000
"""

from __future__ import annotations

import argparse
import base64
import re
import sys
from pathlib import Path
from typing import Any

from server import ApiError, best_device, json_of, model_name, serve, text_of, whole

HERE = Path(__file__).resolve().parent


class Model:
    """Any text-to-video pipeline of diffusers."""

    def __init__(self, folder: Path, device: str, dtype: str):
        import torch
        from diffusers import DiffusionPipeline

        self.torch = torch
        self.pipeline: Any = DiffusionPipeline.from_pretrained(folder, torch_dtype=getattr(torch, dtype)).to(device)
        self.pipeline.set_progress_bar_config(disable=True)

    def answer(self, body: dict[str, Any]) -> tuple[str, bytes]:
        """One video: base64 of raw RGB frames. The noise is drawn on the CPU from the seed."""
        import numpy as np

        prompt = text_of(body, "prompt")
        size = re.fullmatch(r"(\d{2,4})x(\d{2,4})", str(body.get("size") or "256x256"))
        if size is None:
            raise ApiError("size must be WIDTHxHEIGHT", "size")
        width, height = int(size.group(1)), int(size.group(2))
        noise = self.torch.Generator("cpu").manual_seed(whole(body, "seed", 0, 0, (1 << 32) - 1))
        frames = self.pipeline(
            prompt, width=width, height=height, num_frames=whole(body, "frames", 16, 1, 1000), generator=noise,
            num_inference_steps=whole(body, "num_inference_steps", 20, 1, 1000), output_type="np",
        ).frames[0]  # fmt: skip
        pixels = (np.clip(np.asarray(frames), 0, 1) * 255).round().astype(np.uint8)
        data = base64.b64encode(pixels.tobytes()).decode()
        count, height, width = pixels.shape[:3]
        return json_of({"data": [{"frames": data, "count": count, "height": height, "width": width}]})


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
    p.add_argument("--prompt", help="make one video (JSON on stdout) instead of serving")
    args = p.parse_args()
    model = Model(args.model_dir, best_device(args.device), args.dtype)
    if args.prompt:
        sys.stdout.buffer.write(model.answer({"prompt": args.prompt})[1])
        return 0
    serve({"/v1/videos": model.answer}, model_name(HERE), args.host, args.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
