# requires: torch>=2.6
# requires: transformers>=5.0
# requires: numpy>=2.0
"""The reference server: a text-to-speech model of transformers behind /v1/audio/speech, WAV out.

python reference.py --model-dir model --host 127.0.0.1 --port 8000
"""

from __future__ import annotations

import argparse
import io
import sys
import wave
from pathlib import Path
from typing import Any

from server import ApiError, best_device, model_name, serve, text_of, whole

HERE = Path(__file__).resolve().parent


class Model:
    """The text-to-audio pipeline of transformers."""

    def __init__(self, folder: Path, device: str, dtype: str):
        import torch
        from transformers import pipeline

        self.torch = torch
        self.speak: Any = pipeline("text-to-audio", model=str(folder), device=device, dtype=getattr(torch, dtype))

    def answer(self, body: dict[str, Any]) -> tuple[str, bytes]:
        """One WAV file, 16 bits, mono."""
        import numpy as np

        text = text_of(body, "input")
        if body.get("response_format", "wav") != "wav":
            raise ApiError("response_format must be wav", "response_format")
        self.torch.manual_seed(whole(body, "seed", 0, 0, (1 << 32) - 1))
        made = self.speak(text)
        samples = np.asarray(made["audio"], dtype=np.float32).reshape(-1)
        buffer = io.BytesIO()
        with wave.open(buffer, "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(int(made["sampling_rate"]))
            file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
        return "audio/wav", buffer.getvalue()


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
    p.add_argument("--prompt", help="speak once (WAV on stdout) instead of serving")
    args = p.parse_args()
    model = Model(args.model_dir, best_device(args.device), args.dtype)
    if args.prompt:
        sys.stdout.buffer.write(model.answer({"input": args.prompt})[1])
        return 0
    serve({"/v1/audio/speech": model.answer}, model_name(HERE), args.host, args.port)
    return 0


if __name__ == "__main__":
    sys.exit(main())
