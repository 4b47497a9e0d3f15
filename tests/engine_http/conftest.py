"""A small model with a trained tokenizer, and real server processes: over a double of the engine, or over the engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).parent
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "The quick brown fox jumps over the lazy dog. How vexingly quick daft zebras jump!",
    "Serving a language model: prefill reads the prompt, decode writes one token after another.",
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. Füße, Öl, Ärger.",
    "I said say: and you said it back to me. user assistant system 0123456789 + - * / = ( ) [ ] { } ; :",
]


def train_tokenizer(size: int = 420) -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer; any text can be encoded, rare characters over several tokens."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def write_model(folder: Path) -> Path:
    """A Llama with random weights, its tokenizer and chat template: what the engine needs, in a few hundred KB."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    vocab = tokenizer.get_vocab_size()
    hidden, heads, kv_heads, layers, inner = 64, 4, 2, 2, 128
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "intermediate_size": inner, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "hidden_act": "silu", "tie_word_embeddings": True, "torch_dtype": "float32", "head_dim": hidden // heads,
        "attention_bias": False, "mlp_bias": False, "bos_token_id": 0, "eos_token_id": 2,
    }  # fmt: skip
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * (0.6 / shape[-1] ** 0.5)

    kv = kv_heads * hidden // heads
    weights = {"model.embed_tokens.weight": normal(vocab, hidden) * 4, "model.norm.weight": torch.ones(hidden)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        weights |= {
            at + "self_attn.q_proj.weight": normal(hidden, hidden) * 3,
            at + "self_attn.k_proj.weight": normal(kv, hidden) * 3,
            at + "self_attn.v_proj.weight": normal(kv, hidden) * 3,
            at + "self_attn.o_proj.weight": normal(hidden, hidden) * 3,
            at + "mlp.gate_proj.weight": normal(inner, hidden) * 3,
            at + "mlp.up_proj.weight": normal(inner, hidden) * 3,
            at + "mlp.down_proj.weight": normal(hidden, inner) * 3,
            at + "input_layernorm.weight": torch.ones(hidden),
            at + "post_attention_layernorm.weight": torch.ones(hidden),
        }
    save_file(weights, str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "bos_token_id": 0}))
    settings = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[2], "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model directory; its name is the model's id."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny-llama")


@dataclass
class Server:
    """A running server process."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def port(self) -> int:
        return int(self.url.rsplit(":", 1)[1])

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a GET."""
        return self.call(path, None)

    def call(self, path: str, body: bytes | dict | None, timeout_s: float = 30) -> tuple[int, bytes]:
        """Status and body of a POST (or a GET where there is no body)."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def metric(self, name: str) -> float:
        """One sample of /metrics, by its name with labels."""
        for line in self.get("/metrics")[1].decode().splitlines():
            if line.rsplit(" ", 1)[0] == name:
                return float(line.rsplit(" ", 1)[1])
        raise KeyError(name)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 20) -> None:
        """Wait until something holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"did not come true; log:\n{self.log.read_text()}"
            time.sleep(0.01)

    def idle(self) -> bool:
        """Whether every slot and KV block is free, and no request is in flight but this one."""
        return (
            self.metric("engine_running") == 0
            and self.metric("engine_waiting") == 0
            and self.metric("engine_kv_blocks_used") == 0
            and self.metric("http_requests_in_flight") == 1
        )

    def end(self) -> int:
        """SIGTERM, and the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


LISTENING = re.compile(r"listening on http://127\.0\.0\.1:(\d+)")


def spawn(command: list[str], folder: Path, env: dict[str, str] | None = None) -> Server:
    """Start a server; its log says the port that it took itself, so that nobody else can have it."""
    log = folder / "server.log"
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | (env or {})
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
    deadline = time.monotonic() + 60
    while not (said := LISTENING.search(log.read_text(errors="replace"))):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise AssertionError(f"the server did not start:\n{log.read_text()}")
        time.sleep(0.01)
    return Server(f"http://127.0.0.1:{said[1]}", process, log)


@contextlib.contextmanager
def running(command: list[str], folder: Path, *, ready: bool = True) -> Iterator[Server]:
    """A server process for the length of a block."""
    server = spawn(command, folder)
    try:
        if ready:
            server.wait_for(lambda: server.get("/health")[0] == 200, 60)
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait()


FakeServer = Callable[..., contextlib.AbstractContextManager[Server]]


@pytest.fixture(scope="session")
def fake_server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> FakeServer:
    """Start a server over the double: `with fake_server(core={...}, http={...}) as server`."""

    def start(*extra: str, core: dict | None = None, http: dict | None = None, ready: bool = True):
        command = [sys.executable, str(HERE / "fake_server.py"), "--model-dir", str(tiny_model)]
        command += ["--core", json.dumps(core or {}), "--http", json.dumps(http or {}), *extra]
        return running(command, tmp_path_factory.mktemp("server"), ready=ready)

    return start


def copy_parts(names: Sequence[str], folder: Path) -> None:
    """As a candidate carries the engine: the files of the parts, and nothing else."""
    source = files("vibeserve.engine")
    parts = tomllib.loads(source.joinpath("parts.toml").read_text())
    for part in names:
        for name in parts[part]["files"]:
            (folder / "engine" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(str(source.joinpath(name)), folder / "engine" / name)


@pytest.fixture(scope="session")
def start_script(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., contextlib.AbstractContextManager[Server]]:
    """Start a candidate's own script: `with start_script(model_dir, engine_toml) as server`; `parts` are copied."""

    @contextlib.contextmanager
    def start(model: Path, config: str, parts: Sequence[str] = (), *, ready: bool = True) -> Iterator[Server]:
        folder = tmp_path_factory.mktemp("candidate")
        (folder / "engine.toml").write_text(config)
        lines = ["from vibeserve.engine.serve import main", "main()", ""]
        if parts:
            copy_parts(parts, folder)
            # As in a candidate: the copy is used, and importing the package would fail.
            lines[:1] = ["import sys", "sys.modules['vibeserve'] = None", "from engine.serve import main"]
        (folder / "server.py").write_text("\n".join(lines))
        command = [sys.executable, str(folder / "server.py"), "--model-dir", str(model), "--port", "0"]
        with running(command, folder, ready=ready) as server:
            yield server

    return start


@pytest.fixture(scope="module")
def server(fake_server: FakeServer) -> Iterator[Server]:
    """One server over the double, fast, shared by a module."""
    with fake_server() as started:
        yield started
