"""The fake server answers like OpenAI's API, and its delays are what it was told."""

import asyncio
import json
import statistics

import aiohttp
import pytest

from vibeserve.measure import fake_server
from vibeserve.measure.fake_server import FakeServer, Settings


def talk(settings: Settings, what):
    async def main():
        server = FakeServer(settings)
        port = await server.start()
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
                return await what(session, server)
        finally:
            assert server.server is not None
            server.server.close()

    return asyncio.run(main())


def test_whole_and_streamed_answers_are_the_same_tokens():
    async def what(session, server):
        body = {"prompt": "hello", "max_tokens": 6, "return_token_ids": True}
        async with session.post("/v1/completions", json=body) as response:
            whole = await response.json()
        async with session.post("/v1/completions", json=body | {"stream": True}) as response:
            assert response.content_type == "text/event-stream"
            lines = [line async for line in response.content if line.strip()]
        return whole, lines

    whole, lines = talk(Settings(), what)
    assert lines[-1] == b"data: [DONE]\n"
    choices = [json.loads(line[6:])["choices"][0] for line in lines[:-1]]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == whole["choices"][0]["token_ids"]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert whole["usage"] == {"prompt_tokens": 1, "completion_tokens": 6, "total_tokens": 7}


def test_chat_usage_metrics_models_and_errors():
    async def what(session, server):
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "stream": True}
        body["stream_options"] = {"include_usage": True}
        async with session.post("/v1/chat/completions", json=body) as response:
            events = [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: {")]
        assert events[0]["choices"][0]["delta"]["role"] == "assistant"
        assert events[-1]["usage"]["completion_tokens"] == 2
        async with session.get("/metrics") as response:
            assert "fake_tokens_total 2" in await response.text()
        async with session.get("/v1/models") as response:
            assert (await response.json())["data"][0]["id"] == "fake"
        for path, status in (("/nowhere", 404), ("/health", 200)):
            async with session.get(path) as response:
                assert response.status == status
        for bad in (b"{", b"{}", b'{"prompt": "x", "max_tokens": "many"}'):
            async with session.post("/v1/completions", data=bad) as response:
                assert response.status == 400

    talk(Settings(), what)


def test_slots_make_a_line():
    async def what(session, server):
        loop = asyncio.get_running_loop()

        async def one():
            begin = loop.time()
            async with session.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}) as response:
                await response.read()
            return loop.time() - begin

        return sorted(await asyncio.gather(*(one() for _ in range(4))))

    waits = talk(Settings(service_s=0.05, slots=1), what)
    for place, waited in enumerate(waits, 1):
        assert waited >= 0.05 * place


def test_noise_is_seeded():
    settings = Settings(noise=0.3, seed=4)
    first, second = FakeServer(settings), FakeServer(settings)
    drawn = [server.chance.lognormvariate(0, settings.noise) for server in (first, second) for _ in range(50)]
    assert drawn[:50] == drawn[50:]
    assert statistics.pstdev(drawn) > 0


def test_every_fault_is_described(capsys):
    with pytest.raises(SystemExit):
        fake_server.main(["--help"])
    said = " ".join(capsys.readouterr().out.split())
    for name in fake_server.FAULTS:
        assert name in said
    assert fake_server.main(["--fault", "early-exit"]) == 3
    with pytest.raises(SystemExit):
        fake_server.main(["--fault", "unheard-of"])
