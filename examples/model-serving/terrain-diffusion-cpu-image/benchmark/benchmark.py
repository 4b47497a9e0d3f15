"""Measure a server from outside, through the API that contract.py beside this file speaks.

    python benchmark.py --url http://localhost:8000 --concurrency 4 --num-requests 32 --output-json result.json
    python benchmark.py --url http://localhost:8000 --rate 0.5 --duration 60

How it counts:
* Load is a closed loop (--concurrency N: exactly N requests in flight) or an open loop (Poisson arrivals at --rate);
  latencies run from the moment a request was *scheduled*, so that waiting for the client is part of them.
* Warm-up requests are sent before and never counted; connections are not limited.
* Inputs are made from --seed, a share of them (--fresh-share) from numbers that no other run has used.
* Answers are opened and judged after the load, every one of them: an answer that is none is a failed request, however
  fast it came. A failed request is slower than any other in every percentile, and counted with its kind.
* Where answers are alike for different inputs, or miss what is known of the input, the numbers are null and the exit
  code is 1. `samples` holds whole answers that checker.py --answers proves against the reference.

Only aiohttp beyond the standard library, imported late.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
import secrets
import sys
import tempfile
import time
import urllib.parse
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import contract
from contract import CannotRunError, Case, Reply

now = time.perf_counter


@dataclass
class Call:
    """One request: its input, when it was due, and what came. Times are seconds on one clock."""

    case: Case
    fresh: bool
    scheduled: float = 0.0
    reply: Reply = field(default_factory=Reply)
    cut: bool = False
    problem: str = ""


class Inputs:
    """Inputs by number: from the seed, a share from numbers of this run alone."""

    def __init__(self, args: argparse.Namespace):
        self.args = args
        self.every = round(1 / args.fresh_share) if args.fresh_share > 0 else 0
        self.made: dict[int, Call] = {}

    def get(self, index: int) -> Call:
        """Input number `index` (warm-up takes the negative ones)."""
        if index not in self.made:
            fresh = bool(self.every) and index % self.every == self.every - 1
            key = f"{self.args.fresh_seed}/fresh" if fresh else f"{self.args.seed}"
            case = contract.make(random.Random(f"{key}/{index}"), f"input-{index}", self.args)
            self.made[index] = Call(case, fresh)
        return self.made[index]


async def send(session: Any, call: Call, args: argparse.Namespace) -> None:
    """Send one request; what goes wrong is in its reply."""
    call.reply.error = "cut off by the window"
    call.cut = True
    reply = await contract.ask(session, args.url, args.endpoint, call.case, args)
    call.reply, call.cut = reply, False


async def closed_loop(session: Any, inputs: Inputs, args: argparse.Namespace) -> tuple[list[Call], float, float]:
    """Exactly --concurrency requests in flight."""
    calls: list[Call] = []
    start = now()
    stop = start + (args.window or args.duration)

    async def worker() -> None:
        while (len(calls) < args.num_requests) if args.num_requests else (now() < stop):
            call = inputs.get(len(calls))
            calls.append(call)
            call.scheduled = now()
            await send(session, call, args)

    await bounded([worker() for _ in range(args.concurrency)], args.window)
    return calls, start, min(now(), start + args.window) if args.window else now()


async def open_loop(session: Any, inputs: Inputs, args: argparse.Namespace) -> tuple[list[Call], float, float]:
    """Poisson arrivals at --rate."""
    gaps, calls = random.Random(f"{args.seed}/arrivals"), []
    start = now()
    at, until = start, start + (args.window or args.duration)
    tasks: list[Awaitable[None]] = []
    while (len(calls) < args.num_requests) if args.num_requests else True:
        at += gaps.expovariate(args.rate)
        if not args.num_requests and at > until:
            break
        call = inputs.get(len(calls))
        call.scheduled = at
        await asyncio.sleep(max(0.0, at - now()))
        calls.append(call)
        tasks.append(asyncio.ensure_future(send(session, call, args)))
    await bounded(tasks, max(0.0, until - now()) if args.window else None)
    return calls, start, until if args.window else now()


async def bounded(work: list[Any], seconds: float | None) -> None:
    """Await all; after `seconds`, what is still in flight is cut off."""
    tasks = [asyncio.ensure_future(item) for item in work]
    if not tasks:
        return
    _, left = await asyncio.wait(tasks, timeout=seconds)
    for task in left:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


def percentile(values: list[float], bad: int, share: float) -> float | None:
    """The nearest-rank percentile where `bad` further requests are slower than every value; None where it is one of them."""
    total = len(values) + bad
    if not total:
        return None
    rank = max(1, math.ceil(share * total))
    return sorted(values)[rank - 1] if rank <= len(values) else None


def figures(calls: list[Call], start: float, end: float, args: argparse.Namespace) -> dict[str, Any]:
    """Judge the answers and count them."""
    done = [call for call in calls if not call.cut]
    for call in done:
        contract.read(call.case, call.reply)
        call.problem = call.reply.error or contract.problem(call.case, call.reply, args)
    good, bad = [c for c in done if not c.problem], [c for c in done if c.problem]
    seconds = max(end - start, 1e-9)
    result: dict[str, Any] = {
        "duration_s": seconds, "requests": len(calls), "completed": len(good), "failed": len(bad),
        "cut_off": len(calls) - len(done), "fresh_inputs": sum(c.fresh for c in calls),
        "failures": dict(Counter(c.problem.split(":")[0] for c in bad)), "failure_examples": [c.problem for c in bad[:3]],
        "success_rate": len(good) / len(done) if done else None,
        "request_throughput": len(good) / seconds,
        contract.AMOUNT: sum(contract.amount(c.case, c.reply) for c in good) / seconds,
    }  # fmt: skip
    for name, of in {"latency_s": lambda c: c.reply.done - c.scheduled, **contract.TIMES}.items():
        values = [value for c in good if (value := of(c)) is not None]
        block: dict[str, Any] = {"n": len(values), "failed": len(bad) + len(good) - len(values)}
        for label, share in (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99)):
            block[label] = percentile(values, block["failed"], share)
        # A request that has no such time is slower than any other: with one among them there is no mean.
        block["mean"] = sum(values) / len(values) if values and not block["failed"] else None
        for label in ("p50", "p90", "p95", "p99", "mean"):
            result[f"{label}_{name}"] = block[label]
            if block[label] is None:
                result[f"{label}_{name}_reason"] = f"{block['failed']} of {len(done)} requests have no such time"
        result[name] = block
    result["plausibility"] = plausibility(good)
    result["per_request"] = [
        {
            "name": c.case.name, "scheduled_s": c.scheduled - start, "fresh": c.fresh, "error": c.problem or None,
            "latency_s": None if c.problem or c.cut else c.reply.done - c.scheduled, "cut_off": c.cut,
        }
        for c in calls
    ]  # fmt: skip
    spread = good[:: max(1, len(good) // args.samples)][: args.samples] if args.samples else []
    result["samples"] = [contract.to_sample(c.case, c.reply) for c in spread]
    return result


def plausibility(good: list[Call]) -> dict[str, Any]:
    """Whether the answers differ where the inputs do, and agree with what is known of the inputs."""
    pairs = [(a, b) for i, a in enumerate(good[:40]) for b in good[:i] if a.case.name != b.case.name]
    alike = sum(contract.distance(a.reply, b.reply) < contract.MIN_DISTANCE for a, b in pairs)
    truths = [truth for c in good if (truth := contract.truth(c.case, c.reply)) is not None]
    missed = sum(truths) / len(truths) if truths else None
    if len(good) < 2:
        return {
            "ok": None,
            "reason": f"{len(good)} answers are too few to tell",
            "alike": 0,
            "pairs": 0,
            "truth": missed,
        }
    ok = alike <= 0.02 * len(pairs) and (missed is None or missed <= contract.MAX_MISSED)
    return {"ok": ok, "alike": alike, "pairs": len(pairs), "truth": missed, "truth_is": contract.TRUTH}


async def calibrate(seconds: float) -> dict[str, Any]:
    """The client's own overhead: a round trip to a server of its own on this machine that answers at once."""
    import aiohttp
    from aiohttp import web

    async def answer(_: Any) -> Any:
        return web.Response(text="{}")

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    took: list[float] = []
    try:
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session:
            until = now() + seconds
            while now() < until:
                begin = now()
                async with session.post(f"http://127.0.0.1:{port}/", json={}) as response:
                    await response.read()
                took.append(now() - begin)
    finally:
        await runner.cleanup()
    return {"p50": percentile(took, 0, 0.5), "p99": percentile(took, 0, 0.99), "n": len(took)}


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Warm up, load, count."""
    try:
        import aiohttp
    except ImportError:
        raise CannotRunError("the package aiohttp is not installed", "pip install -r requirements.txt") from None
    overhead = await calibrate(args.calibrate) if args.calibrate > 0 else {"reason": "not run"}
    inputs = Inputs(args)
    limit = aiohttp.ClientTimeout(total=args.timeout)
    async with aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(limit=0)) as session:
        for index in range(1, args.warmup + 1):
            warm = inputs.get(-index)
            await send(session, warm, args)
            if warm.reply.error:
                raise CannotRunError(f"a warm-up request failed: {warm.reply.error}", f"is a server at {args.url}?")
        for index in range(args.num_requests or 4 * (args.concurrency or 1)):
            inputs.get(index)
        run = open_loop if args.concurrency is None else closed_loop
        calls, start, end = await run(session, inputs, args)
    config = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    document = {"config": config, **figures(calls, start, end, args), "warmup_requests": args.warmup}
    document["client_overhead_s"] = overhead
    if not document["completed"] or document["plausibility"]["ok"] is False:
        why = "no request was answered" if not document["completed"] else "the answers do not belong to their inputs"
        for name in [k for k, v in document.items() if isinstance(v, float) and k != "duration_s"]:
            document[name], document[f"{name}_reason"] = None, why
    return document


def show(document: dict[str, Any]) -> None:
    """Print the figures."""
    print(
        f"requests {document['requests']}: {document['completed']} completed, {document['failed']} failed, "
        f"{document['cut_off']} cut off; warm-up apart: {document['warmup_requests']}; {document['duration_s']:.2f} s"
    )
    for example in document["failure_examples"]:
        print(f"  failed: {example}")
    for name in (contract.AMOUNT, "request_throughput"):
        if document[name] is not None:
            print(f"  {name} {document[name]:.4g}")
    for name in ("latency_s", *contract.TIMES):
        block = document[name]
        shown = "  ".join(f"{p} {block[p]:.4g}" if block[p] is not None else f"{p} –" for p in ("p50", "p95", "p99"))
        print(f"  {name}  {shown}  over {block['n']}")
    print(f"  plausible: {document['plausibility']}", flush=True)


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write the document whole or not at all."""
    handle, name = tempfile.mkstemp(dir=path.resolve().parent, prefix=f".{path.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1, ensure_ascii=False, allow_nan=False)
    os.replace(name, path)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://localhost:8000", help="the server (default %(default)s)")
    p.add_argument("--endpoint", default=contract.ENDPOINT, help="(default %(default)s)")
    p.add_argument("--rate", type=float, default=1.0, help="open loop: requests a second (default %(default)s)")
    p.add_argument("--duration", type=float, default=60.0, help="seconds of sending; the rest is awaited (default 60)")
    p.add_argument("--num-requests", type=int, help="send exactly so many, instead of --duration")
    p.add_argument("--max-tokens", type=int, default=128, help=contract.MAX_TOKENS_IS)
    p.add_argument("--temperature", type=float, default=0.0, help=contract.TEMPERATURE_IS)
    p.add_argument("--prompt-len", type=int, default=16, help=contract.PROMPT_LEN_IS)
    p.add_argument("--seed", type=int, default=42, help="of inputs and arrivals (default 42)")
    p.add_argument("--output-json", type=Path, help="write everything here")
    p.add_argument("--concurrency", type=int, help="closed loop: exactly so many in flight; overrules --rate")
    p.add_argument("--warmup", type=int, default=2, help="requests before the measurement (default 2)")
    p.add_argument("--window", type=float, help="measure exactly so many seconds, cutting off what is in flight then")
    p.add_argument("--fresh-share", type=float, default=0.25, help="share of inputs of this run alone (default 0.25)")
    p.add_argument("--fresh-seed", type=int, help="of that share, to repeat it on another server (default: drawn now)")
    p.add_argument("--samples", type=int, default=4, help="whole answers kept in the JSON (default 4)")
    p.add_argument("--timeout", type=float, default=600.0, help="seconds that a request may take (default 600)")
    p.add_argument("--calibrate", type=float, default=0.3, help="seconds of calibration; 0 leaves it out (default 0.3)")
    p.add_argument("--model-dir", type=Path, help="not read: inputs and answers need no tokenizer")
    contract.add_arguments(p)
    return p


def check_arguments(args: argparse.Namespace) -> None:
    """Refuse what makes no sense."""
    for name in ("rate", "duration", "max_tokens", "prompt_len", "num_requests", "concurrency", "window", "timeout"):
        value = getattr(args, name)
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise CannotRunError(f"--{name.replace('_', '-')} {value}: must be above 0")
    if not 0 <= args.fresh_share <= 1:
        raise CannotRunError(f"--fresh-share {args.fresh_share}: must be between 0 and 1")
    if urllib.parse.urlsplit(args.url).scheme != "http":
        raise CannotRunError(f"--url {args.url!r}: not http://HOST:PORT", "for instance http://localhost:8000")
    if args.fresh_seed is None:
        args.fresh_seed = secrets.randbits(48)


def main() -> int:
    """Exit 0: measured, failures included; 1: nothing was answered, or implausibly; 2: could not be measured."""
    args = parser().parse_args()
    try:
        check_arguments(args)
        document = asyncio.run(measure(args))
    except CannotRunError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2
    show(document)
    if args.output_json:
        write_json(args.output_json, document)
    if document["request_throughput"] is None:
        print(f"error: {document['request_throughput_reason']}: {document['plausibility']}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
