"""A run's document as `show --json` prints it, with made-up figures that fit each other: input for report tests."""

from __future__ import annotations

import json
import math
import random
import subprocess
from pathlib import Path
from typing import Any

UNIT = "tokens/s"
LIMIT = 850.0
BEST_PAIRS = [(24.1, 303.4), (24.6, 301.9), (23.9, 299.8), (24.4, 305.2), (24.2, 300.7)]

# technique, title, verdict, value, (ratio, low, high), reason
ROUNDS: list[tuple[str, str, str, float | None, tuple[float, float, float] | None, str]] = [
    ("continuous_batching", "Batch requests at every step", "kept", 141.2, (5.81, 5.60, 6.03), "5.81× (95 % interval 5.6 to 6.03, 5 pairs) of c0"),
    ("packed_weights", "Pack the weights for the CPU", "kept", 221.0, (1.56, 1.52, 1.61), "1.56× (95 % interval 1.52 to 1.61, 5 pairs) of c1"),
    ("bf16", "Compute in bfloat16", "rejected-accuracy", None, None, "3 of 40 prompts: token ids differ from the reference's, margin 0.8"),
    ("chunked_prefill", "Mix pieces of prompts with decoding", "not-better", 219.4, (0.99, 0.97, 1.02), "the interval holds 1: 0.993× (95 % interval 0.97 to 1.02, 5 pairs) of c2"),
    ("torch_compile", "Compile the decode step", "failed-start", None, None, "not ready after 120 s: see logs/c5/server.log"),
    ("static_decode_shapes", "Keep the shapes of decoding fixed", "kept", 301.5, (1.37, 1.33, 1.41), "1.37× (95 % interval 1.33 to 1.41, 5 pairs) of c2"),
    ("answer_cache", "Remember whole answers", "rejected-integrity", None, None, "fresh prompts: answers to unseen prompts were 4× slower than to seen ones"),
]  # fmt: skip


def fact(
    value: float, unit: str = "", provenance: str = "measured", source: str = "the engine's own counters"
) -> dict[str, Any]:
    """One entry of evidence."""
    return {"value": value, "unit": unit, "provenance": provenance, "source": source}


def _window(
    candidate: str, kind: str, pair: int, place: int, value: float | None, at_s: float, **more: Any
) -> dict[str, Any]:
    base = {"candidate": candidate, "kind": kind, "pair": pair, "place": place, "value": value, "unit": UNIT,
            "window_s": 6.0, "seed": 17, "failed": 0, "noisy": "", "reason": "", "document": "", "provenance": "measured"}  # fmt: skip
    return base | {"at_s": at_s} | more


def _reference() -> dict[str, Any]:
    return {
        "round": 0, "candidate": "c0", "parent": None, "technique": "reference", "commit": None,
        "hypothesis": "the bundle's reference: what every candidate is held against",
        "verdict": "kept", "reason": "the baseline", "value": 24.3, "ratio": None, "ci95": None, "pairs": 0,
        "against": None, "techniques": [], "settings": {}, "summary": "", "at_s": 9.0, "decided_at_s": 41.0,
        "evidence": {},
        "gates": [{"name": "start", "ok": True, "detail": "ready after 7.9 s", "document": {}, "at_s": 9.0},
                  {"name": "check", "ok": True, "detail": "40 of 40 cases", "document": {}, "at_s": 33.0}],
        "measurements": [_window("c0", "baseline", 0, 0, 24.3, 41.0)],
    }  # fmt: skip


