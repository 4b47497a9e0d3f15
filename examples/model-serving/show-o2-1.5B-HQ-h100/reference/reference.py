"""The reference server: a text-to-image model behind OpenAI's image API, one image at a time.

    python reference.py --model-dir model --host 127.0.0.1 --port 8000
    python reference.py --prompt "a readable sign that says Vinloro" --output sign.png

A folder with a model_index.json is a pipeline of diffusers. Show-o2 is not: its network lies in its authors' repository, of
which --showo-source names a checkout (see README.md). The seed decides the noise, which is drawn on the CPU, so that it is the
same on every machine.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import re
import signal
import struct
import sys
import threading
import time
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MAX_BODY_BYTES = 1 << 20


class ApiError(Exception):
    """An error in OpenAI's shape; `param` is the field that it is about."""

    def __init__(self, message: str, param: str | None = None, status: int = 400):
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": None}}


def best_device(torch: Any) -> str:
    """The accelerator that torch sees, else the CPU."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


class Pipeline:
    """Any text-to-image pipeline of diffusers."""

    side = 0  # any size

    def __init__(self, folder: Path, device: str, dtype: str):
        import torch
        from diffusers import DiffusionPipeline

        self.torch = torch
        pipeline = DiffusionPipeline.from_pretrained(folder, torch_dtype=getattr(torch, dtype))
        self.pipeline: Any = pipeline.to(best_device(torch) if device == "auto" else device)
        self.pipeline.set_progress_bar_config(disable=True)

    def draw(self, prompt: str, width: int, height: int, seed: int, steps: int, guidance: float) -> bytes:
        """width x height RGB pixels."""
        noise = self.torch.Generator("cpu").manual_seed(seed)
        image = self.pipeline(
            prompt, width=width, height=height, num_inference_steps=steps, guidance_scale=guidance, generator=noise
        ).images[0]
        return bytes(image.convert("RGB").tobytes())


class ShowO2:
    """Show-o2 by its authors' code: a language model that predicts the velocity of the image's latents, and Wan's decoder."""

    def __init__(self, folder: Path, device: str, dtype: str, source: Path):
        import torch

        if not (source / "models").is_dir():
            raise SystemExit(f"error: {source} is no checkout of Show-o (no models/); README.md says how to get one")
        sys.path.insert(0, str(source))
        from models import Showo2Qwen2_5, WanVAE
        from models.misc import get_text_tokenizer
        from omegaconf import OmegaConf
        from transport import Sampler, create_transport
        from utils import get_hyper_params, path_to_llm_name

        self.torch, self.device = torch, best_device(torch) if device == "auto" else device
        self.dtype = getattr(torch, dtype)
        config = OmegaConf.load(source / "configs" / "showo2_1.5b_demo_432x432.yaml")
        network = config.model.showo
        self.side = int(config.dataset.preprocessing.resolution)
        self.tokenizer, tokens = get_text_tokenizer(
            network.llm_model_path, add_showo_tokens=True, return_showo_token_ids=True,
            llm_name=path_to_llm_name[network.llm_model_path],
        )  # fmt: skip
        network.llm_vocab_size = len(self.tokenizer)
        self.model: Any = Showo2Qwen2_5.from_pretrained(str(folder), use_safetensors=False)
        self.model = self.model.to(self.device).to(self.dtype).eval()
        self.decoder: Any = WanVAE(vae_pth=str(folder / "Wan2.1_VAE.pth"), dtype=self.dtype, device=self.device)
        if network.add_time_embeds:  # one place for the time before the image's tokens
            config.dataset.preprocessing.num_image_tokens += 1
            config.dataset.preprocessing.num_video_tokens += 1
        names = (
            "image_tokens video_tokens length text_length channels patch width height pad bos eos boi eoi bov eov "
            "image_pad video_pad guidance".split()
        )
        self.sizes: dict[str, Any] = dict(zip(names, get_hyper_params(config, self.tokenizer, tokens), strict=True))
        flow = config.transport
        self.flow = flow
        self.sampler: Any = Sampler(create_transport(
            path_type=flow.path_type, prediction=flow.prediction, loss_weight=flow.loss_weight, train_eps=flow.train_eps,
            sample_eps=flow.sample_eps, snr_type=flow.snr_type, do_shift=flow.do_shift,
            seq_len=config.dataset.preprocessing.num_image_tokens,
        ))  # fmt: skip

    def draw(self, prompt: str, width: int, height: int, seed: int, steps: int, guidance: float) -> bytes:
        """side x side RGB pixels: Euler steps of the flow, each over the prompt and over no prompt, then the decoder."""
        from models import omni_attn_mask_naive
        from models.misc import prepare_gen_input
        from utils import denorm

        torch, s = self.torch, self.sizes
        with torch.inference_mode():
            text, empty, places, empty_places = prepare_gen_input(
                [prompt], self.tokenizer, s["image_tokens"], s["bos"], s["eos"], s["boi"], s["eoi"], s["pad"], s["image_pad"],
                s["text_length"], self.device,
            )  # fmt: skip
            generator = torch.Generator("cpu").manual_seed(seed)
            shape = (1, s["channels"], s["height"] * s["patch"], s["width"] * s["patch"])
            noise = torch.randn(shape, generator=generator).to(self.device, self.dtype)
            if guidance > 0:
                noise = torch.cat([noise, noise])
                text, places = torch.cat([text, empty]), torch.cat([places, empty_places])
            mask = omni_attn_mask_naive(text.size(0), s["length"], places, self.device).to(self.dtype)
            sample = self.sampler.sample_ode(
                sampling_method=self.flow.sampling_method, num_steps=steps, atol=self.flow.atol, rtol=self.flow.rtol,
                reverse=self.flow.reverse, time_shifting_factor=self.flow.time_shifting_factor,
            )  # fmt: skip
            latents = sample(
                noise, self.model.t2i_generate, text_tokens=text, attention_mask=mask, modality_positions=places,
                output_hidden_states=True, max_seq_len=s["length"], guidance_scale=guidance,
            )[-1][:1]  # fmt: skip
            pixels = denorm(self.decoder.batch_decode(latents.unsqueeze(2)).squeeze(2))[0]
        return bytes(pixels.tobytes())


