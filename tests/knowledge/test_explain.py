"""Messages, exceptions, logs and work directories explained."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve import knowledge
from vibeserve.base.errors import InputError
from vibeserve.knowledge import catalogue

[RECORDED] = (Path(__file__).parent / "recorded/neuroncc_compile_workdir").iterdir()


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("ERROR [NCC_EOOM001] needed 30 GB > HBM limit 24 GB", ["NCC_EOOM001"]),
        ("[GCA035] operands need 198024 bytes", ["NCC_IGCA035"]),
        ("error EVRF007: too many", ["NCC_EVRF007"]),
        ("nrt: NRT_TIMEOUT on core 0", ["NRT_TIMEOUT"]),
        ("nisa.tensor_tensor dst partition dimension 256 exceeds maximum 128", ["message-01"]),
        ("[INTERNAL_ERROR] [NCC_INKI016] Kernel validation exception: H must divide", ["NCC_INKI016"]),
        ("TypeError: got an unexpected keyword argument 'mask'", ["message-02"]),
        ("all went well, 0 errors", []),
        ("", []),
    ],
)
def test_what_is_found(text, codes):
    assert [item.code for item in knowledge.explain(text)] == codes


def test_the_users_own_line_is_named_and_not_the_library():
    text = """Traceback (most recent call last):
  File "/home/me/kernels/mlp.py", line 42, in fused_mlp
    nisa.nc_matmul(dst=acc, stationary=w, moving=x)
  File "/opt/venv/lib/python3.11/site-packages/nki/isa.py", line 900, in nc_matmul
    raise ValueError
nki error: [NCC_IBIR229] tensor larger
"""
    found = knowledge.explain(text)[0]
    assert (found.code, found.file, found.line) == ("NCC_IBIR229", "/home/me/kernels/mlp.py", 42)


def test_each_code_once_in_the_order_of_appearance():
    found = knowledge.explain("NCC_EVRF007\nNCC_EOOM001\nNCC_EVRF007 again\n")
    assert [(item.code, item.at_line) for item in found] == [("NCC_EVRF007", 1), ("NCC_EOOM001", 2)]


@given(st.text(max_size=400))
def test_no_text_breaks_it(text):
    for item in knowledge.explain(text):
        assert item.code in catalogue.errors() or item.code.startswith(("message-", "log-"))


@pytest.mark.parametrize("spelling", ["NCC_EVRF001", "EVRF001", "evrf001", "[EVRF001]", "VRF001"])
def test_spellings_of_a_code(spelling):
    assert knowledge.find_error(spelling).code == "NCC_EVRF001"


def test_status_numbers():
    assert knowledge.find_error("1202").code == "NRT_EXEC_HW_ERR_NC_UE"


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("nrt_execute failed: status_code=1006", "NRT_EXEC_OOB"),
        ("nrt_execute returned 1202", "NRT_EXEC_HW_ERR_NC_UE"),
        ("ERROR  NRT:nrt_load  Failed to load NEFF: status=4", "NRT_RESOURCE"),
        ("INFO: XTP004: Too many instructions", "NCC_EXTP004"),
        ("ERROR TDRV:dmem_alloc_internal Failed to alloc DEVICE memory: 13743184", "log-06"),
        ("Virtual Neuron Core(s) not available - Requested:2 Available:0 Virtual Core size 1", "log-04"),
        ("[XCG815] Estimated peak HBM usage (19.0) exceeds 16GB. Neff won't be able to load", "message-34"),
        ("Too many instructions after unroll for function sg0000 !", "message-35"),
        ("RuntimeError: neuronx-cc failed with -9", "log-23"),
        ("['neuronx-cc', 'compile'] returned non-zero exit status 70.", "log-24"),
        ("ModuleNotFoundError: No module named 'neuronxcc'", "log-25"),
        ("Failed to initialize devices, error:5", "log-08"),
        ("AttributeError: module 'nki' has no attribute 'simulate_kernel'", "message-22"),
    ],
)
def test_messages_as_they_stand_in_logs(line, code):
    assert code in [item.code for item in knowledge.explain(f"before\n2026-05-04 10:22 {line}\nafter")]


@pytest.mark.parametrize(
    "line", ["nrt_init returned 0", "status=4 of the request", "ABC123 and XYZ999", "exit status 7"]
)
def test_what_is_no_code(line):
    assert knowledge.explain(line) == []


def test_a_log_that_is_not_there(cli):
    code, _, err = cli("nki", "explain", "log-neuron-cc.txt")
    assert code == 2
    assert "no such file: log-neuron-cc.txt" in err


def test_unknown_code_suggests():
    with pytest.raises(InputError, match="no error code 'NCC_EVRF101'") as caught:
        knowledge.find_error("NCC_EVRF101")
    assert "NCC_EVRF" in caught.value.hint


def test_data_is_consistent():
    known = catalogue.errors()
    for entry in known.values():
        assert entry.meaning, entry.code
        assert entry.line > 0, entry.code
        assert set(entry.generations) <= {"trn1", "inf2", "trn2", "trn3", "after-trn3"}, entry.code
        for other in entry.related:
            assert other in known, (entry.code, other)
    shapes = {signature.pattern for signature in catalogue.signatures()}
    for task in catalogue.tasks():
        assert task.asked, task.id
        for other in task.related_errors:
            assert other in known or other in shapes, (task.id, other)


def test_what_the_simulator_and_the_lint_say_has_its_entry():
    from vibeserve.nki import lint

    assert set(lint.rules()) <= set(catalogue.errors())
    [first, *_] = knowledge.explain("dma_copy dst of 256 partitions [V6-PARTITION] at /home/me/k.py:7")
    assert (first.code, first.file, first.line) == ("V6-PARTITION", "/home/me/k.py", 7)
    assert knowledge.find_error("S-PSTART").document()["source"].startswith("knowledge/data/rules.yaml:")


LOG = (RECORDED / "log-neuron-cc.txt").read_text(encoding="utf-8")


@pytest.fixture
def workdir(tmp_path):
    """The recorded work directory, with the NEFF that the log speaks of."""
    from tests.profiles.test_neffs import header

    from vibeserve.profiles import neff

    folder = tmp_path / "neuroncc_compile_workdir" / RECORDED.name
    shutil.copytree(RECORDED, folder)
    [graph] = folder.glob("*.hlo_module.pb")
    module = graph.name.removesuffix(".hlo_module.pb")
    name = f"/tmp/gone/neuroncc_compile_workdir/{RECORDED.name}/{module}.neff"
    neff.write(folder / f"{module}.neff", header(network_name=name), {"info.json": b"{}"})
    return folder


def test_artifacts_of_a_recorded_directory(workdir, cli):
    code, out, _ = cli("nki", "artifacts", workdir, "--json")
    assert code == 0
    document = json.loads(out)
    what = {item["path"].rpartition(".")[2]: item["what"] for item in document["files"]}
    assert what["pb"] == "the graph that was compiled (HLO)"
    assert what["neff"] == "the executable (NEFF)"
    assert {item["path"]: item["what"] for item in document["files"]}[
        "command.txt"
    ] == "the command line of the compile"
    assert [(item["code"], item["line"]) for item in document["errors"]] == [(None, 23), ("NCC_IGCA046", 25)]
    assert document["errors"][1]["fix"]
    assert len(document["warnings"]) == 2
    assert "matmul-based transposes" in document["warnings"][0]
    passes = {item["name"]: (round(item["seconds"], 3), item["turns"]) for item in document["passes"]}
    assert passes == {
        "Tensorizer": (24.153, 1),
        "NeuronInstComb": (10.801, 2),
        "VerticalFusion": (3.5, 1),
        "LICM": (0.608, 1),
    }
    assert document["passes"][0]["name"] == "Tensorizer"
    memory = {item["what"]: (item["value"], item["unit"]) for item in document["memory"]}
    assert memory["Virtual memory peak"] == ("2969184", "K bytes")
    assert memory["Weights total number of bytes"] == ("163885", "bytes")
    assert memory["GCA DRAM bytes loaded or saved"] == ("45090304", "bytes")
    assert ("2603", "bytes") in memory.values()
    [kernel] = document["kernels"]
    assert (kernel["kind"], kernel["kernel"], kernel["inputs"]) == ("nki", "matmul_relu", ["lhs_T", "rhs"])
    assert "beside it" in kernel["note"]
    code, out, _ = cli("nki", "artifacts", workdir)
    assert "[NKI:matmul_relu]" in out
    assert "NCC_IGCA046" in out
    assert "2969184 K bytes" in out


@pytest.mark.parametrize(
    ("line", "passes"),
    [
        (
            "06/16/2021 08:46:37 AM INFO [sg00/Tensorizer/RelayPasses]: Exit time region: delta=0.961s",
            {"RelayPasses": 0.961},
        ),
        ("2024-08-15T14:49:05Z INFO 3835 [sg0000/Tensorizer/LICM]: LICM finished after 0.608 seconds", {"LICM": 0.608}),
        ("06/16/2021 01:58:49 PM INFO [WalrusDriver]: INFO (ShrinkDN) Time: 7.507 seconds", {"ShrinkDN": 7.507}),
        ("Finished pass Allocator in 250 ms", {"Allocator": 0.25}),
        ("2024-08-15T14:49:05Z INFO 3835 [LICM]: Finished (changed=True)", {}),
    ],
)
def test_pass_times_of_older_and_newer_logs(tmp_path, line, passes):
    (tmp_path / "log-neuron-cc.txt").write_text(line + "\n")
    found = knowledge.read_artifacts(tmp_path).passes
    assert {item["name"]: item["seconds"] for item in found} == passes


def test_the_newest_work_directory(tmp_path, workdir):
    assert knowledge.latest_workdir((tmp_path,)) == workdir
    with pytest.raises(InputError, match="no compiler work directory"):
        knowledge.latest_workdir((tmp_path / "nothing",))


def test_artifacts_of_nothing(cli, tmp_path):
    assert cli("nki", "artifacts", tmp_path / "missing")[0] == 2


def test_cli_explain_from_a_file_and_from_text(cli, tmp_path):
    log = tmp_path / "log-neuron-cc.txt"
    log.write_text(LOG)
    code, out, _ = cli("nki", "explain", log, "--json")
    assert code == 0
    match = json.loads(out)["matches"][0]
    assert match["code"] == "NCC_IGCA046"
    assert set(match) >= {"code", "title", "cause", "fix", "file", "line"}
    code, out, _ = cli("nki", "explain", "NCC_EVRF001: unsupported operator triangular_solve")
    assert out.startswith("NCC_EVRF001: Unsupported operator")
    assert cli("nki", "explain", " ")[0] == 2