def _round(number: int, parent: str, began_s: float) -> dict[str, Any]:
    technique, title, verdict, value, ratio, reason = ROUNDS[number - 1]
    name = f"c{number}"
    gates: list[dict[str, Any]] = [
        {
            "name": "start",
            "ok": verdict != "failed-start",
            "detail": "ready after 4.1 s",
            "document": {},
            "at_s": began_s + 5,
        }
    ]
    measurements = []
    if verdict != "failed-start":
        gates.append(
            {
                "name": "check",
                "ok": verdict != "rejected-accuracy",
                "detail": "40 cases",
                "document": {},
                "at_s": began_s + 12,
            }
        )
    if value is not None or verdict == "rejected-integrity":
        ok = verdict != "rejected-integrity"
        gates += [{"name": "fresh prompts", "ok": ok, "detail": reason if not ok else "as fast as seen ones", "document": {}, "at_s": began_s + 20},
                  {"name": "hardware counters", "ok": None, "detail": "not run: no permission", "document": {}, "at_s": began_s + 20}]  # fmt: skip
    if value is not None and ratio is not None:
        for pair in range(5):
            spread = 1 + 0.01 * math.sin(3 * pair + number)
            noisy = "other programs used 31 % of the processors" if (number, pair) == (4, 2) else ""
            at = began_s + 30 + 14 * pair
            measurements += [
                _window(parent, "pair", pair, pair % 2, value / ratio[0], at, noisy=noisy),
                _window(name, "pair", pair, 1 - pair % 2, value * spread, at + 7),
            ]
    evidence = {} if not value else {
        "engine.linear_share": fact(61 - number, "%"),
        "batch.rows_per_step": fact(13.2 + number / 10, "rows"),
    }  # fmt: skip
    return {
        "round": number, "candidate": name, "parent": parent, "technique": technique, "title": title, "commit": None,
        "hypothesis": f"{title} raises tokens/s, because requests wait {8 - number} s in the queue while one row is computed.",
        "expected_effect": "more rows in each product, so that the weights are read once for all", "expected_ratio": 3.1 / number ** 0.5,
        "falsification": "batch occupancy stays below 2, or the interval holds 1", "activation": [],
        "why": "largest expected gain among the techniques whose conditions hold", "proposed_by": "playbook", "hypothesis_state": "proven",
        "not_others": [{"technique": "speculative_decoding", "reason": "no draft model in the bundle"}],
        "verdict": verdict, "reason": reason, "value": value, "ratio": ratio[0] if ratio else None,
        "ci95": list(ratio[1:]) if ratio else None, "pairs": 5 if ratio else 0, "against": parent,
        "techniques": [technique], "settings": {"max_batch": 16, "block_size": 16 + number, "dtype": "float32"}, "summary": f"set {technique} in engine.toml",
        "at_s": began_s, "decided_at_s": began_s + 102, "evidence": evidence, "gates": gates, "measurements": measurements,
    }  # fmt: skip


def sample_document(rounds: int = len(ROUNDS)) -> dict[str, Any]:
    """A finished run of `rounds` rounds."""
    entries, parent, now = [_reference()], "c0", 41.0
    for number in range(1, rounds + 1):
        entry = _round(number, parent, now + 1)
        entries.append(entry)
        now = entry["decided_at_s"]
        parent = entry["candidate"] if entry["verdict"] == "kept" else parent
    logs = [math.log(best / base) for base, best in BEST_PAIRS]
    ratio = math.exp(sum(logs) / len(logs))
    finals = [
        window
        for pair, (base, best) in enumerate(BEST_PAIRS)
        for window in (
            _window("c0", "final", pair, pair % 2, base, now + 20 + 20 * pair, document=f"logs/final/c0-{pair}.json"),
            _window(
                parent,
                "final",
                pair,
                1 - pair % 2,
                best,
                now + 30 + 20 * pair,
                document=f"logs/final/{parent}-{pair}.json",
            ),
        )
    ]
    curve = [
        _window(name, "curve", level, 0, value, now + 140, concurrency=level, facts={"p95_latency_s": fact(p95, "s", source="its window"), "ttft_p50_s": fact(p95 / 9, "s")})
        for name, points in (("c0", [(1, 22.9, 2.9), (4, 24.0, 11.2)]), (parent, [(1, 52.0, 1.3), (4, 148.0, 1.9)]))
        for level, value, p95 in points
    ]  # fmt: skip
    return {
        "run": "20261202-071500-smollm2-135m-cpu-chat", "bundle": "smollm2-135m-cpu-chat", "state": "finished", "state_reason": "",
        "started": "2026-12-02T07:15:00+00:00", "elapsed_s": now + 150,
        "device": {"device": "a CPU of 2 cores, 7.6 GiB", "cpu_model": "a CPU", "cores_usable": 2, "memory_gib": 7.6, "hypervisor": True, "governor": None,
                   "packages": {"torch": "2.13.0", "transformers": "5.1.0"}, "threads": {"OMP_NUM_THREADS": None}},
        "metric": {"name": "output_tokens_per_s", "unit": UNIT, "direction": "higher"},
        "baseline": {"candidate": "c0", "value": 24.24, "source": "geometric mean of the 5 final pairs", "round_0_value": 24.3, "at_least": False},
        "best": {"candidate": parent, "value": 24.24 * ratio, "commit": None, "at_least": False},
        "improvement": {"ratio": ratio, "ci95": [ratio * 0.984, ratio * 1.016], "pairs": 5, "verdict": "kept", "reason": f"confirmed on fresh pairs: {ratio:.3g}× of the reference"},
        "limit": {"value": LIMIT, "fraction": 24.24 * ratio / LIMIT, "argument": "228 GFLOP/s of measured float32 matmul peak ÷ 0.2686 GFLOPs a token", "provenance": "counted by hand"},
        "rounds": entries,
        "stopped": {"kind": "plateau", "reason": "no technique is left that is expected to gain more than 3 %", "not_others": [{"technique": "prefix_cache", "reason": "prompts share no prefix"}]},
        "floor": [{"technique": "continuous_batching", "title": "continuous batching", "state": "in place", "reason": "by continuous_batching"}, {"technique": "packed_weights", "state": "in place", "reason": "c2"},
                  {"technique": "fused_attention", "state": "excused", "reason": "attention is 4 % of the time"}, {"technique": "static_decode_shapes", "state": "missing", "reason": ""},
                  {"technique": "cuda_graphs", "state": "not verified on hardware", "reason": "this machine has no GPU"}],
        "curve": curve, "final_pairs": finals,
        "request": {"bundle": "smollm2-135m-cpu-chat", "agent": "playbook", "budget_s": 900.0, "rounds": None, "seed": 0, "here": False,
                    "goal": {"slug": "smollm2-135m-cpu-chat", "modality": "text -> text", "api": "openai-chat", "metric": "output_tokens_per_s", "unit": UNIT, "direction": "higher",
                             "hardware": "cpu", "dtypes": ["float32"], "architecture": "LlamaForCausalLM", "workload_features": ["concurrent", "short prompts"], "objective": "# Objective\nMore tokens."},
                    "plan": {"pairs": 5, "window_s": 6.0, "final_pairs": 5, "final_window_s": 9.0}, "notes": []},
        "environment": {"python": "3.11", "weights": "sha256:ab12"},
        "facts": {"limit.value": fact(LIMIT, UNIT, "counted by hand", "arithmetic"), "machine.bandwidth_bytes_per_s": fact(28e9, "B/s", source="triad over 512 MiB"),
                  "machine.peak.float32": fact(228e9, "FLOP/s", source="matmul of 2048"), "machine.peak.bfloat16": fact(510e9, "FLOP/s", source="matmul of 2048"),
                  "model.flops_per_token": fact(0.2686e9, "FLOP", "counted by hand", "2 × parameters"), "limit.flops_per_request": fact(64 * 228e9 / LIMIT, "FLOP", "counted by hand", "products with weights, and attention"),
            "limit.kv_bytes_per_request": fact(3.6e8, "bytes", "counted by hand", "read and written"),
            "workload.output_tokens": fact(64, "tokens"),
            "workload.concurrency": fact(16, "requests"),
            "model.weight_bytes": fact(0.538e9, "B", "counted by hand", "4 bytes a parameter"),
                  "client.overhead_p99_s": fact(0.00042, "s", source="a fake server")},
        "events": [], "sessions": [], "report": None,
    }  # fmt: skip


