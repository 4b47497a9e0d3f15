"""The load client against servers that are honest, that cheat, and that break."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
import statistics
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples.conftest import CHAT
from tests.examples.servers import HEAD, Ask, honest, serving

FAST = ("--calibrate", "0", "--num-requests", "6", "--concurrency", "3", "--max-tokens", "40", "--prompt-len", "200")


@pytest.fixture
def bench(benchmark, tiny, tmp_path, monkeypatch, capsys):
    """Run the benchmark in this process: (exit code, document, stderr)."""

    def run(url, *arguments):
        output = tmp_path / "result.json"
        output.unlink(missing_ok=True)
        command = [
            "benchmark.py",
            "--url",
            url,
            "--model-dir",
            str(tiny),
            "--output-json",
            str(output),
            *FAST,
            *arguments,
        ]
        monkeypatch.setattr(sys, "argv", command)
        code = benchmark.main()
        document = json.loads(output.read_text()) if output.is_file() else None
        return code, document, capsys.readouterr().err

    return run


def test_an_honest_server(bench):
    with serving(honest) as url:
        code, found, _ = bench(url)
    assert code == 0
    assert (found["requests"], found["completed"], found["failed"], found["cut_off"]) == (6, 6, 0, 0)
    assert found["output_tokens"] == 6 * 40
    assert found["output_tokens_per_s"] == pytest.approx(240 / found["duration_s"])
    assert found["plausibility"]["ok"] is True
    assert found["counted_by"] == {"ids, verified against the text": 6}
    assert found["missing_usage"] == 0
    for name in ("ttft_s", "tpot_s", "latency_s"):
        assert found[name]["n"] == 6
        assert 0 <= found[f"p50_{name}"] <= found[f"p95_{name}"] <= found[f"p99_{name}"]
    assert found["workload"] == {
        "prompt_tokens": 200, "output_tokens": 40, "concurrency": 3, "rate": None, "shared_prefix_tokens": 0, "features": ["chat"],
    }  # fmt: skip
    assert len(found["per_request"]) == 6
    assert {r["state"] for r in found["per_request"]} == {"ok"}
    assert all(s["token_ids"] == list(s["text"].encode()) for s in found["samples"])
    assert found["goodput"] == pytest.approx(found["request_throughput"])


def test_completions_endpoint_and_open_loop(bench):
    with serving(honest) as url:
        code, found, _ = bench(url, "--endpoint", "/v1/completions", "--sweep", "rate=200")
    assert code == 0
    assert found["completed"] == 6
    assert found["workload"]["rate"] == 200
    assert found["workload"]["concurrency"] is None


def test_tokens_are_never_chunks(bench):
    async def inflate(ask: Ask) -> None:
        """Half the tokens, each in four events, three of them empty."""
        if ask.number < 3:
            return await honest(ask)
        text = ask.answer(20)
        ask.writer.write(HEAD)
        for at, letter in enumerate(text):
            for _ in range(3):
                await ask.event("", [])
            await ask.event(letter, None, "length" if at == 19 else None)
        await ask.end(40)

    with serving(inflate) as url:
        code, found, _ = bench(url)
    assert (found["completed"], found["failed"]) == (0, 6)
    assert set(found["failures"]) == {"length"}
    assert code == 1


async def _close_after_the_answer(ask: Ask) -> None:
    """Says nothing of closing, and closes: the client finds out when it has sent its next request."""
    await honest(ask)
    asyncio.get_running_loop().call_later(0.002, ask.writer.close)


async def _end_in_pieces(ask: Ask) -> None:
    """The end of the body comes in four packets, with a trailer."""
    text = ask.answer()
    ask.writer.write(HEAD)
    await ask.event(text, list(text.encode()), "length")
    await ask.chunk(b"data: [DONE]\n\n")
    for piece in (b"0\r", b"\nX-Took: 1\r\n", b"\r", b"\n"):
        ask.writer.write(piece)
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("behave", [_close_after_the_answer, _end_in_pieces])
def test_what_http_allows_is_no_failure(bench, behave):
    with serving(behave) as url:
        code, found, _ = bench(url, "--num-requests", "30")
    assert (code, found["completed"], found["failed"]) == (0, 30, 0)


def _with(change):
    async def behave(ask: Ask) -> None:
        await change(ask)

    return behave


async def _wrong_usage(ask: Ask) -> None:
    text = ask.answer()
    ask.writer.write(HEAD)
    await ask.event(text, list(text.encode()), "length")
    await ask.end(2 * len(text))


async def _wrong_ids(ask: Ask) -> None:
    text = ask.answer()
    ask.writer.write(HEAD)
    await ask.event(text, [65] * len(text), "length")
    await ask.end(len(text))


async def _padded_ids(ask: Ask) -> None:
    text = ask.answer(20)
    ask.writer.write(HEAD)
    await ask.event(text, [*text.encode(), *([32] * 20)], "length")
    await ask.end(40)


async def _early_end(ask: Ask) -> None:
    text = ask.answer(9)
    ask.writer.write(HEAD)
    await ask.event(text, list(text.encode()), "stop")
    await ask.end(len(text))


async def _dropped(ask: Ask) -> None:
    ask.writer.write(HEAD)
    await ask.event("begun", list(b"begun"))
    ask.writer.close()


async def _no_done(ask: Ask) -> None:
    text = ask.answer()
    ask.writer.write(HEAD)
    await ask.event(text, list(text.encode()), "length")
    await ask.end(len(text), done=False)


async def _no_reason(ask: Ask) -> None:
    text = ask.answer()
    ask.writer.write(HEAD)
    await ask.event(text, list(text.encode()), None)
    await ask.end(len(text))


async def _garbage(ask: Ask) -> None:
    ask.writer.write(HEAD)
    await ask.chunk(b"data: {not json\n\n")
    await ask.end(None)


async def _not_http(ask: Ask) -> None:
    ask.writer.write(b"\x00\x01\x02 hello\r\n\r\n")


async def _wrong_type(ask: Ask) -> None:
    data = b'{"choices": []}'
    ask.writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
    )


async def _server_error(ask: Ask) -> None:
    data = b'{"error": {"message": "out of memory"}}'
    ask.writer.write(
        b"HTTP/1.1 500 Oops\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data)
    )


async def _replacement(ask: Ask) -> None:
    text = ask.answer(ask.count - 3)
    ask.writer.write(HEAD)
    await ask.event(text[:5] + "\ufffd" + text[5:], None, "length")
    await ask.end(None)


async def _error_inside(ask: Ask) -> None:
    ask.writer.write(HEAD)
    await ask.event("x", [120])
    await ask.chunk(b'data: {"error": {"message": "engine died"}}\n\n')
    await ask.end(None)


async def _empty(ask: Ask) -> None:
    ask.writer.write(HEAD)
    await ask.event("", [], "stop")
    await ask.end(0)


async def _wrong_prompt_count(ask: Ask) -> None:
    text = ask.answer()
    ask.writer.write(HEAD)
    await ask.event(text, list(text.encode()), "length")
    await ask.end(len(text), prompt=10)


BROKEN = {
    "usage": [_wrong_usage, _wrong_prompt_count], "token ids": [_wrong_ids, _padded_ids], "length": [_early_end],
    "dropped": [_dropped], "unfinished": [_no_done, _no_reason], "garbage": [_garbage, _not_http],
    "content type": [_wrong_type], "http 500": [_server_error], "text": [_replacement],
    "error in the stream": [_error_inside], "empty": [_empty],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "behave"), [(k, b) for k, many in BROKEN.items() for b in many])
def test_failures_are_visible_with_their_kind_and_never_counted(bench, kind, behave):
    async def after_warm_up(ask: Ask) -> None:
        # One to learn the dialect, two to warm up; then every other request fails.
        await (honest(ask) if ask.number < 3 or ask.number % 2 else behave(ask))

    with serving(after_warm_up) as url:
        _, found, _ = bench(url, "--num-requests", "8", "--concurrency", "2")
    assert found["requests"] == 8
    assert found["failed"] == 4
    assert set(found["failures"]) == {kind}
    assert found["output_tokens"] == 4 * 40
    assert found["success_rate"] == 0.5
    assert found["latency_s"]["n"] == 8
    assert found["p95_latency_s"] is None
    assert "failed" in found["p95_latency_s_reason"]
    assert found["p50_latency_s"] is not None
    assert sum(r["state"] == "failed" and bool(r["error"]) for r in found["per_request"]) == 4


def test_a_server_that_is_broken_from_the_start_cannot_be_measured(bench):
    with serving(_server_error) as url:
        code, found, err = bench(url)
    assert (code, found) == (2, None)
    assert "out of memory" in err
    code, _, err = bench("http://127.0.0.1:9")
    assert code == 2
    assert "error:" in err
    assert "hint:" in err


def test_a_constant_server_gets_no_score(bench):
    async def constant(ask: Ask) -> None:
        await honest(ask, text=("All is well. " * 20)[: ask.count])

    with serving(constant) as url:
        code, found, err = bench(url)
    assert code == 1
    assert found["output_tokens_per_s"] is None
    assert "prompts" in found["output_tokens_per_s_reason"]
    assert found["p50_latency_s"] is None
    assert "do not belong" in err


def test_an_empty_first_event_is_no_first_token(bench):
    async def slow(ask: Ask) -> None:
        text = ask.answer()
        ask.writer.write(HEAD)
        await ask.chunk(
            b'data: {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "token_ids": []}]}\n\n'
        )
        await asyncio.sleep(0.1)
        await ask.event(text, list(text.encode()), "length")
        await ask.end(len(text))

    with serving(slow) as url:
        _, found, _ = bench(url)
    assert found["p50_ttft_s"] >= 0.1


def test_a_server_without_ids_is_counted_by_its_text_and_one_without_usage_is_said(bench):
    async def plain(ask: Ask) -> None:
        text = ask.answer()
        ask.writer.write(HEAD)
        await ask.event(text, None, "length")
        await ask.end(None)

    with serving(plain) as url:
        code, found, _ = bench(url)
    assert code == 0
    assert found["counted_by"] == {"text, tokenised by the client": 6}
    assert found["missing_usage"] == 6
    assert found["output_tokens"] == 240


def test_fields_that_the_server_refuses_are_left_out_and_said(bench):
    async def strict(ask: Ask) -> None:
        if "return_token_ids" in ask.body:
            data = b'{"error": {"message": "unknown field"}}'
            ask.writer.write(b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n%s" % (len(data), data))
        else:
            await honest(ask, ids=False)

    with serving(strict) as url:
        code, found, _ = bench(url)
    assert code == 0
    assert found["left_out_fields"] == ["return_token_ids"]


def test_exactly_n_in_flight(bench):
    now, most = 0, 0

    async def watch(ask: Ask) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        await honest(ask)

    with serving(watch) as url:
        _, found, _ = bench(url, "--num-requests", "40", "--concurrency", "8")
    assert found["completed"] == 40
    assert most == 8


def test_a_window_cuts_off_what_is_in_flight_and_keeps_it_as_at_least_so_long(bench):
    async def slow(ask: Ask) -> None:
        await honest(ask, pause_s=0.02 if ask.number >= 3 else 0)  # 10 events: 0.2 s a request

    with serving(slow) as url:
        code, found, _ = bench(url, "--window", "0.5", "--concurrency", "4", "--num-requests", "1000")
    assert code == 0
    assert found["cut_off"] == 4
    assert found["duration_s"] == pytest.approx(0.5)
    whole = 40 * found["completed"]
    assert whole < found["output_tokens"] < whole + 4 * 40
    assert found["latency_s"]["n"] == found["requests"] == found["completed"] + 4
    assert {r["state"] for r in found["per_request"]} == {"ok", "cut off"}


def test_a_sweep_is_written_level_by_level(bench, benchmark, monkeypatch):
    written = []
    whole = benchmark.write_json
    monkeypatch.setattr(
        benchmark, "write_json", lambda path, doc: (written.append(len(doc["levels"])), whole(path, doc))
    )
    with serving(honest) as url:
        code, found, _ = bench(url, "--sweep", "concurrency=1,2", "max-tokens=24,40", "prompt-len=200")
    assert code == 0
    assert written == [1, 2, 3, 4]
    points = [(x["workload"]["output_tokens"], x["workload"]["concurrency"]) for x in found["levels"]]
    assert points == [(24, 1), (24, 2), (40, 1), (40, 2)]
    assert found["output_tokens_per_s"] == max(x["output_tokens_per_s"] for x in found["levels"])


@pytest.mark.parametrize(
    "arguments",
    [("--rate", "0"), ("--concurrency", "-1"), ("--window", "nan"), ("--sweep", "depth=1"), ("--sweep", "rate=0"),
     ("--fresh-share", "2"), ("--prompt-len", "30"), ("--url", "ftp://x")],
)  # fmt: skip
def test_wrong_usage_is_exit_2(bench, arguments):
    with serving(honest) as url:
        code, found, err = bench(url, *arguments)
    assert (code, found) == (2, None)
    assert err.startswith("error: ")


def test_prompts_have_exact_lengths_come_from_the_seed_and_some_are_fresh(benchmark, tiny):
    tokens = benchmark.Tokens(tiny)

    def prompts(seed, fresh, chat=True, length=300):
        args = benchmark.parser().parse_args(["--seed", str(seed), "--fresh-seed", str(fresh)])
        return [benchmark.Prompts(tokens, chat, args, length, "0").get(i) for i in range(20)]

    one, two, other = prompts(1, 7), prompts(1, 8), prompts(2, 7)
    for prompt in one:
        assert len(tokens.chat_ids(prompt.messages)) == 300
    for prompt in prompts(1, 7, chat=False, length=250):
        assert len(tokens.ids(prompt.text, special=True)) == 250
    assert [p.messages for p in one] == [p.messages for p in prompts(1, 7)]
    assert [a.messages == b.messages for a, b in zip(one, two, strict=True)] == [not p.fresh for p in one]
    assert sum(p.fresh for p in one) == 5
    assert not any(a.messages == b.messages for a, b in zip(one, other, strict=True) if not a.fresh)
    starts = {p.messages[0]["content"][:10] for p in one}
    assert len(starts) == len(one)


def test_a_shared_prefix_is_shared(benchmark, tiny):
    tokens = benchmark.Tokens(tiny)
    args = benchmark.parser().parse_args(["--shared-prefix", "500", "--fresh-seed", "1"])
    made = [benchmark.Prompts(tokens, True, args, 200, "0").get(i) for i in range(4)]
    ids = [tokens.chat_ids(p.messages) for p in made]
    assert {len(x) for x in ids} == {700}
    common = next(i for i, column in enumerate(zip(*ids, strict=True)) if len(set(column)) > 1)
    assert 500 <= common <= 540


# ------------------------------------------------------------------------------------------------ properties


@given(st.data())
@settings(max_examples=60)
def test_token_counts_equal_the_tokenizers_whatever_the_chunking(benchmark, tiny, data):
    text = data.draw(st.text(alphabet=st.sampled_from("ab c.é東🚀\n"), min_size=1, max_size=60))
    raw = text.encode()
    tokens = benchmark.Tokens(tiny)
    borders = sorted(data.draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=10)) | {0, len(text)})
    pieces = [text[a:b] for a, b in itertools.pairwise(borders) if a != b]
    with_ids = data.draw(st.booleans())
    body = b""
    for number, piece in enumerate(pieces):
        choice = {
            "index": 0,
            "delta": {"content": piece},
            "finish_reason": "length" if number == len(pieces) - 1 else None,
        }
        if with_ids:
            choice["token_ids"] = list(piece.encode())
        body += b"data: " + json.dumps({"choices": [choice]}, ensure_ascii=data.draw(st.booleans())).encode() + b"\n\n"
    body += b"data: [DONE]\n\n"
    response = benchmark.Response()
    stream = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(body) - 1), max_size=8)) | {0, len(body)})
    for a, b in itertools.pairwise(cuts):
        stream += b"%x\r\n%s\r\n" % (b - a, body[a:b])
    stream += b"0\r\n\r\n"
    cuts = sorted(data.draw(st.sets(st.integers(1, len(stream) - 1), max_size=12)) | {0, len(stream)})
    for moment, (a, b) in enumerate(itertools.pairwise(cuts)):
        response.feed(stream[a:b], float(moment))
    assert response.complete
    call = benchmark.Call(benchmark.Prompt(0, "", 0, False), asked=len(raw), response=response)
    benchmark.read(call, tokens, exact=True)
    assert call.error is None
    assert call.text == text
    assert call.tokens == len(tokens.ids(text)) == len(raw)


@given(
    st.lists(st.floats(0, 100), max_size=40), st.lists(st.floats(0, 100), max_size=40),
    st.integers(0, 10), st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)  # fmt: skip
def test_quantiles_with_cut_off_and_failed_requests(benchmark, values, cut, failed, share):
    found, bound = benchmark.quantile(values, cut, failed, share)
    if not cut:
        everything = sorted(values) + [math.inf] * failed
        want = everything[math.ceil(share * len(everything) - 1e-9) - 1] if everything else None
        assert found == (None if want is None or want == math.inf else want)
        assert not bound
    elif found is not None:
        assert found in values or (bound and found == max(cut))
        # Knowing the cut-off ones to the end could only have made it larger than if they had ended there.
        optimistic, _ = benchmark.quantile(values + cut, [], failed, share)
        assert optimistic is None or found >= optimistic


def test_kaplan_meier_by_hand(benchmark):
    # 1 ends, 2 is cut off, 3 ends: survival is 2/3 after 1, then 0 after 3 (one left at risk).
    assert benchmark.quantile([1.0, 3.0], [2.0], 0, 0.3) == (1.0, False)
    assert benchmark.quantile([1.0, 3.0], [2.0], 0, 0.5) == (3.0, False)
    assert benchmark.quantile([1.0], [2.0, 2.0], 0, 0.5) == (2.0, True)
    assert benchmark.quantile([1.0], [], 1, 0.95) == (None, False)


# ----------------------------------------------------------------------------------------------- calibration


def test_the_client_measures_itself_in_a_run(bench):
    with serving(honest) as url:
        _, found, _ = bench(url, "--calibrate", "0.2", "--calibrate-rate", "100")
    own = found["client_overhead_s"]
    assert own["n"] > 20
    assert 0 < own["p50"] <= own["p99"]
    assert own["arrivals"] > 5


def test_help_needs_nothing_installed():
    for script in ("benchmark/benchmark.py", "accuracy_checker/checker.py", "reference/reference.py"):
        done = subprocess.run(
            [sys.executable, "-S", "-I", str(CHAT / script), "--help"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "usage:" in done.stdout


def _lindley(arrivals: list[float], service_s: float) -> float:
    """Mean time in a queue with one server: each waits until the one before has left."""
    free, total = 0.0, 0.0
    for at in arrivals:
        free = max(free, at) + service_s
        total += free - at
    return total / len(arrivals)


def _poisson(seed: str, rate: float, count: int) -> list[float]:
    generator, at, times = random.Random(seed), 0.0, []
    for _ in range(count):
        at += generator.expovariate(rate)
        times.append(at)
    return times


def test_poisson_arrivals_give_the_analytic_wait():
    """The schedule's own queue (Lindley's recursion) has M/D/1's mean: D + ρD / (2(1 − ρ))."""
    service, rate = 0.01, 50.0
    analytic = service + (rate * service) * service / (2 * (1 - rate * service))
    assert _lindley(_poisson("long", rate, 300_000), service) == pytest.approx(analytic, rel=0.02)


