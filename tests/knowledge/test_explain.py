"""Messages, exceptions, logs and work directories explained."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vibeserve import knowledge
from vibeserve.base.errors import InputError
from vibeserve.knowledge import catalogue


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


LOG = """2026-08-01T10:00:00Z INFO 123 [root]: /opt/bin/neuronx-cc compile --target trn2 model.hlo_module.pb
2026-08-01T10:00:01Z INFO 123 [job.Frontend]: Finished pass Tensorizer in 12.50 seconds
2026-08-01T10:00:02Z WARNING 123 [Spill]: spilled SBUF bytes: 65536 bytes
2026-08-01T10:00:03Z INFO 123 [job.Backend]: Finished pass Allocator in 250 ms
2026-08-01T10:00:04Z ERROR 123 [Tensorizer]: [NCC_EOOM001] needed 30 GB > HBM limit 24 GB
"""


@pytest.fixture
def workdir(tmp_path):
    folder = tmp_path / "neuroncc_compile_workdir" / "11111111-2222"
    folder.mkdir(parents=True)
    (folder / "log-neuron-cc.txt").write_text(LOG)
    (folder / "model.MODULE_12.hlo_module.pb").write_bytes(b"x")
    (folder / "model.MODULE_12.neff").write_bytes(b"y")
    return folder


def test_artifacts(workdir, cli):
    code, out, _ = cli("nki", "artifacts", workdir, "--json")
    assert code == 0
    document = json.loads(out)
    assert {item["path"]: item["what"].split(" ")[1] for item in document["files"]} == {
        "log-neuron-cc.txt": "compiler's",
        "model.MODULE_12.hlo_module.pb": "graph",
        "model.MODULE_12.neff": "executable",
    }
    assert [(item["code"], item["line"]) for item in document["errors"]] == [("NCC_EOOM001", 5)]
    assert len(document["warnings"]) == 1
    assert document["passes"] == [{"name": "Tensorizer", "seconds": 12.5}, {"name": "Allocator", "seconds": 0.25}]
    assert document["memory"][0] == {"what": "spilled SBUF bytes", "value": "65536", "unit": "bytes"}
    assert document["neffs"] == [str(workdir / "model.MODULE_12.neff")]
    assert [(item["neff"], item["kind"]) for item in document["kernels"]] == [(document["neffs"][0], "unknown")]
    assert document["kernels"][0]["note"]


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
    assert set(match) >= {"code", "title", "cause", "fix", "file", "line"}
    code, out, _ = cli("nki", "explain", "NCC_EVRF001: unsupported operator triangular_solve")
    assert out.startswith("NCC_EVRF001: Unsupported operator")
    assert cli("nki", "explain", " ")[0] == 2