def sample_directory(folder: Path, document: dict[str, Any]) -> Path:
    """A run's directory beside `document`: a workspace with a commit a candidate, and the benchmark's JSON of the final pairs."""
    workspace = folder / "workspace"
    workspace.mkdir(parents=True)
    _git(workspace, "init", "-q")
    for entry in document["rounds"][1:]:
        if entry["verdict"] == "failed-start":
            continue
        lines = [f"{name} = {json.dumps(value)}" for name, value in entry["settings"].items()]
        (workspace / "engine.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (workspace / f"{entry['technique']}.py").write_text(
            f'"""{entry["title"]}."""\n\nACTIVE = True\n', encoding="utf-8"
        )
        _git(workspace, "add", ".")
        _git(workspace, "-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "-q", "-m", entry["title"])
        entry["commit"] = _git(workspace, "rev-parse", "HEAD").strip()
    for window in document["final_pairs"]:
        path = folder / window["document"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_written(window)), encoding="utf-8")
    return folder


def _written(window: dict[str, Any]) -> dict[str, Any]:
    """What the benchmark writes of a window of 16 requests at once."""
    draw = random.Random(window["pair"])
    slow = window["candidate"] == "c0"
    count, mean = (9, 30.0) if slow else (70, 3.3)
    records = [
        {"scheduled_s": i * 9 / count, "ttft_s": draw.uniform(0.1, 0.3) * mean, "latency_s": mean * draw.uniform(0.8, 1.3), "state": "ok", "error": None}
        for i in range(count)
    ]  # fmt: skip
    if slow:
        records[4] |= {"state": "failed", "latency_s": None, "error": "HTTP 500"}
    records[-1] |= {"state": "cut off", "latency_s": None}
    return {
        "per_request": records,
        "workload": {"concurrency": 16},
        "output_tokens_per_s": window["value"],
        "p95_latency_s": 1.25 * mean,
        "p50_ttft_s": mean / 5,
        "goodput": None,
        "p95_latency_s_is_lower_bound": slow,
    }


def _git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout
