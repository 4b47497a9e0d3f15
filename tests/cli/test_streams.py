"""Streams and paths that are not as one would have them: closed, full, left early, named in bytes that are no UTF-8."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

BROKEN_PIPE = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.execv(sys.argv[1], sys.argv[1:])"
BASE = [sys.executable, "-m", "vibeserve.cli.main"]


def shell(script, *words):
    """A line of shell in which `$V` is the command line, quick to start."""
    return subprocess.run(
        ["bash", "-c", f'V="{" ".join(BASE)}"; {script}', "bash", *words],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="not run: no /dev/full here")
@pytest.mark.parametrize("words", ["hardware trn2 --json", "hardware trn2", "hardware"])
def test_a_full_disk_behind_standard_output_is_said_once(words):
    done = shell(f"$V {words} > /dev/full")
    assert done.returncode == 3
    assert done.stderr.decode().count("error: ") == 1
    assert "No space left on device" in done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


def test_a_reader_that_leaves_does_not_change_how_a_verb_ends(tmp_path):
    """The finding's exit code is 1 with its output read, and with nobody there to read it."""
    (tmp_path / "kernel.py").write_text("import nki.language as nl\nx = (\n")
    words = ["nki", "lint", str(tmp_path / "kernel.py")]
    read = subprocess.run([*BASE, *words], capture_output=True, timeout=60, check=False)
    left = subprocess.run(
        [sys.executable, "-c", BROKEN_PIPE, *BASE, *words], capture_output=True, timeout=60, check=False
    )
    assert (read.returncode, left.returncode) == (1, 1)
    assert left.stderr == read.stderr


@pytest.mark.parametrize(
    ("words", "code"), [("hardware trn2 --json", 0), ("hardware trn2", 0), ("hardware no --json", 2)]
)
def test_closed_streams_are_as_good_as_dev_null(words, code):
    done = shell(f"$V {words} >&- 2>&- <&-")
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")


def test_what_belongs_on_a_closed_standard_error_does_not_come_out_on_standard_output():
    done = shell("$V hardware no-such-machine --json 2>&-")
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["message"] == "unknown machine 'no-such-machine'"


def test_names_that_are_no_utf8_come_out_as_they_are(tmp_path):
    place = os.fsencode(tmp_path) + b"/\xff\xfe"
    plain = subprocess.run([*BASE, "validate", place], capture_output=True, timeout=60, check=False)
    assert plain.returncode == 2
    assert place in plain.stderr
    done = subprocess.run([*BASE, "validate", place, "--json"], capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert os.fsencode(json.loads(done.stdout.decode("utf-8"))["error"]["message"]).startswith(place)


def test_ascii_alone_is_no_reason_to_fail():
    done = subprocess.run(
        [*BASE, "hardware", "trn2"],
        capture_output=True, timeout=60, check=False, env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert done.returncode == 0
    assert "memory_bytes" in done.stdout.decode("utf-8")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_is_an_interruption(tmp_path, number):
    """`nki explain -` waits for its standard input, which stays open: the signal ends it."""
    process = subprocess.Popen(
        [*BASE, "nki", "explain", "-", "--kernel", __file__],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    with process:
        while b"pipe" not in Path(f"/proc/{process.pid}/wchan").read_bytes():
            assert process.poll() is None
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.strip()) == (4, b"", b"interrupted")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("/dev/null/page.html", "/dev/null: "),
        ("x" * 300, f"{'x' * 300}: File name too long"),
        ("", ".: Is a directory"),
    ],
)
def test_a_place_that_cannot_be_written_is_named(cli, tmp_path, monkeypatch, option, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli("roofline", "softmax", "--html", option, "--json")
    assert code == 2
    assert said in json.loads(out)["error"]["message"]
    assert err.splitlines()[1].startswith("hint: ")


def test_the_longest_name_that_a_file_may_have_will_do(cli, tmp_path):
    place = tmp_path / ("é" * 127)
    assert cli("roofline", "softmax", "--html", place)[0] == 0
    assert place.stat().st_size > 1000


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1"])
def test_a_device_is_written_and_stays_what_it_is(tmp_path, name):
    before = os.lstat("/dev/stdout").st_mode
    done = subprocess.run([*BASE, "roofline", "softmax", "--plot", name], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith(b"<svg")
    assert os.lstat("/dev/stdout").st_mode == before


def test_nobodys_home_and_no_home_are_said(cli, monkeypatch):
    code, _, err = cli("validate", "~nobody-of-this-name/bundle")
    assert (code, err.splitlines()[0]) == (2, "error: ~nobody-of-this-name/bundle: no such bundle")
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    monkeypatch.setenv("HOME", "")
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("VIBESERVE_DATA_PATH")
    code, _, err = cli("profile", "list")
    assert (code, err.splitlines()[0]) == (3, "error: this user has no home directory")
