"""The engine without HTTP: tokens a second at several loads. `python benchmarks/engine_core.py MODEL_DIR [--dtype D]`.

Each load is run `--repeats` times on fresh prompts (drawn from `--seed`), loads interleaved; the median and the range are
printed, and written as JSON with `--output`. Every request has the same number of prompt tokens and greedy answer tokens,
end tokens ignored. "shared" gives all requests one beginning of that many tokens; the prefix cache is cold at the start of
each run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from vibeserve.engine.core import EngineCore
from vibeserve.engine.settings import Settings
from vibeserve.engine.types import Request, SamplingParams


@dataclass(frozen=True)
class Load:
    """`requests` at once, each of `shared + prompt` tokens in and `answer` tokens out."""

    name: str
    requests: int
    prompt: int
    answer: int
    shared: int = 0
    temperature: float = 0.0


LOADS = (
    Load("1 at once", 1, 64, 64),
    Load("8 at once", 8, 64, 64),
    Load("16 at once", 16, 64, 64),
    Load("16 at once, sampled", 16, 64, 64, temperature=0.8),
    Load("16 at once, 1,024 shared", 16, 22, 64, shared=1024),
    Load("1 at once, 4,096 in", 1, 4096, 32),
)


def run(core: EngineCore, load: Load, rng: np.random.Generator) -> dict[str, float]:
    """One run of one load: output tokens a second over all, while decoding alone, and the mean time to first token."""
    shared = rng.integers(3, core.limits.vocab_size, load.shared)
    params = SamplingParams(
        temperature=load.temperature,
        top_p=0.95 if load.temperature else 1.0,
        seed=1,
        max_tokens=load.answer,
        ignore_eos=True,
    )
    for index in range(load.requests):
        own = rng.integers(3, core.limits.vocab_size, load.prompt)
        core.add(Request(f"{load.name}-{index}", tuple(int(i) for i in (*shared, *own)), params))
    begin, first, tokens = perf_counter(), {}, 0
    while core.has_work():
        outputs = core.step()
        now = perf_counter() - begin
        for output in outputs:
            first.setdefault(output.request_id, now)
            tokens += len(output.token_ids)
    total = perf_counter() - begin
    alone = total - max(first.values())
    return {
        "output_tokens_per_s": tokens / total,
        "decode_tokens_per_s": load.requests * (load.answer - 1) / alone if alone > 0 else float("nan"),
        "mean_ttft_s": statistics.mean(first.values()),
    }


def main() -> None:
    """Run all loads and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model_dir", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    begin = perf_counter()
    core = EngineCore(arguments.model_dir, Settings(dtype=arguments.dtype, backend=arguments.backend))
    info = {**core.stats().info, "load_s": round(perf_counter() - begin, 2)}
    rng = np.random.default_rng(arguments.seed)
    run(core, Load("warm-up", 2, 32, 8), rng)
    results: dict[str, list[dict[str, float]]] = {load.name: [] for load in LOADS}
    loads = [load for load in LOADS if load.shared + load.prompt + load.answer <= core.limits.max_model_len]
    for _ in range(arguments.repeats):
        for load in loads:
            results[load.name].append(run(core, load, rng))
    print(" ".join(f"{key}={value}" for key, value in info.items() if value), f"load={os.getloadavg()[0]:.1f}")
    for load in loads:
        row = [f"{load.name:26}"]
        for key, unit, scale in (
            ("output_tokens_per_s", "tok/s", 1),
            ("decode_tokens_per_s", "tok/s decoding", 1),
            ("mean_ttft_s", "ms to first token", 1000),
        ):
            values = sorted(one[key] * scale for one in results[load.name])
            row.append(f"{statistics.median(values):7.0f} [{values[0]:.0f}–{values[-1]:.0f}] {unit}")
        print("  ".join(row))
    core.rest()
    core.close()
    if arguments.output:
        document = {"info": info, "loads": [asdict(load) for load in loads], "results": results}
        arguments.output.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