Model = Pipeline | ShowO2


def png(pixels: bytes, width: int, height: int) -> bytes:
    """An 8-bit RGB PNG."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = b"".join(b"\0" + pixels[at : at + 3 * width] for at in range(0, len(pixels), 3 * width))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    packed = zlib.compress(rows, 1)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def number(body: dict[str, Any], name: str, default: float, low: float, high: float, whole: bool = True) -> Any:
    """A number of the request, within its bounds."""
    value = body.get(name)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not low <= value <= high:
        raise ApiError(f"{name} must be a {'whole ' * whole}number from {low} to {high}", name)
    return value


def parse(body: Any, model: Model) -> tuple[list[Any], int]:
    """The arguments of `draw`, and how many images."""
    if not isinstance(body, dict):
        raise ApiError("the body is not a JSON object")
    prompt = body.get("prompt")
    if not isinstance(prompt, str) or not prompt.strip():
        raise ApiError("prompt is missing", "prompt")
    default = f"{model.side}x{model.side}" if model.side else "512x512"
    size = re.fullmatch(r"(\d{2,4})x(\d{2,4})", str(body.get("size") or default))
    if size is None or (model.side and size.group(0) != default):
        raise ApiError(f"size must be {default if model.side else 'WIDTHxHEIGHT'}", "size")
    if body.get("response_format", "b64_json") != "b64_json":
        raise ApiError("response_format must be b64_json", "response_format")
    seed = number(body, "seed", int(time.time_ns() & 0x7FFFFFFF), 0, (1 << 32) - 1)
    steps = number(body, "num_inference_steps", 20, 1, 1000)
    guidance = number(body, "guidance_scale", 5.0, 0, 100, whole=False)
    return [prompt, int(size.group(1)), int(size.group(2)), seed, steps, guidance], number(body, "n", 1, 1, 8)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    model: Model
    turn = threading.Lock()

    def log_message(self, *_: Any) -> None:
        """No access log."""

    def do_GET(self) -> None:
        """Health and the list of models."""
        if self.path == "/health":
            self.send_json(200, {"status": "ok"})
        elif self.path == "/v1/models":
            self.send_json(200, {"object": "list", "data": [{"id": model_name(), "object": "model"}]})
        else:
            self.send_json(404, {"error": {"message": f"no such path: {self.path}", "type": "invalid_request_error"}})

    def do_POST(self) -> None:
        """Draw."""
        try:
            size = int(self.headers.get("Content-Length") or 0)
            if size > MAX_BODY_BYTES:
                self.close_connection = True
                raise ApiError("the body is too large", status=413)
            try:
                body = json.loads(self.rfile.read(size))
            except ValueError:
                raise ApiError("the body is not JSON") from None
            if self.path != "/v1/images/generations":
                raise ApiError(f"no such path: {self.path}", status=404)
            what, count = parse(body, self.model)
            with self.turn:
                pictures = [self.model.draw(*what[:3], what[3] + i, *what[4:]) for i in range(count)]
            images = [png(pixels, what[1], what[2]) for pixels in pictures]
            data = [{"b64_json": base64.b64encode(image).decode()} for image in images]
            self.send_json(200, {"created": int(time.time()), "data": data})
        except ApiError as error:
            self.send_json(error.status, error.body)

    def send_json(self, status: int, value: Any) -> None:
        """Send a JSON body."""
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Server(ThreadingHTTPServer):
    """A thread a connection."""

    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_: Any) -> None:
        """A client that breaks off is no news."""


def model_name() -> str:
    """The model's name: meta.json's."""
    path = HERE / "meta.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["model_id"]) if path.is_file() else "model"


def main() -> int:
    """Serve, or draw once."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument(
        "--model-dir", type=Path, default=HERE / "model", help="the weights (default: model beside this file)"
    )
    p.add_argument("--host", default="127.0.0.1")
    p.add_argument("--port", type=int, default=8000)
    p.add_argument("--device", default="auto", help="cuda, mps, cpu or auto (default %(default)s)")
    p.add_argument("--dtype", default="bfloat16", help="(default %(default)s)")
    p.add_argument(
        "--showo-source", type=Path, default=Path(os.environ.get("SHOWO2_SOURCE") or HERE / "Show-o" / "show-o2"),
        help="a checkout of Show-o's show-o2 folder (default: SHOWO2_SOURCE, else Show-o/show-o2 beside this file)",
    )  # fmt: skip
    p.add_argument("--prompt", help="draw once instead of serving")
    p.add_argument("--seed", type=int, default=0, help="with --prompt (default 0)")
    p.add_argument("--output", type=Path, default=Path("image.png"), help="with --prompt (default image.png)")
    args = p.parse_args()
    model: Model
    if (args.model_dir / "model_index.json").is_file():
        model = Pipeline(args.model_dir, args.device, args.dtype)
    else:
        model = ShowO2(args.model_dir, args.device, args.dtype, args.showo_source)
    if args.prompt:
        what, _ = parse({"prompt": args.prompt, "seed": args.seed}, model)
        args.output.write_bytes(png(model.draw(*what), what[1], what[2]))
        print(args.output)
        return 0
    server = Server((args.host, args.port), type("Bound", (Handler,), {"model": model}))
    signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
    print(f"serving {model_name()} on http://{args.host}:{server.server_address[1]}", flush=True)
    server.serve_forever(poll_interval=0.1)
    server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
