"""The doctor on machines made up here: with a device and without, right and wrong in each way."""

import json
from pathlib import Path

import pytest

from vibeserve.nki import doctor

NEURON_LS = "instance-type: trn2.48xlarge\ninstance-id: i-012\nlogical-neuroncore-config: 2\n"


def machine(tmp_path, environment=None, device=True, packages=True, free=10**11, text=NEURON_LS):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True, exist_ok=True)
    (venv / "bin" / "activate").write_text("")
    return doctor.Machine(
        environment={"NKI_VENV_PATH": str(venv), **(environment or {})},
        folder=tmp_path,
        which=lambda name: f"/opt/bin/{name}" if device else None,
        run=lambda argv: text,
        installed=lambda name: "2.30" if packages and name == "neuronx-cc" else None,
        free_bytes=lambda path: free,
    )


def state(found):
    return {item.name: item.ok for item in found}


def test_all_is_well(tmp_path):
    environment = {
        "NEURON_CC_FLAGS": "--target trn2 --lnc 1",
        "NEURON_PLATFORM_TARGET_OVERRIDE": "gen3",
        "NEURON_LOGICAL_NC_CONFIG": "1",
    }
    found = doctor.diagnose(machine(tmp_path, environment))
    assert all(found_item.ok for found_item in found), found
    assert "trn2" in next(item.detail for item in found if item.name == "device")


def test_the_environment_comes_from_front_matter_too(tmp_path):
    held = machine(tmp_path)
    settings = tmp_path / doctor.SETTINGS_FILE
    settings.parent.mkdir()
    settings.write_text(f'---\nname: x\nnki_venv_path: "{tmp_path}/venv"  # here\n---\nnki_venv_path: /wrong\n')
    bare = doctor.Machine({}, tmp_path, held.which, held.run, held.installed, held.free_bytes)
    assert doctor.venv_path(bare) == f"{tmp_path}/venv"
    settings.unlink()
    assert doctor.venv_path(bare) is None


@pytest.mark.parametrize(
    ("environment", "wrong"),
    [
        ({"NEURON_CC_FLAGS": "--target trn1", "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2"}, "target"),
        ({"NEURON_CC_FLAGS": "--target trn3"}, "target"),
        ({"NEURON_CC_FLAGS": "--target trn2 --lnc 2", "NEURON_LOGICAL_NC_CONFIG": "1"}, "LNC"),
        ({"NEURON_CC_FLAGS": "--target trn2 -O1 --optlevel=3"}, "compiler flags"),
        ({"NKI_VENV_PATH": "/nowhere"}, "kernel environment"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, environment, wrong):
    assert state(doctor.diagnose(machine(tmp_path, environment)))[wrong] is False


def test_no_device_is_no_fault(tmp_path):
    found = state(doctor.diagnose(machine(tmp_path, device=False, packages=False)))
    assert found["device"] is None
    assert found["packages"] is None
    assert False not in found.values()


def test_little_disk(tmp_path):
    assert state(doctor.diagnose(machine(tmp_path, free=10**9)))["free disk"] is False


def test_a_script_with_late_variables(tmp_path):
    script = tmp_path / "run.py"
    script.write_text("import os\nimport torch_xla\nimport nki\nos.environ['NEURON_RT_INSPECT_ENABLE'] = '1'\n")
    found = doctor.diagnose(machine(tmp_path), script)
    assert state(found)["script line 4"] is False
    script.write_text(doctor.HEADER + "import torch_xla\nimport nki\n")
    assert state(doctor.diagnose(machine(tmp_path), script))["script"] is True


def test_the_troubles_of_profiling(tmp_path):
    output = tmp_path / "output"

    def names():
        return {
            item.name: item.ok
            for item in doctor.diagnose(machine(tmp_path), output=output)
            if item.name.startswith("output")
        }

    assert names() == {"output: NEFF": False}
    output.mkdir()
    (output / "neff_1_vnc_0.neff").write_bytes(b"x" * 2000)
    assert names() == {"output: NEFF": True, "output: trace": False}
    (output / "1_vnc_0.ntff").write_bytes(b"")
    assert names()["output: empty trace"] is False
    (output / "neff_2_vnc_0.neff").write_bytes(b"x" * 2000)
    assert names()["output: several NEFFs"] is False
    for run, total in (("run_001", 1e-5), ("run_002", 1.5e-5)):
        (output / run).mkdir()
        (output / run / "metrics.json").write_text(json.dumps({"n_1": {"total_time": total}}))
    assert names()["output: latency varies"] is False


def test_without_an_environment_the_command_exits_3_with_the_known_words(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NKI_VENV_PATH", raising=False)
    code, _, err = cli("nki", "doctor")
    assert code == 3
    assert f"error: {doctor.NOT_CONFIGURED}" in err
    code, out, _ = cli("nki", "doctor", "--json")
    assert code == 3
    assert json.loads(out)["error"]["message"] == doctor.NOT_CONFIGURED


def test_the_ready_header_is_what_lint_wants(cli):
    from vibeserve.nki import lint

    code, out, _ = cli("nki", "doctor", "--header")
    assert code == 0
    assert lint.lint_text(out + "import torch_xla\nimport nki\n") == []


def test_json(cli, monkeypatch, tmp_path):
    (tmp_path / "v" / "bin").mkdir(parents=True)
    (tmp_path / "v" / "bin" / "activate").write_text("")
    monkeypatch.setenv("NKI_VENV_PATH", str(tmp_path / "v"))
    monkeypatch.chdir(tmp_path)
    code, out, _ = cli("nki", "doctor", "--json")
    document = json.loads(out)
    assert code == (0 if document["ok"] else 1)
    assert set(document["checks"][0]) == {"name", "ok", "detail", "fix"}
    assert Path(tmp_path / "v").name in document["checks"][0]["detail"]
