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
        installed=lambda name, folders: "2.30" if packages and name == "neuronx-cc" else None,
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
        ({"NEURON_CC_FLAGS": "--target trn2 --lnc 1 --logical-nc-config=2"}, "compiler flags"),
        ({"NEURON_CC_FLAGS": "--target trn2 --auto-cast=none --auto-cast-type bf16"}, "compiler flags"),
        (
            {
                "NEURON_CC_FLAGS": "--enable-mixed-precision-accumulation --disable-mixed-precision-accumulation",
                "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
            },
            "compiler flags",
        ),
        ({"NEURON_CC_FLAGS": "--target trn2 --no_cache --retry_failed_compilation"}, "compiler flags"),
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


def test_flags_that_agree_are_no_contradiction(tmp_path):
    flags = "--target trn2 --lnc 1 --lnc=1 --verbose=info --pipeline compile SaveTemps --auto-cast=all --auto-cast-type bf16"
    [found] = [
        item for item in doctor.diagnose(machine(tmp_path, {"NEURON_CC_FLAGS": flags})) if item.name == "compiler flags"
    ]
    assert found.ok is True, found


def test_packages_are_those_of_the_kernel_environment(tmp_path):
    held = machine(tmp_path)
    site = tmp_path / "venv/lib/python3.11/site-packages/neuronx_cc-2.30.dist-info"
    site.mkdir(parents=True)
    (site / "METADATA").write_text("Metadata-Version: 2.1\nName: neuronx-cc\nVersion: 2.30.1\n")
    real = doctor.Machine(held.environment, held.folder, held.which, held.run, free_bytes=held.free_bytes)
    [found] = [item for item in doctor.diagnose(real) if item.name == "packages"]
    assert (found.ok, found.detail) == (True, "neuronx-cc 2.30.1")


@pytest.mark.parametrize(
    ("line", "setting"),
    [
        ("os.environ['NEURON_RT_INSPECT_ENABLE'] = '1'", ("NEURON_RT_INSPECT_ENABLE", "1")),
        ("os.environ.setdefault('NEURON_RT_INSPECT_ENABLE', '1')", ("NEURON_RT_INSPECT_ENABLE", "1")),
        ("os.environ.update({'NEURON_RT_INSPECT_ENABLE': '1'})", ("NEURON_RT_INSPECT_ENABLE", "1")),
        ("os.environ.update(NEURON_RT_INSPECT_ENABLE='1')", ("NEURON_RT_INSPECT_ENABLE", "1")),
        ("os.putenv('NEURON_RT_INSPECT_ENABLE', '1')", ("NEURON_RT_INSPECT_ENABLE", "1")),
    ],
)
def test_a_script_sets_variables_in_many_ways(tmp_path, line, setting):
    assert doctor.script_settings(f"import os\n{line}\n") == dict([setting])
    script = tmp_path / "run.py"
    script.write_text(f"import os\nimport torch_xla\nimport nki\n{line}\n")
    assert state(doctor.diagnose(machine(tmp_path), script))["script line 4"] is False


def test_what_a_script_sets_must_agree_with_the_device(tmp_path):
    script = tmp_path / "run.py"
    script.write_text("import os\nos.environ['NEURON_CC_FLAGS'] = '--target trn3 -O1 -O2'\nimport nki\n")
    found = state(doctor.diagnose(machine(tmp_path), script))
    assert found["target"] is False
    assert found["compiler flags"] is False


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


def test_a_folder_of_profiles_without_neffs_is_looked_at_too(tmp_path):
    for run, latency in (("run_001", 0.100), ("run_002", 0.101), ("run_003", 0.102)):
        (tmp_path / run).mkdir()
        (tmp_path / run / "metrics.json").write_text(json.dumps({"latency": latency}))
        (tmp_path / run / "profile.ntff").write_bytes(b"x" * 5000)
    found = {item.name: item.ok for item in doctor.troubles(tmp_path)}
    assert found == {"output: latency varies": True}
    (tmp_path / "run_003/metrics.json").write_text(json.dumps({"latency": 0.2}))
    assert {item.name: item.ok for item in doctor.troubles(tmp_path)} == {"output: latency varies": False}


def test_each_trouble_names_the_remedies_of_the_specification():
    from vibeserve.nki import troubles

    for text, words in (
        (troubles.NO_NEFF, ("NEURON_RT_INSPECT_ENABLE=1", "NEURON_RT_INSPECT_OUTPUT_DIR", "print", "neuron-ls")),
        (troubles.FAILED_CAPTURE, ("ls -la", "neuronx", "disk")),
        (troubles.EMPTY_PROFILE, ("--profile-nth-exec=2", "--enable-dge-notifs", "ls -lh")),
        (troubles.SEVERAL_NEFFS, ("CPU", "vibeserve nki neffs", "neff_<id>_vnc_0.neff")),
        (troubles.VARIES, ("--profile-nth-exec=2", "load", "average", "throttling")),
    ):
        assert all(word in text for word in words), text


def test_how_to_keep_artifacts_is_printed_everywhere(cli, monkeypatch):
    monkeypatch.delenv("NKI_VENV_PATH", raising=False)
    code, out, _ = cli("nki", "doctor", "--artifacts")
    assert code == 0
    assert "--pipeline compile SaveTemps" in out
    assert "neuroncc_compile_workdir" in out
    code, out, _ = cli("nki", "doctor", "--artifacts", "--json")
    assert code == 0
    assert set(json.loads(out)) == {"keep", "places"}


def test_the_exact_words_are_the_specifications(spec_dir):
    [file] = spec_dir.glob("001_*.txt")
    assert f'"{doctor.NOT_CONFIGURED}"' in file.read_text(encoding="utf-8")


def test_without_an_environment_the_command_exits_3_with_the_known_words(cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NKI_VENV_PATH", raising=False)
    code, _, err = cli("nki", "doctor")
    assert code == 3
    assert f"error: {doctor.NOT_CONFIGURED}" in err
    code, out, _ = cli("nki", "doctor", "--json")
    assert code == 3
    assert json.loads(out)["error"]["message"] == doctor.NOT_CONFIGURED
    (tmp_path / "output").mkdir()
    code, out, err = cli("nki", "doctor", "--output", "output", "--json")
    document = json.loads(out)
    assert code == 3
    assert document["ok"] is False
    assert f"error: {doctor.NOT_CONFIGURED}" in err
    assert any(item["name"].startswith("output") and item["ok"] is False for item in document["checks"])


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
