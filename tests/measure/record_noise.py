"""Records the noise of a machine: `python tests/measure/record_noise.py --windows 200 --name quiet data/noise.json`.

Two fake servers with equal settings, whose tokens each cost real computation, are loaded in turn (a b · b a · …) by a
closed loop; each window's tokens per second is written, with what the machine did meanwhile. The verdict's tests replay
these values: a comparison of the two is a comparison of equals.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from vibeserve.measure import LoadWatch, RunningServer, at_rest, fake_server, fingerprint, launch, order_of
from vibeserve.measure.noise import own_cpu_s

SETTINGS = {"work": 30, "ttft-s": 0, "tpot-s": 0}
CLIENTS = 4
TOKENS = 16


async def client(server: RunningServer, end_s: float, number: int) -> int:
    """Tokens that one client of a closed loop got before `end_s`."""
    reader, writer = await asyncio.open_connection(server.host, server.port)
    tokens = count = 0
    while time.monotonic() < end_s:
        count += 1
        body = json.dumps({"prompt": f"{number} {count}", "max_tokens": TOKENS, "return_token_ids": True}).encode()
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        answer = json.loads(await reader.readexactly(length))
        if time.monotonic() <= end_s:
            tokens += len(answer["choices"][0]["token_ids"])
    writer.close()
    return tokens


def window(server: RunningServer, others: list[RunningServer], seconds: float) -> tuple[float, float]:
    """(tokens per second, cores that others used) of one window of load."""

    async def load() -> int:
        end_s = time.monotonic() + seconds
        return sum(await asyncio.gather(*(client(server, end_s, number) for number in range(CLIENTS))))

    with at_rest(others):
        watch = LoadWatch(lambda: own_cpu_s() + sum(one.cpu_s() for one in (server, *others)))
        tokens = asyncio.run(load())
        seen = watch.stop()
    return tokens / seconds, seen.others_cores or 0.0


def fake_candidate(directory: Path, **settings: object) -> Path:
    """The fake server as a candidate directory."""
    directory.mkdir(parents=True)
    words = ["python", "-P", fake_server.__file__]
    for name, value in settings.items():
        words += [f"--{name}", str(value)]
    (directory / "candidate.toml").write_text(f"start = {json.dumps(words)}\n")
    return directory


def record(windows: int, seconds: float, folder: Path) -> list[dict[str, float]]:
    """The values of `windows` windows on each of two equal servers."""
    candidate = fake_candidate(folder / "candidate", **SETTINGS)
    rows = []
    with (
        launch(candidate, folder, log_dir=folder / "a") as a,
        launch(candidate, folder, log_dir=folder / "b") as b,
    ):
        servers = {"a": a, "b": b}
        for pair, sides in enumerate(order_of(windows, seed=1)):
            for side in sides:
                others = [servers["b" if side == "a" else "a"]]
                value, cores = window(servers[side], others, seconds)
                rows.append({"pair": pair, "side": side, "value": value, "others_cores": round(cores, 3)})
    return rows


def main() -> int:
    """Record, and add the recording to the file under its name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--windows", type=int, default=100, help="for each server")
    parser.add_argument("--window-s", type=float, default=1.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = record(args.windows, args.window_s, Path(folder))
    recordings = json.loads(args.output.read_text()) if args.output.exists() else {}
    recordings[args.name] = {"device": fingerprint().device, "window_s": args.window_s, "windows": rows}
    args.output.write_text(json.dumps(recordings, separators=(",", ":")).replace("},{", "},\n{") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
