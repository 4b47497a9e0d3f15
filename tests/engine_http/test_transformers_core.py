"""Families that the engine has no code for, through transformers: answers as `generate` gives them, whoever else is there.

The models are small, with random weights, in float32. Alone the ids are exactly those of `generate`; in a batch the
rounding of stock kernels may differ in the last bits, which these models (gaps between logits far above) do not feel.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from vibeserve.engine.errors import RequestError, SettingsError, UnsupportedModelError
from vibeserve.engine.prompt_cache import WORTH_TOKENS, PromptCache, bytes_of
from vibeserve.engine.settings import Settings, settings_from
from vibeserve.engine.transformers_core import TransformersCore, TransformersSettings, transformers_settings_from
from vibeserve.engine.types import Output, Request, SamplingParams

SIZES = {
    "vocab_size": 420, "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 96, "max_position_embeddings": 256, "eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
FAMILIES = {
    "olmo_hybrid": {"linear_key_head_dim": 16, "linear_value_head_dim": 32, "num_key_value_heads": 4},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "qwen2_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
                  "shared_expert_intermediate_size": 48, "decoder_sparse_step": 1},
    "gemma2": {"sliding_window": 12, "head_dim": 16, "query_pre_attn_scalar": 16},
}  # fmt: skip
PROMPTS = [[5, 9, 17, 33, 4], [200, 3, 3, 41, 90, 100, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], [300], [7, 7, 90, 12]]


def make(family: str, folder: Path, tokens: Path) -> Path:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    config = AutoConfig.for_model(family, **(SIZES | FAMILIES[family]))
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "norm" not in name:
            torch.nn.init.normal_(parameter, std=0.3 if "embed" in name else 0.15)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokens / name, folder / name)
    return folder


@pytest.fixture(scope="module", params=list(FAMILIES))
def family(request, tmp_path_factory, tiny_model) -> Path:
    return make(request.param, tmp_path_factory.mktemp("families") / request.param, tiny_model)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory, tiny_model) -> Path:
    return make("olmo_hybrid", tmp_path_factory.mktemp("families") / "olmo_hybrid", tiny_model)


def core_of(folder: Path, batching: str, prefix_cache: bool = False, **settings) -> TransformersCore:
    chosen = Settings(**({"threads": 1, "max_batch": 3} | settings))
    return TransformersCore(folder, chosen, TransformersSettings(batching, prefix_cache))


def drive(core: TransformersCore, requests: list[Request], *, stagger: int = 0) -> dict[str, list[Output]]:
    """Run until nothing is left; one more request comes every `stagger` steps (0: all at once)."""
    waiting, found, steps = list(requests), {request.id: [] for request in requests}, 0
    while waiting or core.has_work():
        while waiting and (not stagger or steps % stagger == 0):
            core.add(waiting.pop(0))
            if stagger:
                break
        for output in core.step():
            found[output.request_id].append(output)
        steps += 1
        assert steps < 1000
    core.rest()
    return found


def ids(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def generated(folder: Path, prompt: list[int], tokens: int) -> list[int]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    given = torch.tensor([prompt])
    with torch.inference_mode():
        out = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=tokens, do_sample=False)
    return out[0, len(prompt) :].tolist()


@pytest.fixture(scope="module")
def expected(family) -> list[list[int]]:
    torch.set_num_threads(1)
    return [generated(family, prompt, 24) for prompt in PROMPTS]


def greedy(at: int, tokens: int = 24, **more) -> Request:
    return Request(f"r{at}", tuple(PROMPTS[at]), SamplingParams(temperature=0.0, max_tokens=tokens, **more))


@pytest.mark.parametrize(("batching", "stagger"), [("off", 0), ("continuous", 0), ("continuous", 5), ("static", 0)])
def test_greedy_answers_are_those_of_generate(family, expected, batching, stagger):
    core = core_of(family, batching)
    assert core.stats().features["continuous_batching"] == (batching == "continuous")
    found = drive(core, [greedy(at) for at in range(len(PROMPTS))], stagger=stagger)
    assert [ids(found[f"r{at}"]) for at in range(len(PROMPTS))] == expected
    stats = core.stats()
    assert sum(stats.finished.values()) == stats.admitted == len(PROMPTS)
    if batching != "off":
        assert stats.batch_rows / stats.steps > 1.2
    else:
        assert stats.batch_rows == stats.steps


BEGINNING = [(7 * at) % 400 + 3 for at in range(70)]
TAILS = [[5, 9, 17], [200, 3, 3, 41, 90], [300], [7, 7, 90, 12], [11, 12], [5, 9, 18, 4]]


@pytest.mark.parametrize("batching", ["off", "continuous", "static"])
def test_a_shared_beginning_is_computed_once_and_answers_are_those_of_generate(family, batching):
    core = core_of(family, batching, prefix_cache=True)
    assert core.stats().features["prefix_cache"]
    prompts = [BEGINNING + tail for tail in TAILS]
    params = SamplingParams(temperature=0.0, max_tokens=16)
    found = drive(core, [Request(f"r{at}", tuple(prompt), params) for at, prompt in enumerate(prompts)], stagger=3)
    for at, prompt in enumerate(prompts):
        assert ids(found[f"r{at}"]) == generated(family, prompt, 16), at
    cached = [found[f"r{at}"][0].cached_tokens for at in range(len(prompts))]
    assert cached[:2] == [0, 0], "the first is new, the second shows where the first two part"
    assert all(len(BEGINNING) <= known < len(prompt) for known, prompt in zip(cached[2:], prompts[2:], strict=True))
    stats = core.stats()
    assert stats.prefix_hit_tokens == sum(cached)
    assert stats.prefill_tokens + stats.prefix_hit_tokens == stats.prompt_tokens == sum(map(len, prompts))
    again = drive(core, [Request("again", tuple(prompts[1]), params), greedy(0)])
    assert ids(again["again"]) == ids(found["r1"])
    assert ids(again["r0"]) == generated(family, PROMPTS[0], 24), "one that shares nothing"
    assert again["r0"][0].cached_tokens == 0


def test_a_family_that_starts_anew_behind_a_cache_shares_nothing_and_says_why(hybrid, monkeypatch, caplog):
    from vibeserve.engine import transformers_core

    run = transformers_core._Forward.run

    def forgetful(self, tokens, cache, lengths, *, every=False):
        if len(tokens[0]) > 1 and cache.get_seq_length():
            cache = self.new_cache()
        return run(self, tokens, cache, lengths, every=every)

    monkeypatch.setattr(transformers_core._Forward, "run", forgetful)
    core = core_of(hybrid, "continuous", prefix_cache=True)
    assert not core.stats().features["prefix_cache"]
    assert "other results" in core.stats().info["no_prefix_cache_because"]
    assert "no prefixes are shared" in caplog.text


def test_what_is_held_stays_within_its_bytes(hybrid):
    one = PromptCache(1 << 30)
    core = core_of(hybrid, "off")
    caches = []
    for at in range(3):
        cache = core._forward.new_cache()
        core._forward.run([BEGINNING[at:]], cache, None)
        caches.append((BEGINNING[at:], cache))
    size = bytes_of(caches[0][1])
    assert size > 0
    small = PromptCache(2 * size)
    for tokens, cache in caches:
        one.keep(tokens, cache)
        small.keep(tokens, cache)
    assert one.held_bytes == sum(bytes_of(cache) for _, cache in caches)
    assert (small.evicted, small.held_tokens) == (1, 69 + 68)
    assert small.held_bytes <= 2 * size
    assert small.longest([*BEGINNING, 1]) == (0, None)
    assert small.longest([*BEGINNING[1:], 1])[0] == 69
    assert one.longest(BEGINNING)[0] == 0, "a token must be left to compute"
    nothing = PromptCache(size - 1)
    nothing.keep(*caches[0])
    assert nothing.held_bytes == 0


def test_where_to_stop():
    cache = PromptCache(1 << 20)
    assert cache.shared(list(range(100)), 0) == 0, "nothing was seen"
    assert cache.shared([*range(60), 7, 8], 0) == 60
    assert cache.shared([*range(60), 9], 60) == 0, "known already"
    assert cache.shared([*range(WORTH_TOKENS - 1), 900], 0) == 0, "too little"
    assert cache.shared(list(range(100)), 60) == 99, "a token is left over"
    assert cache.shared([500], 0) == 0


def test_answers_differ_between_prompts_and_are_long(expected):
    assert len({tuple(answer) for answer in expected}) == len(PROMPTS)
    assert max(len(answer) for answer in expected) == 24


def test_survivors_of_cancels_answer_the_same(family, expected):
    core = core_of(family, "continuous")
    for at in (0, 1, 2):
        core.add(greedy(at))
    core.add(Request("r3", tuple(PROMPTS[3]), greedy(3).params))
    found: dict[str, list[Output]] = {f"r{at}": [] for at in range(4)}
    for step in range(200):
        if step == 6:
            core.abort("r1")
        for output in core.step():
            found[output.request_id].append(output)
        if not core.has_work():
            break
    core.rest()
    assert found["r1"][-1].finish_reason == "abort"
    for at in (0, 2, 3):
        assert ids(found[f"r{at}"]) == expected[at]
    assert core.stats().kv_blocks_used == 0


def test_scores_sampling_and_limits(hybrid):
    core = core_of(hybrid, "continuous")
    plain = greedy(0, 4, logprobs=2, prompt_logprobs=True)
    seeded = Request("s", tuple(PROMPTS[1]), SamplingParams(temperature=1.0, seed=4, max_tokens=6))
    found = drive(core, [plain, seeded])
    first = found["r0"][0]
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert [entry.token_id for entry in first.prompt_logprobs[1:]] == PROMPTS[0][1:]
    assert first.logprobs is not None
    assert first.logprobs[0].logprob == first.logprobs[0].top[0][1] <= 0
    again = drive(core, [seeded])
    assert ids(again["s"]) == ids(found["s"])
    for request, field in (
        (Request("x", (), SamplingParams()), "prompt"),
        (Request("x", (420,), SamplingParams()), "prompt"),
        (Request("x", (1,), SamplingParams(max_tokens=256)), "max_tokens"),
    ):
        with pytest.raises(RequestError) as caught:
            core.check(request)
        assert caught.value.field == field


def test_bf16_runs(hybrid):
    found = drive(core_of(hybrid, "continuous", dtype="bfloat16"), [greedy(0, 5), greedy(1, 5)])
    assert [len(ids(outputs)) for outputs in found.values()] == [5, 5]


def test_bad_settings_and_models_are_said(tmp_path, tiny_model):
    with pytest.raises(SettingsError, match="batching must be one of"):
        transformers_settings_from({"batching": "some"})
    with pytest.raises(SettingsError, match="prefix_cache must be true or false"):
        transformers_settings_from({"prefix_cache": "yes"})
    with pytest.raises(SettingsError, match="unknown key 'speed'"):
        transformers_settings_from({"speed": 1})
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-family"}))
    with pytest.raises(UnsupportedModelError, match="no-such-family"):
        TransformersCore(tmp_path, settings_from({}), TransformersSettings())
    remote = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config", "AutoModelForCausalLM": "mine.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(remote))
    (tmp_path / "mine.py").write_text("raise SystemExit('remote code ran')")
    with pytest.raises(UnsupportedModelError):
        TransformersCore(tmp_path, settings_from({}), TransformersSettings())


@pytest.mark.parametrize("table", ["[transformers]\nbatching = 'static'\nprefix_cache = true\n", ""])
def test_served_over_http_by_a_copy(hybrid, start_script, table):
    """With its table, and without: a family that the engine lacks goes to transformers, and the metrics say so."""
    config = f"[engine]\nmax_batch = 4\nthreads = 1\n{table}"
    with start_script(hybrid, config, parts=["core", "http", "transformers"]) as server:
        asked = {"prompt": PROMPTS[0], "max_tokens": 24, "temperature": 0, "return_token_ids": True}
        status, body = server.call("/v1/completions", asked)
        assert status == 200
        assert json.loads(body)["choices"][0]["token_ids"] == generated(hybrid, PROMPTS[0], 24)
        batching = "static" if table else "continuous"
        assert server.metric(f'engine_feature_active{{feature="{batching}_batching"}}') == 1
        assert b'backend="transformers",family="olmo_hybrid"' in server.get("/metrics")[1]
        assert ("transformers runs it instead" in server.log.read_text()) == (not table)
        server.wait_for(server.idle)


def test_a_copy_without_the_part_says_so(hybrid, start_script):
    with start_script(hybrid, "", parts=["core", "http"], ready=False) as server:
        assert server.process.wait(60) == 1
        last = server.log.read_text().splitlines()[-1]
        assert "the model could not be loaded" in last
        assert "OlmoHybrid" in last
