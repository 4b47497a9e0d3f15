"""Prove over the wire that a server answers as the bundle's reference does, on inputs that nobody has seen before.

    python checker.py --url http://localhost:8000 --model-dir ../reference/model --output-json result.json

What is asked and how two answers are compared says contract.py beside this file. The checker draws fresh inputs, asks
the running server, and then the reference: reference.py of the bundle, started here for the purpose (or a server that
runs already: --reference-url). Before the reference is asked at all, the answers must be answers: whole, of the right
form, other ones for other inputs, the same again for the same input, alone and in company.

Exit code 0: all cases passed. 1: at least one failed. 2: could not run (no server, no reference, a package missing).
Only aiohttp beyond the standard library, and what reference.py needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import contract
from contract import CannotRunError, Case, Reply

HERE = Path(__file__).resolve().parent


@dataclass
class Report:
    """The cases, as they are decided."""

    cases: list[dict[str, Any]] = field(default_factory=list)

    def add(self, name: str, ok: bool | None, detail: str = "") -> bool | None:
        """Record one case; `ok` None means that it was not run, which never counts as passed."""
        self.cases.append({"name": name, "ok": ok, "detail": detail})
        mark = {True: "ok", False: "FAIL", None: "not run"}[ok]
        print(f"{mark:8} {name}" + (f": {detail}" if detail and ok is not True else ""), flush=True)
        return ok

    @property
    def passed(self) -> bool:
        """Whether every case that was run holds, and at least one was."""
        return any(case["ok"] for case in self.cases) and all(case["ok"] is True for case in self.cases)


@dataclass
class Asked:
    """What the server answered: each input alone, the same again, with another seed, another way, and all at once."""

    alone: list[Reply] = field(default_factory=list)
    again: list[Reply] = field(default_factory=list)
    reseeded: list[tuple[Case, Reply]] = field(default_factory=list)
    otherwise: list[tuple[int, Reply]] = field(default_factory=list)
    together: list[Reply] = field(default_factory=list)
    broken: Reply = field(default_factory=Reply)


async def answer_of(session: Any, url: str, case: Case, args: argparse.Namespace) -> Reply:
    """Ask once, and open what came."""
    reply = await contract.ask(session, url, args.endpoint, case, args)
    contract.read(case, reply)
    return reply


async def ask_all(session: Any, cases: list[Case], args: argparse.Namespace) -> Asked:
    """Ask the server everything."""
    asked = Asked()
    generator = random.Random(f"{args.seed}/order")

    async def ask(case: Case) -> Reply:
        return await answer_of(session, args.url, case, args)

    asked.alone = [await ask(case) for case in cases]
    asked.again = [await ask(case) for case in cases[:2]]
    for case in cases[:2]:
        if (other := contract.other_seed(case, generator)) is not None:
            asked.reseeded.append((other, await ask(other)))
    for index, case in enumerate(cases):
        if (way := contract.other_way(case)) is not None:
            asked.otherwise.append((index, await ask(way)))
    order = list(range(len(cases)))
    generator.shuffle(order)
    replies = await asyncio.gather(*(ask(cases[index]) for index in order))
    asked.together = [reply for _, reply in sorted(zip(order, replies, strict=True), key=lambda pair: pair[0])]
    asked.broken = await ask(contract.broken(cases[0]))
    return asked


def judge_wire(cases: list[Case], asked: Asked, args: argparse.Namespace, report: Report) -> bool:
    """What holds without a reference. False where the answers are no answers: then nothing else is looked at."""
    for case, reply in zip(cases, asked.alone, strict=True):
        problem = reply.error or contract.problem(case, reply, args)
        report.add(f"answer/{case.name}", not problem, problem)
    whole = [(c, r) for c, r in zip(cases, asked.alone, strict=True) if not r.error and len(r.values)]
    alike = [
        f"{a.name} and {b.name} ({distance:.4g})"
        for i, (a, x) in enumerate(whole)
        for b, y in whole[:i]
        if (distance := contract.distance(x, y)) < args.min_distance
    ]
    told = f"too alike, below {args.min_distance:g} {contract.DISTANCE}: {'; '.join(alike[:3])}" if alike else ""
    if len(whole) < 2:
        told = f"{len(whole)} of {len(cases)} inputs were answered"
    answers = report.add("answers-depend-on-input", not told, told)
    if not answers or any(case["ok"] is False for case in report.cases):
        return False
    for index, (case, reply) in enumerate(zip(cases[:2], asked.again, strict=True)):
        judge_same(f"same-again/{case.name}", asked.alone[index], reply, args, report)
    for index, (_, reply) in enumerate(asked.reseeded):
        first = asked.alone[index]
        distance = 0.0 if reply.error else contract.distance(first, reply)
        ok = not reply.error and distance >= args.min_distance
        report.add(
            f"other-seed/{cases[index].name}", ok, reply.error or f"only {distance:.4g} {contract.DISTANCE} away"
        )
    for index, reply in asked.otherwise:
        judge_same(f"other-way-equals/{cases[index].name}", asked.alone[index], reply, args, report)
    for case, first, reply in zip(cases, asked.alone, asked.together, strict=True):
        judge_same(f"together-equals-alone/{case.name}", first, reply, args, report)
    refused = 400 <= asked.broken.status < 500
    report.add("bad-request-is-refused", refused, f"status {asked.broken.status} for a request without its input")
    return True


def judge_same(name: str, first: Reply, second: Reply, args: argparse.Namespace, report: Report) -> None:
    """Two answers to one input."""
    distance = float("inf") if second.error else contract.distance(first, second)
    report.add(name, distance <= args.max_repeat, second.error or f"{distance:.4g} {contract.DISTANCE} away")


async def judge_reference(
    session: Any, url: str, cases: list[Case], answers: list[Reply], args: argparse.Namespace, report: Report
) -> None:
    """Every answer against the reference's: within the bound, and nearer to its own than to any other's."""
    own = [await answer_of(session, url, case, args) for case in cases]
    for index, (case, reply, wanted) in enumerate(zip(cases, answers, own, strict=True)):
        name = f"reference/{case.name}"
        if wanted.error:
            raise CannotRunError(f"the reference could not answer {case.name}: {wanted.error}")
        distance = contract.distance(reply, wanted)
        others = [contract.distance(reply, o) for i, o in enumerate(own) if i != index and not o.error]
        if distance > args.max_distance:
            shown = f"; reference {wanted.shown()}, server {reply.shown()}"
            report.add(name, False, f"{distance:.4g} {contract.DISTANCE} away, at most {args.max_distance:g}{shown}")
        else:
            near = not others or distance < min(others)
            report.add(
                name, near, f"as near to another input's answer ({min(others, default=0):.4g})" if not near else ""
            )
    known = [(contract.truth(c, r), contract.truth(c, w)) for c, r, w in zip(cases, answers, own, strict=True)]
    pairs = [(a, b) for a, b in known if a is not None and b is not None]
    if pairs:
        mine, theirs = (sum(p[i] for p in pairs) / len(pairs) for i in (0, 1))
        detail = (
            f"{contract.TRUTH} {mine:.3f}, the reference's {theirs:.3f}, at most {args.max_loss:g} above it is allowed"
        )
        report.add("against-the-truth", mine <= theirs + args.max_loss, detail)
        print(f"         {detail}", flush=True)


@asynccontextmanager
async def reference_server(session: Any, args: argparse.Namespace) -> AsyncIterator[str]:
    """The reference's URL; started as a process of its own, and ended again, where none is given."""
    if args.reference_url:
        yield args.reference_url
        return
    script = args.reference_script
    if not script.is_file():
        raise CannotRunError(f"no reference at {script}", "pass --reference-script or --reference-url")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, str(script), "--model-dir", str(args.model_dir), "--host", "127.0.0.1"]
        child = subprocess.Popen(
            [*command, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            url, until = f"http://127.0.0.1:{port}", time.monotonic() + args.reference_timeout
            while not await healthy(session, url):
                if child.poll() is not None or time.monotonic() > until:
                    log.seek(0)
                    last = (log.read().strip().splitlines() or ["it said nothing"])[-1]
                    raise CannotRunError(f"the reference does not start: {last}", f"try: {' '.join(command)}")
                await asyncio.sleep(0.1)
            yield url
        finally:
            end(child)


def end(child: subprocess.Popen[bytes]) -> None:
    """End the reference and whatever it started."""
    for which in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, which)
            child.wait(10)
            return
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            child.wait(10)
            return


async def healthy(session: Any, url: str) -> bool:
    """Whether /health answers 200."""
    import aiohttp

    try:
        async with session.get(f"{url.rstrip('/')}/health", timeout=aiohttp.ClientTimeout(total=10)) as response:
            return bool(response.status == 200)
    except (TimeoutError, OSError, aiohttp.ClientError):
        return False


async def run(args: argparse.Namespace, report: Report) -> None:
    """Ask, then judge."""
    try:
        import aiohttp
    except ImportError:
        raise CannotRunError("the package aiohttp is not installed", "pip install -r requirements.txt") from None
    limit = aiohttp.ClientTimeout(total=args.timeout)
    async with aiohttp.ClientSession(timeout=limit, connector=aiohttp.TCPConnector(limit=0)) as session:
        if args.answers is not None:
            kept = json.loads(args.answers.read_text(encoding="utf-8")).get("samples", [])
            pairs = [contract.from_sample(sample) for sample in kept]
            if not pairs:
                report.add("benchmark-answers", None, "no answers in the file")
                return
            async with reference_server(session, args) as url:
                await judge_reference(session, url, [c for c, _ in pairs], [r for _, r in pairs], args, report)
            return
        if not report.add("health", await healthy(session, args.url), "/health does not answer 200"):
            raise CannotRunError(f"no server at {args.url}", "start it first")
        cases = [contract.make(random.Random(f"{args.seed}/{i}"), f"fresh-{i}", args) for i in range(args.num_cases)]
        asked = await ask_all(session, cases, args)
        if not judge_wire(cases, asked, args, report):
            report.add("reference", None, "not run: the answers are no answers")
            return
        async with reference_server(session, args) as url:
            await judge_reference(session, url, cases, asked.alone, args, report)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    above = HERE.parent / "model"
    default_model = above if above.is_dir() else HERE.parent / "reference" / "model"
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--url", default="http://localhost:8000", help="the server (default %(default)s)")
    p.add_argument("--endpoint", default=contract.ENDPOINT, help="(default %(default)s)")
    p.add_argument("--model-dir", type=Path, default=default_model, help="of the reference (default: the bundle's)")
    p.add_argument("--reference-url", help="a reference that runs already; without it, it is started here")
    p.add_argument(
        "--reference-script",
        type=Path,
        default=HERE.parent / "reference" / "reference.py",
        help="(default: the bundle's)",
    )
    p.add_argument("--reference-timeout", type=float, default=600.0, help="seconds for its start (default 600)")
    p.add_argument("--output-json", type=Path, help="write the cases here")
    p.add_argument(
        "--num-cases", type=int, default=contract.CASES, help="fresh inputs, at least 2 (default %(default)s)"
    )
    p.add_argument(
        "--max-distance", type=float, default=contract.MAX_DISTANCE,
        help=f"from the reference's answer, {contract.DISTANCE} (default %(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--max-repeat", type=float, default=contract.MAX_REPEAT,
        help=f"between two answers to one input, {contract.DISTANCE} (default %(default)s)",
    )  # fmt: skip
    p.add_argument(
        "--min-distance", type=float, default=contract.MIN_DISTANCE,
        help=f"between the answers to two inputs, {contract.DISTANCE} (default %(default)s)",
    )  # fmt: skip
    p.add_argument("--max-loss", type=float, default=0.02, help="by which the truth may be missed more (default 0.02)")
    p.add_argument("--seed", type=int, help="of the fresh inputs (default: drawn now, and printed)")
    p.add_argument("--timeout", type=float, default=600.0, help="seconds that one request may take (default 600)")
    p.add_argument("--answers", type=Path, help="instead: prove the sampled answers in a benchmark's JSON")
    contract.add_arguments(p)
    return p


def main() -> int:
    """Exit 0: passed; 1: failed; 2: could not run."""
    args = parser().parse_args()
    args.seed = secrets.randbits(40) if args.seed is None else args.seed
    report = Report()
    print(f"seed {args.seed}", flush=True)
    try:
        if urllib.parse.urlsplit(args.url).scheme != "http":
            raise CannotRunError(f"--url {args.url!r}: not http://HOST:PORT", "for instance http://localhost:8000")
        if args.num_cases < 2:
            raise CannotRunError(f"--num-cases {args.num_cases}: at least 2 are needed")
        asyncio.run(run(args, report))
    except CannotRunError as error:
        print(f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2
    document = {
        "passed": report.passed, "cases": report.cases, "seed": args.seed, "max_distance": args.max_distance,
        "min_distance": args.min_distance, "distance": contract.DISTANCE,
    }  # fmt: skip
    if args.output_json:
        args.output_json.write_text(json.dumps(document, indent=1, ensure_ascii=False), encoding="utf-8")
    bad = sum(case["ok"] is not True for case in report.cases)
    print(f"{'passed' if report.passed else 'FAILED'}: {len(report.cases) - bad} of {len(report.cases)} cases hold")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
