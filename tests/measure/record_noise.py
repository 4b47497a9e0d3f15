"""Records the noise of a machine: `python tests/measure/record_noise.py --name shared data/noise.json`.

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

from vibeserve.measure import Load, LoadWatch, RunningServer, at_rest, fake_server, fingerprint, launch, order_of
from vibeserve.measure.noise import OTHERS_CORES, own_cpu_s

SETTINGS = {"work": 100, "ttft-s": 0, "tpot-s": 0}  # about a millisecond a token: the client stays light
CLIENTS = 4
TOKENS = 4


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


def window(server: RunningServer, others: list[RunningServer], seconds: float) -> tuple[float, Load]:
    """(tokens per second, what the machine did) of one window of load."""

    async def load() -> int:
        end_s = time.monotonic() + seconds
        return sum(await asyncio.gather(*(client(server, end_s, number) for number in range(CLIENTS))))

    with at_rest(others):
        watch = LoadWatch(lambda: own_cpu_s() + sum(one.cpu_s() for one in (server, *others)))
        tokens = asyncio.run(load())
        return tokens / seconds, watch.stop()


def settled_window(server: RunningServer, others: list[RunningServer], seconds: float) -> tuple[float, Load]:
    """A window, measured again once where something disturbed it: the rule of `vibeserve.measure.compare`."""
    value, load = window(server, others, seconds)
    return window(server, others, seconds) if load.disturbances() else (value, load)


def fake_candidate(directory: Path, **settings: object) -> Path:
    """The fake server as a candidate directory."""
    directory.mkdir(parents=True)
    words = ["python", "-P", fake_server.__file__]
    for name, value in settings.items():
        words += [f"--{name}", str(value)]
    (directory / "candidate.toml").write_text(f"start = {json.dumps(words)}\n")
    return directory


def record(pairs: int, seconds: float, limit_s: float, folder: Path, *, quiet: bool) -> list[dict[str, float]]:
    """The values of at most `pairs` pairs of windows on two equal servers, within `limit_s`.

    `quiet` leaves out the pairs in which other work disturbed a window: a quiet machine, on one that is not always so.
    """
    candidate = fake_candidate(folder / "candidate", **SETTINGS)
    end_s = time.monotonic() + limit_s
    rows = []
    with (
        launch(candidate, folder, log_dir=folder / "a") as a,
        launch(candidate, folder, log_dir=folder / "b") as b,
    ):
        servers = {"a": a, "b": b}
        for pair, sides in enumerate(order_of(pairs, seed=1)):
            if time.monotonic() > end_s:
                break
            values = {}
            for side in sides:
                others = [servers["b" if side == "a" else "a"]]
                values[side], load = settled_window(servers[side], others, seconds)
                values[f"others_{side}"] = round(load.others_cores or 0.0, 2)
            if not quiet or max(values["others_a"], values["others_b"]) <= OTHERS_CORES:
                rows.append({"pair": pair, "first": sides[0]} | values)
    return rows


def main() -> int:
    """Record, and add the pairs to those in the file under that name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--limit-s", type=float, default=220.0)
    parser.add_argument("--window-s", type=float, default=1.0)
    parser.add_argument("--quiet", action="store_true", help="leave out what other work disturbed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = record(args.pairs, args.window_s, args.limit_s, Path(folder), quiet=args.quiet)
    recordings = json.loads(args.output.read_text()) if args.output.exists() else {}
    earlier = recordings.get(args.name, {}).get("pairs", [])
    about = {"device": fingerprint().device, "window_s": args.window_s, "undisturbed_only": args.quiet}
    recordings[args.name] = about | {"pairs": [*earlier, *rows]}
    args.output.write_text(json.dumps(recordings, separators=(",", ":")).replace("},{", "},\n{") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
