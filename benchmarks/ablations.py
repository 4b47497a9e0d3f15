"""Every technique of the engine on and off: alone, and in pairs, on four loads. A table of speed over the plain engine.

All settings run in turns over one set of weights; each run has an engine of its own, so that no prefix is kept from another's.
`python -m benchmarks.ablations --markdown FILE` writes the table; `--run DIRECTORY` puts it into a run, whose report then
shows it (`vibeserve report RUN`).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

from benchmarks._engine import core_of, model_dir, prompt, run_all, spread
from benchmarks.rows import Row

ROUNDS = 5
TECHNIQUES: dict[str, dict[str, Any]] = {
    "prefix": {"prefix_cache": True},
    "chunks": {"chunked_prefill": True},
    "predicted": {"predicted_outputs": True},
    "lookup": {"ngram_speculation": True},
    "learned": {"learned_drafts": True},
    "jump": {"constrained_decoding": True, "jump_forward": True},
    "paced": {"chunked_prefill": True, "prefill_stretch_pct": 135},
}
Requests = list[Any]


def choices() -> list[tuple[str, ...]]:
    """Nothing, each technique alone, and every two that are not one (pacing brings chunks)."""
    pairs = [pair for pair in combinations(TECHNIQUES, 2) if set(pair) != {"chunks", "paced"}]
    return [(), *((name,) for name in TECHNIQUES), *pairs]


def loads(model: Path) -> dict[str, Requests]:
    """Chat, a shared prefix, code edits with predictions, JSON by a schema."""
    from benchmarks.constrained_json import schemas
    from benchmarks.predicted_edits import BUNDLE as EDITS
    from vibeserve.engine.constraints import grammar_of
    from vibeserve.engine.tokenizer import Tokenizer
    from vibeserve.engine.types import Request, SamplingParams

    tokenizer, generator = Tokenizer.load(model), random.Random(1)
    assert tokenizer.template is not None

    def asked(text: str) -> tuple[int, ...]:
        messages = [{"role": "user", "content": text}]
        return tuple(tokenizer.encode(tokenizer.template.render(messages), add_special_tokens=False))  # type: ignore[union-attr]

    def greedy(tokens: int) -> SamplingParams:
        return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)

    shared = prompt(generator, 512)
    edits = [json.loads(line) for line in (EDITS / "benchmark" / "edits.jsonl").read_text().splitlines()][:2]
    made: dict[str, Requests] = {
        "chat, 8 at once": [Request(f"c{n}", prompt(generator, 64), greedy(32)) for n in range(8)],
        "512 shared, 8 at once": [Request(f"p{n}", (*shared, *prompt(generator, 16)), greedy(16)) for n in range(8)],
        "code edits, 2 at once": [],
        "JSON, 2 at once": [],
    }
    for number, edit in enumerate(edits):
        predicted = tuple(tokenizer.encode(edit["prediction"], add_special_tokens=False))
        request = Request(f"e{number}", asked(edit["ask"]), greedy(96), prediction_ids=predicted)
        made["code edits, 2 at once"].append(request)
    for number, (thing, wanted) in enumerate(schemas(7, 2)):
        params = SamplingParams(temperature=0.0, max_tokens=160)
        grammar = grammar_of("json", wanted, "schema")
        ids = asked(f"Describe one {thing} as JSON with these fields: {', '.join(wanted['properties'])}.")
        made["JSON, 2 at once"].append(Request(f"j{number}", ids, params, grammar=grammar))
    return made


def measure(model: Path, rounds: int) -> dict[str, dict[tuple[str, ...], list[float]]]:
    """Load → techniques → speed over the plain engine, round by round."""
    plain = core_of(model)
    generator = random.Random(2)
    found: dict[str, dict[tuple[str, ...], list[float]]] = {}
    for load, asked in loads(model).items():
        always = {"constrained_decoding": True} if load.startswith("JSON") else {}
        ratios: dict[tuple[str, ...], list[float]] = {chosen: [] for chosen in choices() if chosen}
        for number in range(rounds + 1):
            taken: dict[tuple[str, ...], float] = {}
            for chosen in generator.sample(choices(), len(choices())):
                changes = dict(always)
                for name in chosen:
                    changes |= TECHNIQUES[name]
                core = core_of(model, plain.backend, **changes)
                taken[chosen] = run_all(core, asked)[0]
                if core.constraints is not None:
                    core.constraints.close()
            for chosen, values in ratios.items():
                if number:  # the first round warms up
                    values.append(taken[()] / taken[chosen])
        found[load] = ratios
    plain.close()
    return found


def rows(rounds: int = ROUNDS) -> list[Row]:
    """One row a load and a choice of techniques; no targets."""
    from vibeserve.base.errors import VibeServeError

    try:
        model = model_dir()
    except VibeServeError as error:
        return [Row("ablations", None, None, "x", "higher", f"not run: {error}")]
    made = []
    for load, ratios in measure(model, rounds).items():
        for chosen, values in ratios.items():
            mean, low, high = spread(values)
            note = f"95 % {low:.2f}-{high:.2f}, {len(values)} rounds"
            made.append(Row(f"{load}: {' + '.join(chosen)}", None, mean, "x", "higher", note))
    return made


def markdown(found: list[Row]) -> str:
    """Techniques by loads."""
    table: dict[str, dict[str, str]] = {}
    for row in found:
        load, _, chosen = row.name.partition(": ")
        low, high = _interval(row)
        sure = low > 1 or high < 1
        table.setdefault(chosen, {})[load] = f"**{row.actual:.2f}**" if sure else f"{row.actual:.2f}"
    names = list(dict.fromkeys(row.name.partition(": ")[0] for row in found))
    lines = ["| techniques | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    lines += [f"| {chosen} | " + " | ".join(cells[name] for name in names) + " |" for chosen, cells in table.items()]
    return "\n".join(lines) + "\n"


def document(found: list[Row]) -> dict[str, Any]:
    """What a run's report reads: one row a load and a choice of techniques."""
    made = []
    for row in found:
        load, _, chosen = row.name.partition(": ")
        low, high = _interval(row)
        count = int(row.note.split(", ")[1].removesuffix(" rounds"))
        made.append(
            {
                "load": load,
                "techniques": chosen.split(" + "),
                "ratio": row.actual,
                "low": low,
                "high": high,
                "rounds": count,
            }
        )
    return {"rows": made}


def _interval(row: Row) -> tuple[float, float]:
    low, _, high = row.note.removeprefix("95 % ").partition(",")[0].partition("-")
    return float(low), float(high)


def main() -> int:
    """Measure, print, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="at least 5, for an interval")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    parser.add_argument("--run", type=Path, help="the directory of a run (runs/NAME), for its report")
    options = parser.parse_args()
    found = rows(options.rounds)
    if found[0].actual is None:
        print(f"error: {found[0].note}", file=sys.stderr)
        return 3
    text = markdown(found)
    print(text)
    if options.run:
        (options.run / "ablations.json").write_text(json.dumps(document(found), indent=1), encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
