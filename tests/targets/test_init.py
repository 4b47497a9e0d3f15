"""VS Init: clues, goals, names, the one question, and the bundle that is written after a yes."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.targets.checkpoints import llama

from vibeserve.base.errors import InputError, MissingError
from vibeserve.targets import contracts, propose, read_bundle, read_goal, validate, write_bundle
from vibeserve.targets.create import set_default
from vibeserve.targets.inference import Evidence, ask_suffix, gather, infer, modalities, source_for
from vibeserve.targets.slug import family_and_size, hyphenate, machine_in_goal, machine_of, slug_for

DATA = Path(__file__).parent / "data"
GOALS = tomllib.loads((DATA / "goals.toml").read_text())["goals"]
MODELS = tomllib.loads((DATA / "models.toml").read_text())["models"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path


def test_there_are_enough_cases():
    assert len(GOALS) >= 500
    assert len(MODELS) >= 265


@pytest.mark.parametrize("case", GOALS, ids=lambda case: case["goal"][:50] or "empty")
def test_goals_are_read_as_meant(case):
    reading = contracts.adapted(read_goal(case["goal"]), modalities()[case.get("modality", "text")])
    assert (reading.metric or "") == case["metric"]
    assert reading.vague == (case["metric"] == "")
    want = {k: case.get(k) for k in ("direction", "rate", "concurrency", "prompt", "output", "shared")}
    found = {
        "direction": reading.direction, "rate": reading.rate, "concurrency": reading.concurrency,
        "prompt": reading.prompt_tokens, "output": reading.output_tokens, "shared": reading.shared_prefix_tokens,
    }  # fmt: skip
    assert found == pytest.approx(want)
    assert reading.slo_ttft_s == pytest.approx(case.get("slo_ttft"))
    assert reading.slo_tpot_s == pytest.approx(case.get("slo_tpot"))
    if "limit" in case:
        assert reading.limit == pytest.approx(case["limit"])
    assert reading.bound == case.get("bound")
    if "machine" in case:
        assert machine_in_goal(case["goal"]) == case["machine"]


def test_a_wrong_direction_is_said_back():
    reading = read_goal("maximize p95 latency for 128-token chat completions at 8 req/s")
    assert any("as low as possible" in note for note in reading.notes)
    assert "p95_latency_s, lower is better" in reading.said_back()
    assert any("as high as possible" in note for note in read_goal("minimize throughput").notes)


def test_what_is_missing_is_named():
    assert read_goal("make it fast").missing == ("metric", "load", "lengths")
    assert read_goal("throughput at 8 req/s").missing == ("lengths",)
    assert read_goal("throughput at 8 req/s with 64-token answers").missing == ()


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case["id"])
def test_models_are_recognised(case, here):
    evidence = Evidence(case["id"], case["goal"], tuple(case.get("tags", ())), tuple(case.get("config", ())))
    found = infer(evidence)
    assert found.modality.name == case["modality"]
    if "api" in case:
        assert found.api == case["api"]
    if "source" in case:
        assert source_for(found.modality, machine_of(case.get("hardware")), evidence).name == case["source"]
    if "alternative" in case:
        assert case["alternative"] in [other.name for other in found.alternatives]
        assert found.confidence < 0.9
    words = {
        "format": "number format",
        "adapter": "adapter",
        "base": "base model",
        "draft": "draft",
        "picture": "takes a picture",
    }
    if "doubt" in case:
        assert any(words[case["doubt"]] in doubt for doubt in found.doubts)
    if "slug" in case and not case.get("tags") and not case.get("config"):
        assert propose(case["id"], case.get("hardware"), case["goal"]).slug == case["slug"]


@pytest.mark.parametrize(
    ("model", "machine", "goal", "source", "why"),
    [
        ("acme/Qwen3-8B", "trn2", "p95 latency at 4 req/s", "Llama-3-8B", "nothing asks for Trainium's own set-up"),
        ("acme/Qwen3-8B", "trn2", "p95 latency at 4 req/s with NKI kernels", "Llama-3-8B-trn2", "the goal speaks of 'NKI'"),
        ("acme/Qwen3-8B", "trn2", "p95 latency, no custom kernels", "Llama-3-8B", "nothing asks for Trainium's own set-up"),
        ("acme/Qwen3-8B-neuronx", "inf2", "p95 latency", "Llama-3-8B-trn2", "the model's id says 'neuronx'"),
        ("acme/Meta-Llama-3-8B", "trn2", "p95 latency", "Llama-3-8B-trn2", "the example is of this very model"),
        ("acme/Qwen3-8B", "h100", "p95 latency with our own kernels", "Llama-3-8B", "the example of text -> text"),
    ],
)  # fmt: skip
def test_the_example_with_trainiums_set_up_is_taken_where_that_matters(here, cli, model, machine, goal, source, why):
    proposal = propose(model, machine, goal)
    assert proposal.source_name == source
    assert why in proposal.source_reason
    code, out, _ = cli("init", "--model", model, "--hardware", machine, "--goal", goal)
    assert code == 2
    assert f"source example: {source} ({proposal.source_reason})" in out
    assert proposal.document()["source_reason"] == proposal.source_reason


def test_set_up_of_trainium_reaches_the_bundle(here):
    generic = propose("acme/Qwen3-8B", "trn2", "p95 latency at 4 req/s", slug="generic")
    special = propose("acme/Qwen3-8B", "trn2", "p95 latency at 4 req/s", slug="special", source="Llama-3-8B-trn2")
    for proposal in (generic, special):
        write_bundle(proposal)
        assert "compiled for fixed shapes" in (proposal.path / "OBJECTIVE.md").read_text()
    assert special.source_reason == "asked for"
    assert "## On Trainium" in (special.path / "reference" / "README.md").read_text()
    assert "Trainium" not in (generic.path / "reference" / "README.md").read_text()
    elsewhere = propose("acme/Qwen3-8B", "h100", "p95 latency at 4 req/s", slug="elsewhere")
    write_bundle(elsewhere)
    assert "compiled for fixed shapes" not in (elsewhere.path / "OBJECTIVE.md").read_text()


def test_what_a_goal_sets_aside_sums_up_or_leaves_open_is_said():
    aside = read_goal("higher p99 is fine, but lower the median at 8-16 users")
    assert "'higher p99 is fine' is left out of what is optimised" in aside.notes
    assert "'8-16' is read at its upper end, 16" in aside.notes
    pieces = read_goal("each request has 6 chunks of 500 tokens, TTFT p95")
    assert "'6 chunks of 500 tokens' is read as 3000 tokens together" in pieces.notes
    assert read_goal("throughput over 40 documents of 900 tokens").prompt_tokens == 900  # so many requests, not one


def test_every_source_and_closest_example_is_one_that_the_data_names():
    for modality in modalities().values():
        assert modality.source or modality.closest
        assert modality.api.startswith(("openai-", "websocket-", "http"))


def test_a_folder_says_more_than_its_name(here):
    folder = here / "thing"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"architectures": ["WhisperForConditionalGeneration"]}))
    assert infer(gather(str(folder), "")).modality.name == "speech-to-text"
    (folder / "config.json").write_text(json.dumps({"architectures": ["XForCausalLM"], "vision_config": {}}))
    assert infer(gather(str(folder), "")).modality.name == "image-text-to-text"
    (folder / "config.json").unlink()
    (folder / "README.md").write_text("---\npipeline_tag: text-to-image\ntags: [diffusers]\n---\nHello")
    assert infer(gather(str(folder), "")).modality.name == "text-to-image"
    for name in ("a.gguf", "b.gguf"):
        (folder / name).write_bytes(b"GGUF")
    (folder / "adapter_config.json").write_text("{}")
    doubts = " ".join(infer(gather(str(folder), "")).doubts)
    assert "several GGUF files" in doubts
    assert "adapter" in doubts


@given(st.text(max_size=40))
def test_slugs_have_letters_digits_and_hyphens_only(text):
    for slug in (hyphenate(text), slug_for(text or "x", "h100", "chat")):
        assert re.fullmatch(r"[a-z0-9]*(-[a-z0-9]+)*", slug)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"), ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("a/Llama-3.1-8B-Instruct-MLX-8bit", "llama-3-1-8b"), ("a/SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m"),
        ("a/DeepSeek-V3", "deepseek-v3"), ("a/Mistral-Small-24B-Instruct-2501", "mistral-small-24b"), ("a/whisper-base.en", "whisper-base-en"), ("x", "x"),
    ],
)  # fmt: skip
def test_family_and_size(model, name):
    assert family_and_size(model) == name


def test_the_question_is_the_seeds(here):
    proposal = propose("Qwen/Qwen3-8B", "H100", "p95 under 2 s at 8 req/s")
    assert proposal.question == (
        "I infer this is text -> text via OpenAI chat completions, and I would create "
        "examples/model-serving/qwen3-8b-h100-chat/. Is that right?"
    )
    unsure = propose("acme/Qwen2.5-VL-7B-Instruct", "H100", "p95 latency").question
    assert "I think this is probably image+text -> text" in unsure
    assert "but it may be text -> text" in unsure
    assert "Which modality should this benchmark exercise?" in unsure
    assert "plain English" in propose("Qwen/Qwen3-8B", "H100", "make it good").question


def test_corrections_are_taken(here):
    proposal = propose(
        "acme/Qwen2.5-VL-7B-Instruct",
        "H100",
        "p95 latency",
        modality="text -> text",
        api="openai-completions",
        slug="My Own Name!",
    )
    assert proposal.inference.modality.name == "text"
    assert proposal.inference.api == "openai-completions"
    assert proposal.slug == "my-own-name"
    assert proposal.inference.alternatives == ()
    assert propose("a/b-7b", "cpu", "throughput", slug="My_Name", exact_slug=True).slug == "My_Name"
    for wrong in (
        {"modality": "smell -> text"},
        {"api": "grpc"},
        {"source": "no-such"},
        {"slug": "a/b", "exact_slug": True},
        {"slug": "!!"},
    ):
        with pytest.raises(InputError):
            propose("a/b-7b", "cpu", "throughput", **wrong)
    with pytest.raises(InputError, match="no model"):
        propose(" ")


def test_nothing_is_written_without_a_yes(here, cli):
    code, out, err = cli(
        "init", "--model", "Qwen/Qwen3-8B", "--hardware", "H100", "--goal", "p95 latency at 8 req/s", "--json"
    )
    document = json.loads(out)
    assert code == 2
    assert document["written"] is False
    assert document["files"] == []
    assert document["source_example"] == "Llama-3-8B"
    assert document["slug"] == "qwen3-8b-h100-chat"
    assert {"input", "output", "api", "confidence", "alternatives"} <= set(document["modality"])
    assert document["reading"]["metric"] == "p95_latency_s"
    assert "--yes" in err
    assert list(here.iterdir()) == []


def test_a_vague_goal_is_not_written_even_with_yes(here, cli):
    code, out, _ = cli(
        "init", "--model", "Qwen/Qwen3-8B", "--hardware", "H100", "--goal", "measure prefix caching", "--yes", "--json"
    )
    assert code == 2
    assert "plain English" in json.loads(out)["question"]
    assert list(here.iterdir()) == []


def test_from_a_sentence_to_a_validated_bundle(here, cli):
    code, out, err = cli(
        "init",
        "--model",
        "Qwen/Qwen3-8B",
        "--hardware",
        "H100",
        "--goal",
        "p95 under 2 s at 8 req/s",
        "--yes",
        "--json",
    )
    document = json.loads(out)
    assert code == 0, err
    assert document["written"] is True
    assert document["validation"]["ok"] is True
    folder = here / "examples" / "model-serving" / "qwen3-8b-h100-chat"
    bundle = read_bundle(folder)
    assert (bundle.metric.name, bundle.metric.direction, bundle.hardware) == ("p95_latency_s", "lower", "h100")
    assert bundle.meta.model_id == "Qwen/Qwen3-8B"
    assert bundle.meta.task == "text-generation"
    assert bundle.benchmark_args[:4] == ("--endpoint", "/v1/chat/completions", "--rate", "8")
    benchmark = (folder / "benchmark" / "benchmark.py").read_text()
    assert re.search(r'"--rate",\s+type=float,\s+default=8', benchmark)
    assert "smollm2" not in (folder / "reference" / "README.md").read_text().lower()
    assert "smollm2-135m-cpu-chat" not in (folder / "accuracy_checker" / "README.md").read_text()
    assert not (folder / "reference" / "model").exists()
    assert document["next_command"] == (
        "vibeserve --ref examples/model-serving/qwen3-8b-h100-chat/reference --acc-checker "
        "examples/model-serving/qwen3-8b-h100-chat/accuracy_checker --bench examples/model-serving/qwen3-8b-h100-chat/benchmark"
    )
    assert document["next_command"].split("vibeserve ")[1] in (folder / "README.md").read_text()
    code, out, err = cli(
        "init", "--model", "Qwen/Qwen3-8B", "--hardware", "H100", "--goal", "p95 under 2 s at 8 req/s", "--yes"
    )
    assert code == 2
    assert "never overwritten" in err


def test_limits_of_other_quantities_stand_in_the_objective_and_doubts_end_once(here):
    goal = "p95 TTFT at 4 req/s, 64k context, TPOT below 50 ms"
    proposal = propose("acme/llama-3-8b-lora", "cpu", goal)
    assert "which one? Also: it may be a base model" in proposal.question  # long contexts are a special workload too
    assert "?." not in proposal.question
    write_bundle(proposal)
    objective = (proposal.path / "OBJECTIVE.md").read_text()
    assert "lower is better, with tpot at most 0.05 s." in objective
    assert "which one?\n" in objective


def test_a_local_checkpoint_and_a_users_own_source(here):
    checkpoint = llama(here / "my-llama-1m-instruct")
    proposal = propose(str(checkpoint), "cpu", "minimize p95 latency at 2 req/s")
    write_bundle(proposal)
    own = read_bundle(proposal.path)
    assert own.meta.sources == (f"file:{checkpoint}",)
    assert own.dtypes == ("float32",)
    assert (own.near_tie_margin, own.min_top1) == (0.0, 1.0)
    (proposal.path / "OBJECTIVE.md").write_text((proposal.path / "OBJECTIVE.md").read_text() + "\nMine.\n")
    second = propose("Qwen/Qwen3-8B", "cpu", "throughput", source=proposal.slug)
    assert second.source == proposal.path
    write_bundle(second)
    assert validate(second.path, run_scripts=False).ok


def test_a_code_edit_goal_gets_a_bundle_of_code_edits(here):
    proposal = propose("Qwen/Qwen3-32B", "H100", "tokens per second for single-user code edits with predicted outputs")
    assert proposal.source_name == "qwen3-32b-code-edit"
    write_bundle(proposal, known_hardware=("h100",))
    bundle = read_bundle(proposal.path)
    assert bundle.api == "openai-chat"
    assert bundle.modality == "text -> text"  # what serves it; what is asked is said in OBJECTIVE.md
    assert bundle.benchmark_args[:4] == ("--endpoint", "/v1/chat/completions", "--concurrency", "1")
    assert "512" in bundle.benchmark_args
    objective = (proposal.path / "OBJECTIVE.md").read_text()
    assert "text/code -> edited code" in objective
    assert "`prediction`" in objective
    assert (proposal.path / "benchmark" / "fixes.py").is_file()
    result = validate(proposal.path)
    assert result.ok, [check for check in result.checks if check.ok is False]


WITHOUT_EXAMPLE = {
    "acme/bge-m4": ("embedding throughput", "openai-embeddings", "embeddings_per_s"),
    "acme/distilbert-sentiment": ("mean latency of classifications", "http", "mean_latency_s"),
    "acme/Qwen2.5-VL-7B-Instruct": ("p95 latency of describing images", "openai-chat", "p95_latency_s"),
    "acme/kokoro-2-90m": ("p50 latency", "openai-speech", "p50_latency_s"),
    "acme/cogvideox-5b": ("videos per minute", "openai-videos", "videos_per_s"),
    "acme/moshi-2": ("median time to the first audio of a voice assistant", "openai-realtime", "p50_ttft_s"),
}


@pytest.mark.parametrize("model", WITHOUT_EXAMPLE)
def test_without_an_example_the_contract_is_asked_about_and_then_written(here, model):
    goal, api, metric = WITHOUT_EXAMPLE[model]
    proposal = propose(model, "cpu", goal)
    assert "No example has this contract" in proposal.question
    assert "Which contract should be measured" in proposal.question
    assert proposal.inference.api == api
    write_bundle(proposal)
    assert read_bundle(proposal.path).metric.name == metric
    result = validate(proposal.path)
    assert result.ok, [check for check in result.checks if check.ok is False]
    contract = (proposal.path / "benchmark" / "contract.py").read_text()
    assert contract == (proposal.path / "accuracy_checker" / "contract.py").read_text()
    assert "/v1/images" not in contract
    assert "terrain" not in "".join(
        f.read_text() for f in proposal.path.rglob("README.md") if f.parent != proposal.path
    )
    for script in proposal.path.rglob("*.py"):
        assert not re.search(r"(?m)^# requires", script.read_text())


def test_a_contract_without_a_template_is_refused_with_the_way_on(here):
    reranker = propose("acme/bge-reranker-m4", "cpu", "p50 latency of scores", api="http")
    forecasts = propose("acme/chronos-3-base", "cpu", "forecasts per second")
    assert "time series -> forecast" in forecasts.question
    assert "Which contract should be measured" in forecasts.question
    for proposal in (reranker, forecasts):
        with pytest.raises(MissingError, match="neither an example nor a template"):
            write_bundle(proposal)
    assert list((here / "examples" / "model-serving").iterdir()) == []


def test_a_bundle_of_ones_own_brings_the_contract_that_no_example_has(here):
    first = propose("acme/chronos-3-base", "cpu", "forecasts per second", source="terrain-diffusion-cpu-image")
    own = here / "examples" / "model-serving" / "my-forecasts"
    shutil.copytree(first.source, own)
    toml = (own / "bundle.toml").read_text()
    toml = toml.replace("text -> image", "time series -> forecast").replace("openai-images", "http")
    (own / "bundle.toml").write_text(toml)
    for place in ("accuracy_checker", "benchmark"):
        (own / place / "contract.py").write_text("# forecasts\n" + (own / place / "contract.py").read_text())
    proposal = propose("acme/timesfm-4", "cpu", "forecasts per second", source="my-forecasts")
    write_bundle(proposal)
    assert (proposal.path / "benchmark" / "contract.py").read_text().startswith("# forecasts\n")
    assert read_bundle(proposal.path).metric.name == "forecasts_per_s"


@pytest.mark.parametrize("metric", ["p90_latency_s", "mean_latency_s", "p99_latency_s"])
def test_every_percentile_that_is_read_is_one_that_the_generic_benchmark_reports(here, metric):
    goal = f"{metric.split('_')[0]} latency of 64x64 images, 2 steps"
    proposal = propose("acme/FLUX.2-dev", "cpu", goal)
    assert proposal.reading.metric == metric
    write_bundle(proposal)
    result = validate(proposal.path)
    assert result.ok, [check for check in result.checks if check.ok is False]


def test_a_percentile_that_is_not_measured_is_the_next_that_is_and_said():
    for said, metric in (("p75", "p90"), ("p99.9", "p99"), ("80th percentile", "p90"), ("p97", "p99")):
        reading = read_goal(f"{said} latency at 3 req/s")
        assert reading.metric == f"{metric}_latency_s"
        assert any("is not measured" in note for note in reading.notes)


def test_a_json_goal_gets_a_bundle_of_schemas(here):
    proposal = propose(
        "Qwen/Qwen3-8B", "H100", "p50 latency of JSON answers by schema, at most 200-token answers, 4 at once"
    )
    assert (proposal.source_name, proposal.inference.api) == ("Llama-3.1-8B-Instruct-MLX-8bit", "openai-chat")
    write_bundle(proposal, known_hardware=("h100",))
    bundle = read_bundle(proposal.path)
    assert bundle.benchmark_args == ("--way", "whole", "--max-tokens", "200", "--concurrency", "4")
    assert "mlx" not in (proposal.path / "reference" / "meta.json").read_text()
    result = validate(proposal.path)
    assert result.ok, [check for check in result.checks if check.ok is False]
    first = propose("Qwen/Qwen3-8B", "cpu", "time to first token of JSON answers", slug="first")
    write_bundle(first)
    assert read_bundle(first.path).benchmark_args[:2] == ("--way", "stream")
    assert validate(first.path).ok


def test_numbers_are_renamed_where_a_contract_has_no_tokens(here):
    reading = propose(
        "acme/FLUX.2-dev", "H100", "maximize throughput of 1024x1024 images with 28 steps, 8 at once"
    ).reading
    assert (reading.metric, reading.direction) == ("images_per_s", "higher")
    assert any("has no such number" in note for note in reading.notes)
    first = propose("acme/FLUX.2-dev", "H100", "minimize p95 TTFT").reading
    assert (first.metric, first.direction) == ("p95_latency_s", "lower")


def test_embeddings_are_said_back_in_their_own_words(here):
    goal = "embed short texts of 32 tokens, as many texts per second as possible, 16 clients at once"
    proposal = propose("sentence-transformers/all-MiniLM-L6-v2", "CPU", goal, dest=here / "mine")
    assert proposal.said_back == "embeddings_per_s, higher is better; 16 at once, 32-token texts"
    assert "I would create mine/all-minilm-l6-v2-cpu/." in proposal.question
    write_bundle(proposal)
    assert "inputs of about 32 tokens (26 words)" in (proposal.path / "OBJECTIVE.md").read_text()
    assert read_bundle(proposal.path).benchmark_args == ("--prompt-len", "26", "--concurrency", "16")
    assert "answers of" not in propose("acme/FLUX.2-dev", "H100", "images per second").said_back


def test_a_model_that_thinks_aloud_is_asked_to_answer_at_once(here):
    """Of a model that can do both; not where thinking is the workload, nor for models that never or always think."""
    proposal = propose("Qwen/Qwen3-8B", "cpu", "p95 latency at 2 req/s")
    write_bundle(proposal)
    bundle = read_bundle(proposal.path)
    assert bundle.checker_args == ("--ask-suffix", "/no_think")
    assert bundle.benchmark_args[-2:] == ("--ask-suffix", "/no_think")
    for script in ("accuracy_checker/checker.py", "benchmark/benchmark.py"):
        assert '"--ask-suffix", default="/no_think"' in (proposal.path / script).read_text()
    assert "without thinking aloud" in (proposal.path / "OBJECTIVE.md").read_text()
    assert ask_suffix("Qwen/Qwen3-30B-A3B-AWQ") == "/no_think"
    for other in (
        "Qwen/Qwen3-4B-Instruct-2507",
        "Qwen/Qwen3-4B-Thinking-2507",
        "Qwen/Qwen3.5-9B",
        "Qwen/Qwen2.5-7B-Instruct",
    ):
        assert ask_suffix(other) == ""
    aloud = propose("Qwen/Qwen3-8B", "cpu", "p95 latency of reasoning at 2 req/s", slug="aloud")
    write_bundle(aloud)
    assert read_bundle(aloud.path).checker_args == ()


def test_a_slip_of_the_pen_is_read_and_said(here):
    reading = read_goal("throuhgput at 4 req/s")
    assert reading.metric == "output_tokens_per_s"
    assert "'throuhgput' is read as 'throughput'" in reading.notes
    assert read_goal("requested embedding latency, concurrently").notes == read_goal("embedding latency").notes


def test_size_and_steps_of_an_image_goal_reach_both_scripts(here):
    proposal = propose("acme/FLUX.2-dev", "H100", "images per second at 1024x768 with 28 denoising steps, 8 at once")
    write_bundle(proposal)
    bundle = read_bundle(proposal.path)
    assert bundle.benchmark_args == ("--size", "1024x768", "--steps", "28", "--concurrency", "8")
    for place in ("accuracy_checker", "benchmark"):
        text = (proposal.path / place / "contract.py").read_text()
        assert 'default="1024x768"' in text
        assert "default=28" in text
    assert bundle.meta.task == "text-to-image"


def test_a_failed_write_leaves_nothing(here, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError("disk full")

    proposal = propose("Qwen/Qwen3-8B", "cpu", "throughput")
    monkeypatch.setattr("vibeserve.targets.create._adapt", fail)
    with pytest.raises(OSError, match="disk full"):
        write_bundle(proposal)
    assert not list((here / "examples" / "model-serving").iterdir())


def test_long_context_and_shared_prefix_reach_the_benchmark(here):
    long = propose(
        "acme/llama-4-8b-instruct", "cpu", "TTFT with 4,000-token prompts and 32-token answers, long-context, 2 at once"
    )
    write_bundle(long)
    assert read_bundle(long.path).benchmark_args[-4:] == ("--prompt-len", "4000", "--max-tokens", "32")
    shared = propose("acme/llama-4-8b-instruct", "cpu", "throughput with a 512-token shared prefix, 4 concurrent")
    write_bundle(shared)
    assert "--shared-prefix" in read_bundle(shared.path).benchmark_args
    assert read_bundle(shared.path).checker_args == ("--prefix-words", "512")


def test_set_default_changes_only_that_flag():
    source = "p.add_argument('--rate', type=float, default=1.0)\np.add_argument(\n    '--ü', help='x'\n)\n"
    assert set_default(source, "--rate", 8.5) == source.replace("1.0", "8.5")
    assert "'--ü', default=\"auto\"" in set_default(source, "--ü", "auto")
    assert set_default(source, "--none", 1) == source


def test_on_a_terminal_it_asks_takes_corrections_and_asks_again(here, cli, monkeypatch):
    answers = iter(["slug=Better Name", "yes"])
    asked: list[str] = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question="": (asked.append(question), next(answers))[1])
    code, out, _ = cli("init", "--model", "Qwen/Qwen3-8B", "--hardware", "cpu", "--goal", "throughput, 4 at once")
    assert code == 0
    assert "better-name" in asked[1]
    assert (here / "examples" / "model-serving" / "better-name" / "bundle.toml").is_file()
    assert "next:" in out
    shutil.rmtree(here / "examples")
    answers = iter(["no"])
    code, _, err = cli("init", "--model", "Qwen/Qwen3-8B", "--hardware", "cpu", "--goal", "throughput, 4 at once")
    assert code == 2
    assert "nothing was written" in err
    assert not (here / "examples").exists()
