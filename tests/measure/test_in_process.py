"""An in-process model is served by the adapter, and the same gates see it."""

import io
import json
import textwrap
import urllib.error
import urllib.request
import wave

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from vibeserve.measure.errors import StartError
from vibeserve.measure.launch import launch

MODEL = """
    import json
    from pathlib import Path

    class VibeServeModel:
        def __init__(self, end): self.end = end

        @classmethod
        def from_pretrained(cls, model_dir):
            return cls(json.loads((Path(model_dir) / "config.json").read_text())["eos_token_id"])

        def generate(self, input_ids, max_new_tokens, ignore_eos=False):
            ids = list(input_ids[0])
            while len(ids) < len(input_ids[0]) + max_new_tokens:
                ids.append((ids[-1] + 1) % 8)            # counts up: the end token, 7, comes in its turn
            return [ids]

        def transcribe(self, audio, sampling_rate):
            return f"{len(audio)} samples at {sampling_rate}, loudest {float(abs(audio).max()):.2f}"
"""
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "</s>"]


@pytest.fixture
def model_dir(tmp_path):
    directory = tmp_path / "model"
    directory.mkdir()
    tokenizer = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="zero"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text('{"eos_token_id": 7}')
    template = (
        "{% for message in messages %}{{ message.content }} {% endfor %}{% if not messages %}{{ raise() }}{% endif %}"
    )
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return directory


@pytest.fixture
def server(tmp_path, model_dir):
    directory = tmp_path / "candidate"
    directory.mkdir()
    (directory / "candidate.toml").write_text('model = "main:VibeServeModel"\nready_timeout_s = 60')
    (directory / "main.py").write_text(textwrap.dedent(MODEL))
    with launch(directory, model_dir, log_dir=tmp_path / "logs") as running:
        yield running


