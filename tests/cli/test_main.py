"""The front door: exit codes, one error line, one hint, JSON where asked."""

import json
import subprocess
import sys

import pytest

from vibeserve.base.errors import InputError
from vibeserve.cli.verbs import GROUPS, VERBS


def test_every_verb_shows_its_help_or_says_that_it_is_missing(cli):
    for verb in VERBS:
        code, out, err = cli(*verb.split(), "--help")
        assert (code, "Usage" in out) == (0, True) or (code == 3 and "not built yet" in err), verb


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_alone_shows_its_help(cli, group):
    code, _, err = cli(group)
    assert code == 2
    assert "Usage: vibeserve" in err


def test_unknown_verb_is_wrong_usage(cli):
    code, out, err = cli("frobnicate")
    assert code == 2
    assert out == ""
    assert err.splitlines()[0].startswith("error: No such command 'frobnicate'")
    assert err.splitlines()[1].startswith("hint: ")


def test_unknown_verb_with_json_prints_one_document(cli):
    code, out, _ = cli("frobnicate", "--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "bad-input"


def test_help_lists_every_verb(cli):
    code, out, _ = cli("--help")
    assert code == 0
    for verb in VERBS:
        assert verb.split()[0] in out


def test_cli_starts_without_heavy_imports():
    code = "import sys, vibeserve.cli.main as m; m.run(['--help']); print('LOADED', sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = out.split("LOADED", 1)[1]
    for heavy in ("torch", "numpy", "duckdb", "sympy", "transformers", "pyarrow", "scipy", "starlette"):
        assert f"'{heavy}'" not in loaded


def test_ctrl_c_is_4_and_no_traceback(cli, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vibeserve.search.lookup.find", interrupted)
    monkeypatch.setattr("vibeserve.search.find", interrupted)
    code, out, err = cli("resume", "latest")
    assert (code, out, err.strip()) == (4, "", "interrupted")


def test_a_current_directory_that_is_gone_is_said(cli, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    code, _, err = cli("runs")
    assert code == 2
    assert "error: the current directory does not exist any more" in err


def test_debug_shows_the_traceback_and_a_scripts_own_words_are_handed_on(cli, tmp_path):
    with pytest.raises(InputError):
        cli("show", "no-such-run", "--runs-dir", tmp_path, "--debug")
    script = tmp_path / "words.py"
    script.write_text("import sys\nprint(sys.argv[1:])\n")
    argv = [sys.executable, "-m", "vibeserve.cli.main", "nki", "run", str(script), "--debug", "--http"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "['--debug', '--http']\n")


@pytest.mark.parametrize(
    ("words", "port"),
    [(["--http"], "8765"), (["--http", "--json"], "8765"), (["--http", "127.0.0.1:99"], "127.0.0.1:99")],
)
def test_the_tools_port_may_be_left_out(cli, tmp_path, monkeypatch, words, port):
    served = []
    monkeypatch.setattr("vibeserve.mcp.server.serve", lambda workspace, address: served.append((workspace, address)))
    code, out, err = cli("mcp", "--workspace", tmp_path, *words)
    host, _, number = port.rpartition(":")
    assert (code, served) == (0, [(tmp_path, (host or "127.0.0.1", int(number)))])
    if "--json" in words:
        assert json.loads(out) == {"url": "http://127.0.0.1:8765/mcp", "workspace": str(tmp_path)}
    else:
        assert out == ""
        assert f":{number}/mcp" in err


def test_a_scripts_own_json_flag_is_no_flag_of_ours(cli, tmp_path):
    code, out, err = cli("nki", "run", tmp_path / "no-such-script", "--json")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("roofline", "softmax", "--measured"), "deep.json"),
        (("roofline",), "deep.toml"),
        (("profile", "ingest", "--display-name", "deep"), "deep.json"),
        (("nki", "simulate", "{kernel}", "--timing", "--timing-params"), "deep.toml"),
    ],
)
def test_what_is_nested_too_deeply_is_bad_input(cli, tmp_path, words, name):
    from vibeserve.base.paths import packaged

    kernel = packaged("examples") / "kernels" / "elementwise-add" / "kernel.py"
    (tmp_path / name).write_text(DEEP if name.endswith("json") else f"a = {DEEP}")
    code, _, err = cli(*(word.format(kernel=f"{kernel}:add") for word in words), tmp_path / name)
    assert code == 2
    assert f"{name}" in err.splitlines()[0]
    assert "nested too deeply" in err or "recursion" in err


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "sql", "p", "select 1", "--timeout", "nan"),
        ("profile", "sql", "p", "select 1", "--timeout", "-1"),
        ("profile", "sql", "p", "select 1", "--timeout", "1e20"),
        ("profile", "sql", "p", "select 1", "--limit", "9" * 20),
        ("profile", "serve", "--port", "70000"),
        ("profile", "serve", "--api-server-port", "-1"),
        ("mcp", "--http", "\u00b2"),
        ("mcp", "--http", "9" * 5000),
        ("bench", "b", "--url", "u", "--window", "nan"),
        ("bench", "b", "--url", "u", "--timeout", "inf"),
        ("bench", "b", "--url", "u", "--seed", "-1"),
        ("check", "b", "--url", "u", "--seed", "9" * 20),
        ("evaluate", "b", "--candidate", "c", "--window", "nan"),
        ("evaluate", "b", "--candidate", "c", "--seed", "-1"),
        ("optimize", "b", "--seed", "9" * 20),
        ("nki", "simulate", "k.py:k", "--lnc", "0"),
        ("nki", "simulate", "k.py:k", "--seed", "-1"),
        ("roofline", "softmax", "--lnc", "0"),
    ],
)
def test_numbers_out_of_range_are_refused_by_name(cli, words):
    code, _, err = cli(*words)
    assert code == 2
    assert words[-2] in err.splitlines()[0] or words[-2] == "--http" or "LNC 0" in err
    assert err.splitlines()[1].startswith("hint: ")


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://a b:1",
        "http://\udcff:1",
        f"http://{'x' * 300}:1",
        "http://127.0.0.1:1\nHost: x",
        "http://",
    ],
)
def test_what_is_no_address_is_refused(url):
    from vibeserve.measure import ExternalServer

    with pytest.raises(InputError, match="not the address of a server"):
        ExternalServer(url)


@pytest.mark.parametrize("host", ["", "\udcff", "a b", "x" * 300])
def test_what_is_no_address_to_listen_on_is_refused(host):
    from vibeserve.measure.launch import check_host

    with pytest.raises(InputError, match="no address to listen on"):
        check_host(host)
    check_host("127.0.0.1")
    check_host("::1")
