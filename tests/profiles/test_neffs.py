"""Which NEFF is which kernel: NEFFs in the real format, compile work directories that exist or are gone."""

import base64
import json
import uuid

import pytest

from vibeserve.base.errors import InputError
from vibeserve.profiles import neff, neffs


def header(**more):
    values = {
        "package_version": 2, "header_size": 1024, "data_size": 0, "major_version": 2, "minor_version": 0, "build_version": "2.23",
        "core_count": 1, "hash": "ab" * 16, "uuid": "cd" * 16, "network_name": "model", "feature_bits": 0xC00, "lnc_size": 2,
    }  # fmt: skip
    return neff.NeffHeader(**{**values, **more})


@pytest.fixture
def output(tmp_path):
    """A runtime's output tree with one NKI kernel, one XLA graph and one whose work directory is gone."""
    run = tmp_path / "output" / "i-0123456789abcdef0_pid_77"
    run.mkdir(parents=True)
    # The compiler works below /tmp; so must we, for the path is found by its form.
    work = __import__("pathlib").Path("/tmp") / f"vibeserve-test-{uuid.uuid4().hex[:8]}" / "neuroncc_compile_workdir"
    config = {
        "kernel_version": 1, "func_name": "matmul_relu", "grid": [],
        "klir_binary": {"binary": "x.klir", "input_names": ["lhs_T", "rhs", "tmp.4"], "output_names": ["output.51"]},
    }  # fmt: skip
    text = base64.b64encode(json.dumps(config).encode())
    for number, name, hlo in (
        (
            389250674131083,
            "aaa",
            b"\x0a\x05main\x12custom-call.1\x00AwsNeuronCustomNativeKernel\x00" + b"\x1a\x90" + text + b"\x00",
        ),
        (418708643727628, "bbb", b"\x0a\x05main\x12\x00broadcast.3\x00dot.4\x00maximum.5\x00reduce-window.1\x00"),
    ):
        (work / name).mkdir(parents=True)
        (work / name / "model.MODULE_1.hlo_module.pb").write_bytes(hlo)
        neff.write(
            run / f"neff_{number}_vnc_0.neff", header(network_name=f"{work}/{name}/model.neff"), {"info.json": b"{}"}
        )
    neff.write(run / "neff_5_vnc_0.neff", header(network_name=f"{work}/gone/model.neff"), {"info.json": b"{}"})
    (run / "389250674131083_vnc_0.ntff").write_bytes(b"x")
    yield run
    __import__("shutil").rmtree(work.parent)


def test_header_and_members_are_read_back(tmp_path):
    path = tmp_path / "k.neff"
    neff.write(path, header(), {"info.json": b'{"name": "k"}', "sg00/def.json": b"{}"})
    found = neff.read_header(path)
    assert (found.network_name, found.uuid, found.hash, found.lnc_size) == ("model", "cd" * 16, "ab" * 16, 2)
    assert found.data_size == path.stat().st_size - 1024
    assert neff.members(path) == {"info.json": b'{"name": "k"}', "sg00/def.json": b"{}"}


@pytest.mark.parametrize("data", [b"", b"x" * 100, b"\0" * 2000])
def test_what_is_no_neff_is_said(tmp_path, data):
    path = tmp_path / "k.neff"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"too short|no NEFF"):
        neff.read_header(path)


def test_a_damaged_archive_is_said(tmp_path):
    path = tmp_path / "k.neff"
    neff.write(path, header(), {"info.json": b"{}" * 5000})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="archive cannot be read"):
        neff.members(path)


def test_the_listing(output, cli):
    code, out, _ = cli("nki", "neffs", output.parent)
    assert code == 0
    nki = output / "neff_389250674131083_vnc_0.neff"
    assert out.splitlines()[:4] == [
        f"[NKI:matmul_relu] {nki}",
        "  inputs: ['lhs_T', 'rhs', 'tmp.4']  outputs: ['output.51']",
        f"  ntff: {output / '389250674131083_vnc_0.ntff'}",
        f"[XLA:broadcast,dot,maximum] {output / 'neff_418708643727628_vnc_0.neff'}",
    ]
    assert f"[XLA:unknown] {output / 'neff_5_vnc_0.neff'}" in out


def test_a_kernels_path_alone_for_a_shell(output, cli):
    code, out, _ = cli("nki", "neffs", output.parent, "matmul_relu")
    assert code == 0
    assert out == f"{output / 'neff_389250674131083_vnc_0.neff'}\n"


def test_json(output, cli):
    _code, out, _ = cli("nki", "neffs", output, "--json")
    kinds = {item["kind"]: item for item in json.loads(out)["neffs"]}
    assert set(kinds) == {"nki", "xla", "unknown"}
    assert kinds["nki"]["kernel"] == "matmul_relu"
    assert "is gone" in kinds["unknown"]["note"]


def test_no_such_kernel_and_no_neff(output, cli, tmp_path):
    code, out, err = cli("nki", "neffs", output, "nosuch")
    assert (code, out) == (1, "")
    assert err.startswith("error: No NEFF found for kernel 'nosuch'\nhint: there is matmul_relu")
    empty = tmp_path / "empty"
    empty.mkdir()
    code, _, err = cli("nki", "neffs", empty)
    assert code == 1
    assert err.startswith(f"error: No NEFF files found in {empty}")
    assert cli("nki", "neffs", tmp_path / "missing")[0] == 2


def test_a_marker_without_a_readable_configuration(tmp_path, output):
    hlo = next(neffs.workdir_of(output / "neff_389250674131083_vnc_0.neff").glob("*.pb"))
    hlo.write_bytes(b"\0AwsNeuronCustomNativeKernel\0" + b"A" * 100)
    found = neffs.examine(output / "neff_389250674131083_vnc_0.neff")
    assert found.lines()[0].startswith("[NKI:None]")
    assert (found.inputs, found.outputs) == ((), ())


def test_capture_without_the_tool_says_what_to_run(output, cli, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, _ = cli(
        "nki", "capture", output / "neff_389250674131083_vnc_0.neff", "--profiles-dir", tmp_path / "profiles", "--json"
    )
    assert code == 3
    error = json.loads(out)["error"]
    assert "NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1 neuron-explorer capture" in error["hint"]
    assert "--profile-nth-exec=2" in error["hint"]


FAKE = """#!/usr/bin/env python3
import os, pathlib, sys
if sys.argv[1] == "capture":
    assert os.environ["NEURON_RT_ENABLE_DGE_NOTIFICATIONS"] == "1"
    session = pathlib.Path(sys.argv[sys.argv.index("-s") + 1])
    session.with_name(session.stem + "_exec_2.ntff").write_bytes(b"trace")
else:
    print('{"n_1": {"total_time": 3.6e-05, "hbm_read_bytes": 5}}')
"""


def test_capture_makes_the_next_run_folder(output, cli, monkeypatch, tmp_path):
    tool = tmp_path / "bin" / "neuron-explorer"
    tool.parent.mkdir()
    tool.write_text(FAKE)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{__import__('os').environ['PATH']}")
    runs = tmp_path / "profiles"
    (runs / "run_001").mkdir(parents=True)
    code, out, _ = cli("nki", "capture", output / "neff_389250674131083_vnc_0.neff", "--profiles-dir", runs, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["folder"] == str(runs / "run_002")
    assert document["ntff"] == str(runs / "run_002" / "profile_exec_2.ntff")
    metrics = json.loads((runs / "run_002" / "metrics.json").read_text())
    assert metrics["latency"] == pytest.approx(0.036)
    assert metrics["n_1"]["hbm_read_bytes"] == 5