def post(server, path, body, kind="application/json"):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, {"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read().decode()
            return response.status, json.loads(text) if text.startswith("{") else text
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def test_all_of_its_api(server):
    status, answer = post(server, "/v1/completions", {"prompt": "one two", "max_tokens": 3, "return_token_ids": True})
    assert status == 200
    assert answer["choices"][0]["token_ids"] == [3, 4, 5]
    assert answer["choices"][0]["text"] == "three four five"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}

    body = {"messages": [{"role": "user", "content": "four"}], "max_tokens": 9, "return_token_ids": True}
    _, answer = post(server, "/v1/chat/completions", body)
    assert answer["choices"][0]["token_ids"] == [5, 6, 7]  # the end token counts, its text does not
    assert answer["choices"][0]["message"]["content"] == "five six"
    assert answer["choices"][0]["finish_reason"] == "stop"

    _, answer = post(server, "/v1/completions", {"prompt": [4], "max_tokens": 5, "ignore_eos": True})
    assert answer["usage"]["completion_tokens"] == 5

    stop = {"prompt": [0], "max_tokens": 6, "stop": "three", "return_token_ids": True}
    _, answer = post(server, "/v1/completions", stop)
    assert (answer["choices"][0]["text"], answer["choices"][0]["token_ids"]) == ("one two ", [1, 2, 3])

    stream = {"prompt": [0], "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}}
    _, text = post(server, "/v1/completions", stream)
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    assert json.loads(events[0])["choices"][0]["text"] == "one two"
    assert json.loads(events[1])["usage"]["completion_tokens"] == 2

    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(16_000)
        sound.writeframes(b"\x00\x40" * 100)
    form = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n'
        + file.getvalue()
        + b"\r\n--x--\r\n"
    )
    _, answer = post(server, "/v1/audio/transcriptions", form, "multipart/form-data; boundary=x")
    assert answer == {"text": "100 samples at 16000, loudest 0.50"}

    for path, bad, param in [
        ("/v1/completions", b"{", None),
        ("/v1/completions", [], None),
        ("/v1/completions", {}, "prompt"),
        ("/v1/completions", {"prompt": "one", "max_tokens": 0}, "max_tokens"),
        ("/v1/completions", {"prompt": "one", "temperature": 1}, "temperature"),
        ("/v1/chat/completions", {"messages": "one"}, "messages"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
    ]:
        status, answer = post(server, path, bad)
        assert (status, answer["error"]["param"]) == (400, param)
    nonsense = form.replace(b"RIFF", b"ROFF")
    assert post(server, "/v1/audio/transcriptions", nonsense, "multipart/form-data; boundary=x")[0] == 400


SAMPLING = """
    import random
    import time

    class VibeServeModel:
        @classmethod
        def from_pretrained(cls, model_dir): return cls()

        def generate(self, input_ids, max_new_tokens, temperature=0.0, seed=None, streamer=None):
            chance, ids = random.Random(seed), list(input_ids[0])
            if streamer: streamer.put(input_ids)
            for _ in range(max_new_tokens):
                ids.append(chance.randrange(7) if temperature else (ids[-1] + 1) % 8)
                if streamer: streamer.put([ids[-1]])
            if streamer: streamer.end()
            return [ids]
"""


def test_a_class_that_streams_and_samples(tmp_path, model_dir):
    (tmp_path / "candidate.toml").write_text('model = "main:VibeServeModel"\nready_timeout_s = 60')
    (tmp_path / "main.py").write_text(textwrap.dedent(SAMPLING))
    with launch(tmp_path, model_dir, log_dir=tmp_path / "logs") as server:

        def streamed(**more):
            body = {"prompt": [0], "stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
            _, text = post(server, "/v1/completions", body | more)
            events = [json.loads(line[6:]) for line in text.split("\n\n") if line.startswith("data: {")]
            assert events[-1]["usage"]["completion_tokens"] == sum(len(c["token_ids"]) for c in choices_of(events))
            return choices_of(events)

        def choices_of(events):
            return [choice for event in events for choice in event["choices"]]

        found = streamed(max_tokens=4)
        assert [choice["token_ids"] for choice in found] == [[1], [2], [3], [4], []]
        assert "".join(choice["text"] for choice in found) == "one two three four"
        assert [choice["finish_reason"] for choice in found] == [None] * 4 + ["length"]
        stopped = streamed(max_tokens=6, stop="three")
        assert "".join(choice["text"] for choice in stopped) == "one two "
        assert [token for choice in stopped for token in choice["token_ids"]] == [1, 2, 3]
        assert stopped[-1]["finish_reason"] == "stop"
        ended = streamed(max_tokens=20)
        assert [token for choice in ended for token in choice["token_ids"]] == [1, 2, 3, 4, 5, 6, 7]
        drawn = {"prompt": [0], "max_tokens": 12, "temperature": 1}
        texts = [post(server, "/v1/completions", drawn | {"seed": n})[1]["choices"][0]["text"] for n in (1, 1, 2, 3)]
        assert texts[0] == texts[1]
        assert len(set(texts)) == 3
        status, answer = post(server, "/v1/completions", drawn | {"temperature": "hot"})
        assert (status, answer["error"]["param"]) == (400, "temperature")


def test_a_class_that_is_not_there(tmp_path, model_dir):
    (tmp_path / "candidate.toml").write_text('model = "main:VibeServeModel"\nready_timeout_s = 60')
    (tmp_path / "main.py").write_text("x = 1\n")
    with pytest.raises(StartError, match="module 'main' has no attribute 'VibeServeModel'"):
        launch(tmp_path, model_dir, log_dir=tmp_path / "logs")


def test_damaged_model_files_are_said(tmp_path, model_dir):
    (tmp_path / "candidate.toml").write_text('model = "main:VibeServeModel"\nready_timeout_s = 60')
    (tmp_path / "main.py").write_text(textwrap.dedent(MODEL))
    tokenizer = model_dir / "tokenizer.json"
    whole = tokenizer.read_bytes()
    tokenizer.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StartError, match="EOF while parsing") as caught:
        launch(tmp_path, model_dir, log_dir=tmp_path / "logs")
    assert "tokenizer" in caught.value.tail.lower()
    tokenizer.write_bytes(whole)
    (model_dir / "config.json").write_bytes(b"\x00" * 100)
    with pytest.raises(StartError, match="ended before it was ready: exit code 1"):
        launch(tmp_path, model_dir, log_dir=tmp_path / "logs")