_ONE_PLACE = """
import asyncio, json, select, selectors, sys
class Precise(selectors.DefaultSelector):
    def select(self, timeout=None):
        if timeout and timeout > 0:
            select.select([self.fileno()], [], [], timeout)
            timeout = 0
        return super().select(timeout)
class Place(asyncio.Protocol):
    free = 0.0
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        loop = asyncio.get_running_loop()
        body = json.loads(data.partition(b"\\r\\n\\r\\n")[2] or b"{}")
        text = body["prompt"][-body["max_tokens"]:]
        choice = {"index": 0, "text": text, "token_ids": list(text.encode()), "finish_reason": "length"}
        answer = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\\n\\ndata: [DONE]\\n\\n"
        head = b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(answer)
        Place.free = max(Place.free, loop.time()) + float(sys.argv[1])
        loop.call_at(Place.free, self.transport.write, head + answer)
async def main():
    server = await asyncio.get_running_loop().create_server(Place, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Precise())) as runner:
    runner.run(main())
"""


@pytest.mark.slow
def test_latency_counts_queueing(bench):
    """A server with one place and 10 ms for each: the client's mean latency is M/D/1's within 5 %."""
    service, rate, count = 0.01, 50.0, 1500
    analytic = service + (rate * service) * service / (2 * (1 - rate * service))
    seed = next(
        s
        for s in range(1000)
        if abs(_lindley(_poisson(f"{s}/arrivals/0", rate, count), service) / analytic - 1) < 0.005
    )
    with subprocess.Popen(
        [sys.executable, "-c", _ONE_PLACE, str(service)], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            url = f"http://127.0.0.1:{int(server.stdout.readline())}"
            _, found, err = bench(
                url, "--num-requests", str(count), "--sweep", f"rate={rate:g}", "--seed", str(seed), "--max-tokens", "16",
                "--endpoint", "/v1/completions", "--prompt-len", "120", "--model", "one", "--calibrate", "1",
            )  # fmt: skip
        finally:
            server.kill()
    assert found is not None, err
    assert found["failed"] == 0
    own = found["client_overhead_s"]
    if own["p99"] > 1e-3 or own["arrival_p99"] > 1e-3:
        pytest.skip(
            f"not run: this machine is busy, the client alone is late by {own['arrival_p99'] * 1e3:.1f} ms (p99)"
        )
    assert found["latency_s"]["mean"] == pytest.approx(analytic, rel=0.05)


def test_prompts_from_a_file(bench, benchmark, tiny, tmp_path):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Text number {i}. " * 30}) + "\n" for i in range(5)))
    with serving(honest) as url:
        code, found, _ = bench(url, "--dataset", str(path), "--prompt-len", "180")
    assert code == 0
    assert found["completed"] == 6
    assert all(r["prompt_tokens"] == 180 for r in found["per_request"])
    assert found["plausibility"]["ok"] is True
    with serving(honest) as url:
        code, _, err = bench(url, "--dataset", str(tmp_path / "none.txt"))
    assert code == 2
    assert "--dataset" in err


def test_arrivals_are_poisson_or_come_in_bursts_at_the_same_rate(benchmark):
    def gaps(shape):
        times = [at for at, _ in benchmark.arrivals(random.Random(1), 20.0, [shape], 0.0, 4000)]
        return [b - a for a, b in itertools.pairwise(times)]

    for shape in (1.0, 0.25, 4.0):
        found = gaps(shape)
        mean = statistics.mean(found)
        assert mean == pytest.approx(1 / 20, rel=0.1)
        assert statistics.pvariance(found) / mean**2 == pytest.approx(1 / shape, rel=0.25)
    halves = benchmark.arrivals(random.Random(1), 20.0, [1.0, 0.25], 100.0, None)
    assert {shape for at, shape in halves if at < 50} == {1.0}
    assert {shape for at, shape in halves if at >= 50} == {0.25}
    assert 0 < halves[0][0] <= halves[-1][0] < 100
    counted = benchmark.arrivals(random.Random(1), 20.0, [1.0, 0.25], 0.0, 10)
    assert [shape for _, shape in counted] == [1.0] * 5 + [0.25] * 5


async def _refuses_every_other(ask: Ask) -> None:
    if ask.number % 2 == 0 or ask.number < 3:  # the first ones are warm-up
        await honest(ask)
        return
    ask.writer.write(b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 2\r\n\r\n{}")


def test_a_refusal_is_a_failure_unless_refusals_are_allowed(bench):
    load = ("--sweep", "rate=50", "--num-requests", "8", "--slo-ttft", "5", "--slo-tpot", "5", "--burstiness", "1,0.5")
    with serving(_refuses_every_other) as url:
        _, found, _ = bench(url, *load)
    assert (found["completed"], found["failed"], found["refused"]) == (4, 4, 0)
    with serving(_refuses_every_other) as url:
        code, found, _ = bench(url, *load, "--allow-refusals")
    assert code == 0
    assert (found["completed"], found["failed"], found["refused"]) == (4, 0, 4)
    assert found["success_rate"] == 0.5
    assert found["goodput"] == pytest.approx(4 / found["duration_s"])
    assert set(found["goodput_by_burstiness"]) == {"1", "0.5"}
    assert sum(found["goodput_by_burstiness"].values()) / 2 == pytest.approx(found["goodput"])
    assert found["p95_latency_s"] is None  # a refused request is slower than every other
    assert [row["state"] for row in found["per_request"]].count("refused") == 4


async def _early_refusal_with_another_status(ask: Ask) -> None:
    if ask.number < 3:
        await honest(ask)
        return
    ask.writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}")


def test_only_status_429_is_a_refusal(bench):
    with serving(_early_refusal_with_another_status) as url:
        _, found, _ = bench(url, "--num-requests", "4", "--allow-refusals")
    assert (found["refused"], found["failed"]) == (0, 4)


def test_long_prompts_beside_short_ones(bench):
    with serving(honest) as url:
        load = ("--concurrency", "3", "--long-concurrency", "1", "--long-len", "900", "--num-requests", "9")
        code, found, _ = bench(url, *load)
    assert code == 0
    lengths = Counter(row["prompt_tokens"] for row in found["per_request"])
    assert set(lengths) == {200, 900}
    assert (found["short"]["completed"], found["long"]["completed"]) == (lengths[200], lengths[900])
    assert found["long"]["completed"] >= 1
    assert found["short_p95_tpot_s"] >= 0
    assert found["long_p50_ttft_s"] > 0
    assert found["workload"]["long_prompt_tokens"] == 900
    assert "long-context" in found["workload"]["features"]
    with serving(honest) as url:
        code, found, _ = bench(url, "--concurrency", "1", "--long-concurrency", "1", "--num-requests", "2")
    assert code == 0
    assert found["workload"].get("long_prompt_tokens") == 4096  # asked for, but all but one is none
    assert "long" not in found
