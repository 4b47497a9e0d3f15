"""A bundle around the tiny Llama with the shipped checker and benchmark, and the gates that a run puts a server through."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from vibeserve.base.paths import packaged
from vibeserve.judge import Integrity, probe
from vibeserve.judge.client import CHAT, Client
from vibeserve.judge.probes.agreement import shared
from vibeserve.judge.prompts import draw
from vibeserve.judge.traffic import Traffic, learn
from vibeserve.measure import run_benchmark
from vibeserve.search.lives import lost
from vibeserve.targets import Bundle, Metric, ModelMeta

from .llama import _HOME, FOLDER
from .server import Honest, serving

SHIPPED = packaged("examples") / "model-serving" / "smollm2-135m-cpu-chat"
PROMPT_TOKENS, OUTPUT_TOKENS, WIDTH = 160, 24, 6
#: Requests of a load, and how many of its answers are looked at.
LOAD, SAMPLES = 64, 8
#: Windows of a new life: a machine that is busy in one of them proves nothing.
LOOKS = 4
#: The benchmark asks whether answers tell of their prompts, which a model of random weights never does; not of so short ones.
SHORT = ("--max-tokens", "15", "--calibrate", "0")


def _bundle() -> Bundle:
    folder = _HOME / "bundle"
    for name in ("accuracy_checker", "benchmark", "reference"):
        shutil.copytree(SHIPPED / name, folder / name, ignore=shutil.ignore_patterns("model", "__pycache__"))
    (folder / "reference" / "model").symlink_to(FOLDER)
    words = ("--endpoint", CHAT, "--concurrency", str(WIDTH), "--prompt-len", str(PROMPT_TOKENS))
    return Bundle(
        path=folder,
        slug="zoo",
        reference=folder / "reference",
        checker=folder / "accuracy_checker",
        benchmark=folder / "benchmark",
        objective=None,
        metric=Metric("output_tokens_per_s", "tokens/s", "higher"),
        meta=ModelMeta("tiny/llama"),
        api="openai-chat",
        benchmark_args=(*words, "--max-tokens", str(OUTPUT_TOKENS)),
    )


BUNDLE = _bundle()


class Reference(Honest):
    """The reference: as fast as it goes."""

    step_s = 0.0


class Life:
    """A server of one kind, which can be ended and started anew."""

    def __init__(self, kind: type[Honest], stack: contextlib.ExitStack):
        self.kind, self._stack = kind, stack
        self.url = self.restart()

    def restart(self) -> str:
        """End it, start another, and say where."""
        self._stack.close()
        self.url = self._stack.enter_context(serving(self.kind()))
        return self.url


@contextlib.contextmanager
def living(kind: type[Honest]) -> Iterator[Life]:
    """A life, ended with the block."""
    with contextlib.ExitStack() as stack:
        yield Life(kind, stack)


@functools.cache
def traffic(seed: int) -> Traffic:
    """What the shipped benchmark would send: learned once for all servers, each of which is a new one."""
    found = learn(BUNDLE, CHAT, seed)
    assert not found.problem, found.problem
    return found


def asked_by(kind: type[Honest], seed: int) -> Traffic:
    """The traffic of the benchmark that this kind of server is asked by."""
    plain = traffic(seed)
    fields = {name: value for name, value in plain.fields.items() if name not in kind.lacks} | kind.fields
    return replace(plain, fields=fields, width=kind.at_once or plain.width)


def probed(life: Life, oracle: str, seed: int, restart: bool = False, bundle: Bundle = BUNDLE) -> list[str]:
    """What the probes hold against a server."""
    again = life.restart if restart else None
    asked = asked_by(life.kind, seed)
    results = probe(bundle, life.url, seed=seed, oracle_url=oracle, timeout_s=20.0, restart=again, traffic=asked)
    return [f"{result.name}: {result.detail}" for result in results if result.ok is False]


def loaded(url: str, oracle: str, seed: int) -> list[str]:
    """What sampled answers of a load of four requests at once hold against it: as a window's, from its end too."""
    prompts = draw(seed, LOAD, PROMPT_TOKENS // 4)
    client, truth = Client(url, CHAT, 20.0), Client(oracle, CHAT, 20.0)
    client.ask(prompts[0], 2)  # finds out which fields it knows
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: client.ask(prompt, OUTPUT_TOKENS), prompts))
    wrong = [answer.error for answer in answers if answer.error]
    for answer in answers[5 :: LOAD // SAMPLES]:
        if not answer.error and shared(truth.ask(answer.prompt, answer.asked, stream=False), answer) < 1.0:
            wrong.append("a sampled answer is not the reference's")
    client.close()
    truth.close()
    return [f"load: {words}" for words in wrong]


def found_by_probes(kind: type[Honest], oracle: str) -> list[str]:
    """Everything that probes hold against a server, in the order of a run: probes, load, other probes."""
    with living(kind) as life:
        return probed(life, oracle, 11) or loaded(life.url, oracle, 12) or probed(life, oracle, 13, restart=True)


# ------------------------------------------------------------------------------------ the shipped checker and benchmark


def checker() -> ModuleType:
    """The shipped checker as a module, loaded once: a process for each server would load torch each time."""
    if "zoo_checker" not in sys.modules:
        spec = importlib.util.spec_from_file_location("zoo_checker", BUNDLE.checker_script)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["zoo_checker"] = module
        spec.loader.exec_module(module)
        import torch

        torch.set_num_threads(1)  # the servers are threads of this process
    return sys.modules["zoo_checker"]


def checked(url: str, *words: str) -> list[str]:
    """What the shipped checker holds against a server; its exit code must say the same."""
    with tempfile.TemporaryDirectory(dir=_HOME) as folder:
        output = Path(folder) / "check.json"
        command = ["--url", url, "--model-dir", str(FOLDER), "--output-json", str(output), "--seed", "5", *words]
        command += ["--cache-dir", str(_HOME / "proven")]
        before, sys.argv = sys.argv, ["checker.py", *command]
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as told:
                code = checker().main()
        except StopIteration:  # ids that are not those of the text end it: as a process it ends without a result
            return ["checker: could not be run to its end"]
        finally:
            sys.argv = before
        assert code in (0, 1), told.getvalue()
        cases = json.loads(output.read_text())["cases"]
    wrong = [f"checker: {case['name']}: {case['detail']}" for case in cases if case["ok"] is False]
    assert bool(wrong) == (code == 1) or not any(case["ok"] for case in cases)
    return wrong or ([] if code == 0 else ["checker: not passed"])


def benchmarked(url: str, seed: int, with_answers: bool, at_once: int = 0) -> tuple[float, list[str]]:
    """(value, what a window of the shipped benchmark holds against it, and the checker against the sampled answers)."""
    words = (*SHORT, "--concurrency", str(at_once or WIDTH))
    with tempfile.TemporaryDirectory(dir=_HOME) as folder:
        output = Path(folder) / "window.json"
        result = run_benchmark(BUNDLE, url, FOLDER, seed=seed, window_s=1.0, output=output, extra_args=words)
        if result.value is None:
            return 0.0, [f"benchmark: {result.detail}"]
        if not with_answers or not any(sample["token_ids"] for sample in result.document["samples"]):
            return result.value, []
        return result.value, [f"answers under load: {words}" for words in checked(url, "--answers", str(output))]


def outlasts(life: Life, value: float, seed: int) -> list[str]:
    """What the value in this life holds against one of the life before. A busy machine is looked at more than once."""
    for look in range(LOOKS):
        again, wrong = benchmarked(life.url, seed + look, with_answers=False, at_once=life.kind.at_once)
        if wrong:
            return wrong
        if not lost(again, value, "higher"):
            return []
    return [f"restart: {again:.0f} tokens/s after {value:.0f}"]


def found_by_gates(kind: type[Honest], oracle: str, seed: int = 21) -> list[str]:
    """Everything that a run's gates hold against a server, in a run's order."""
    integrity = Integrity(BUNDLE, FOLDER)
    before = integrity.digests()
    with living(kind) as life:
        wrong = checked(life.url) or probed(life, oracle, seed)
        if not wrong:
            value, wrong = benchmarked(life.url, seed + 1, with_answers=True, at_once=kind.at_once)
            wrong = wrong or probed(life, oracle, seed + 2, restart=True) or outlasts(life, value, seed + 3)
    after = integrity.digests()
    return wrong + [
        f"integrity: {name}" for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    ]
