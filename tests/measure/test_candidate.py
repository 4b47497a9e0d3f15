"""candidate.toml is read strictly; requirements are verified, never installed."""

import sys
from importlib import metadata

import pytest

from vibeserve.base.errors import InputError
from vibeserve.measure.candidate import missing_requirements, read_candidate
from vibeserve.measure.reference import reference_candidate


def write(tmp_path, text):
    (tmp_path / "candidate.toml").write_text(text)
    return tmp_path


def test_a_server_in_our_interpreter(tmp_path):
    text = 'start = ["python", "server.py", "--x"]\nhealth = "/ready"\nready_timeout_s = 12'
    candidate = read_candidate(write(tmp_path, text))
    assert candidate.argv() == (sys.executable, "server.py", "--x")
    assert (candidate.health, candidate.ready_timeout_s, candidate.python) == ("/ready", 12.0, True)


def test_any_other_program_is_started_as_it_is(tmp_path):
    candidate = read_candidate(write(tmp_path, 'start = ["llama-server", "-c", "1"]'))
    assert candidate.argv() == ("llama-server", "-c", "1")
    assert not candidate.python


def test_an_in_process_model_gets_the_adapter(tmp_path):
    candidate = read_candidate(write(tmp_path, 'model = "main:VibeServeModel"'))
    assert candidate.argv()[0] == sys.executable
    assert candidate.argv()[2].endswith("in_process.py")
    assert "main:VibeServeModel" in candidate.argv()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('start = ["python"]\nhelth = "/h"', "unknown key 'helth'"),
        ("", "exactly one of start, model, kernel is needed, found none"),
        ('start = ["a"]\nkernel = "k.py:f"', "found start and kernel"),
        ('start = "python server.py"', "start must be a list of words"),
        ("start = []", "start must be a list of words"),
        ('start = ["python", 3]', "start must be a list of words"),
        ('start = ["a"]\nready_timeout_s = 0', "ready_timeout_s must be seconds above 0, not 0"),
        ('start = ["a"]\nready_timeout_s = "9"', "not '9'"),
        ('start = ["a"]\nready_timeout_s = inf', "not inf"),
        ('start = ["a"]\nready_timeout_s = true', "not True"),
        ('start = ["a"]\nhealth = "health"', "health must begin with '/'"),
        ('model = "main"', "model must name a file and what is in it"),
        ("start = [", "is not TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, text, said):
    with pytest.raises(InputError, match=r"candidate\.toml") as caught:
        read_candidate(write(tmp_path, text))
    assert said in caught.value.message
    assert caught.value.hint


def test_no_candidate_there(tmp_path):
    with pytest.raises(InputError, match=r"there is no candidate\.toml in"):
        read_candidate(tmp_path)
    with pytest.raises(InputError, match="there is no directory"):
        read_candidate(tmp_path / "nowhere")


def test_requirements(tmp_path):
    assert missing_requirements(tmp_path) == []
    here = metadata.version("numpy")
    (tmp_path / "requirements.txt").write_text(
        f"# what it needs\nnumpy=={here}  # exactly\nnumpy>=1\n\nno-such-package-at-all>=1\nnumpy>999\n"
        "-r other.txt\nwindows-only; sys_platform == 'win32'\n"
    )
    assert missing_requirements(tmp_path) == [
        "no-such-package-at-all>=1 (not installed)",
        f"numpy>999 (installed: {here})",
        "line 7 cannot be verified: -r other.txt",
    ]


def test_the_reference_as_a_candidate(bundle, tmp_path):
    first = reference_candidate(bundle)
    assert reference_candidate(bundle) == first
    candidate = read_candidate(first)
    assert candidate.argv()[1:] == ("reference.py",)
    assert (first / "meta.json").is_file()
    trusting = reference_candidate(bundle, trust_remote_code=True)
    assert trusting != first
    assert read_candidate(trusting).argv()[-1] == "--trust-remote-code"


def test_weights_are_no_part_of_it(bundle, tmp_path):
    import shutil
    from dataclasses import replace

    reference = tmp_path / "reference"
    shutil.copytree(bundle.reference, reference)
    (reference / "model").mkdir()
    (reference / "model" / "weights.safetensors").write_bytes(b"0" * 10)
    (reference / "lib").mkdir()
    (reference / "lib" / "part.py").write_text("x = 1\n")
    made = reference_candidate(replace(bundle, reference=reference))
    assert sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()) == [
        "candidate.toml",
        "fake_server.py",
        "lib/part.py",
        "meta.json",
        "reference.py",
    ]
    with pytest.raises(InputError, match="does not exist"):
        reference_candidate(replace(bundle, reference=tmp_path))
