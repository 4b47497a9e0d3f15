"""Is this environment fit for kernel work on a device? Each check says what was seen and what to set; nothing is changed."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vibeserve import knowledge

NOT_CONFIGURED = (
    "NKI_VENV_PATH not configured. Set the environment variable or create .claude/nki-dev-suite.local.md with "
    "nki_venv_path in frontmatter."
)
SETTINGS_FILE = Path(".claude") / "nki-dev-suite.local.md"
_PACKAGES = ("neuronx-cc", "torch-neuronx", "torch-xla", "libneuronxla", "nki")
_NEEDED_FREE_BYTES = 5 * 10**9
_SAME = {
    "gen2": "trn1",
    "gen3": "trn2",
    "gen4": "trn3",
    "inf2": "trn1",
    "trn1n": "trn1",
    "trn2n": "trn2",
    "trn2u": "trn2",
}
_CONTRADICTIONS = (
    (r"--optlevel[= ]1|-O1\b", r"--optlevel[= ]3|-O3\b", "-O1 and -O3"),
    (r"--auto-cast[= ]none", r"--auto-cast-type", "--auto-cast=none with --auto-cast-type"),
    (r"--lnc[= ]1|--logical-nc-config[= ]1", r"--lnc[= ]2|--logical-nc-config[= ]2", "LNC 1 and LNC 2"),
)


@dataclass(frozen=True, slots=True)
class Check:
    """One check. `ok` None: it could not be looked at here."""

    name: str
    ok: bool | None
    detail: str
    fix: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"name": self.name, "ok": self.ok, "detail": self.detail, "fix": self.fix}


def _output(argv: list[str]) -> str | None:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, slots=True)
class Machine:
    """What the checks look at, handed in so that tests need no device."""

    environment: Mapping[str, str]
    folder: Path
    which: Callable[[str], str | None] = shutil.which
    run: Callable[[list[str]], str | None] = _output
    installed: Callable[[str], str | None] = _version
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free


def this_machine() -> Machine:
    """The present process's environment and folder."""
    return Machine(os.environ, Path.cwd())


def venv_path(machine: Machine) -> str | None:
    """The kernel environment: NKI_VENV_PATH, else nki_venv_path in the front matter of .claude/nki-dev-suite.local.md."""
    if machine.environment.get("NKI_VENV_PATH"):
        return machine.environment["NKI_VENV_PATH"]
    path = machine.folder / SETTINGS_FILE
    if not path.is_file():
        return None
    match = re.match(r"---\s*\n(.*?)\n---", path.read_text(encoding="utf-8", errors="replace"), re.S)
    found = re.search(r"^nki_venv_path:\s*['\"]?([^'\"\n#]+)", match.group(1), re.M) if match else None
    return found.group(1).strip() if found else None


def diagnose(machine: Machine, script: Path | None = None, output: Path | None = None) -> list[Check]:
    """Every check: environment, device, packages, agreement of target and LNC, flags, disk; then of a script and of a
    profiling output directory where they are given."""
    found = [
        _venv(machine),
        *_device(machine),
        _packages(machine),
        *_targets(machine),
        *_flags(machine),
        _disk(machine),
    ]
    if script is not None:
        found += _script(script)
    if output is not None:
        found += _output_directory(output)
    return found


def _venv(machine: Machine) -> Check:
    path = venv_path(machine)
    if path is None:
        return Check("kernel environment", False, NOT_CONFIGURED, "export NKI_VENV_PATH=/path/to/venv")
    if not (Path(path).expanduser() / "bin" / "activate").is_file():
        return Check(
            "kernel environment",
            False,
            f"{path} holds no virtual environment (no bin/activate)",
            "correct NKI_VENV_PATH",
        )
    return Check("kernel environment", True, f"{path}: source {path}/bin/activate")


def _device(machine: Machine) -> Iterator[Check]:
    tool = machine.which("neuron-ls")
    if tool is None:
        yield Check(
            "device",
            None,
            "neuron-ls is not here: no Trainium on this machine",
            "kernels run on the simulator: vibeserve nki run",
        )
        return
    text = machine.run([tool]) or ""
    family = detected_family(text)
    if family is None:
        yield Check("device", False, "neuron-ls names no instance type", "check the driver: lsmod | grep neuron")
    else:
        yield Check("device", True, f"{family} ({_first_line(text)})")
    for name in ("neuron-explorer", "neuronx-cc"):
        where = machine.which(name)
        yield Check(
            name,
            where is not None,
            where or f"{name} is not on PATH",
            "" if where else "activate the kernel environment",
        )


def detected_family(text: str) -> str | None:
    """trn1, trn2, … from what neuron-ls prints."""
    match = re.search(r"instance-type:?\s*([a-z]+[0-9]+)[a-z]*\.", text)
    return match.group(1) if match else None


def _packages(machine: Machine) -> Check:
    have = {name: version for name in _PACKAGES if (version := machine.installed(name))}
    if not have:
        return Check("packages", None, "no neuronx package in this Python", "activate the kernel environment")
    return Check("packages", True, ", ".join(f"{name} {version}" for name, version in have.items()))


def _targets(machine: Machine) -> Iterator[Check]:
    flags = machine.environment.get("NEURON_CC_FLAGS", "")
    match = re.search(r"--target[= ](\w+)", flags)
    override = machine.environment.get("NEURON_PLATFORM_TARGET_OVERRIDE")
    tool = machine.which("neuron-ls")
    said = {
        "--target": match.group(1) if match else None,
        "NEURON_PLATFORM_TARGET_OVERRIDE": override,
        "device": detected_family(machine.run([tool]) or "") if tool else None,
    }
    known = {name: value for name, value in said.items() if value}
    names = {_SAME.get(value, value) for value in known.values()}
    detail = ", ".join(f"{name} {value}" for name, value in known.items()) or "no target is set anywhere"
    fix = 'os.environ["NEURON_CC_FLAGS"] = "--target trn2 --lnc 1" and the same in NEURON_PLATFORM_TARGET_OVERRIDE'
    yield Check("target", len(names) == 1 if known else None, detail, "" if len(names) == 1 else fix)
    lnc = re.search(r"--(?:lnc|logical-nc-config)[= ](\d)", flags)
    runtime = machine.environment.get("NEURON_LOGICAL_NC_CONFIG") or machine.environment.get(
        "NEURON_RT_VIRTUAL_CORE_SIZE"
    )
    if lnc and runtime:
        same = lnc.group(1) == runtime
        yield Check(
            "LNC",
            same,
            f"--lnc {lnc.group(1)}, run time {runtime}",
            "" if same else "one and the same value, and kernel[lnc]",
        )
    if lnc and names == {"trn1"} and lnc.group(1) != "1":
        yield Check("LNC", False, "trn1 and inf2 have no LNC 2", "--lnc 1")


def _flags(machine: Machine) -> Iterator[Check]:
    flags = machine.environment.get("NEURON_CC_FLAGS", "")
    found = [label for one, other, label in _CONTRADICTIONS if re.search(one, flags) and re.search(other, flags)]
    unknown = [
        word.split("=")[0]
        for word in flags.split()
        if word.startswith("--") and knowledge.find_flag(word.split("=")[0]) is None
    ]
    if found:
        yield Check("compiler flags", False, f"they contradict one another: {', '.join(found)}", "drop one of them")
    elif unknown:
        yield Check("compiler flags", None, f"not known here: {', '.join(unknown)}", "vibeserve docs search FLAG")
    else:
        yield Check("compiler flags", True, flags or "none")


def _disk(machine: Machine) -> Check:
    folder = Path(machine.environment.get("NEURON_RT_INSPECT_OUTPUT_DIR") or machine.folder)
    place = next((item for item in (folder, *folder.parents) if item.exists()), Path("/"))
    free = machine.free_bytes(place)
    return Check(
        "free disk",
        free >= _NEEDED_FREE_BYTES,
        f"{free / 1e9:.1f} GB at {place}",
        "" if free >= _NEEDED_FREE_BYTES else "traces need several GB",
    )


def _script(path: Path) -> Iterator[Check]:
    """Are the variables of a script set before its imports? (The lint rule H-ENV-LATE, and the profiling variables.)"""
    from vibeserve.nki import lint

    text = path.read_text(encoding="utf-8", errors="replace")
    late = lint.lint_text(text, str(path), lint.Options(only=("H-*",)))
    for item in late:
        yield Check(f"script line {item.line}", False, item.message, item.instead)
    set_here = _environment_of(text)
    if "NEURON_RT_INSPECT_ENABLE" not in set_here:
        yield Check("script profiling", None, "the script sets no profiling variable", HEADER)
    elif not late:
        yield Check("script", True, "its variables are set before the imports")


def _environment_of(text: str) -> set[str]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return set()
    return {
        str(node.slice.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Subscript)
        and isinstance(node.slice, ast.Constant)
        and "environ" in ast.unparse(node.value)
    }


HEADER = """import os

os.environ["NEURON_CC_FLAGS"] = "--target trn2 --lnc 1"
os.environ["NEURON_PLATFORM_TARGET_OVERRIDE"] = "trn2"
os.environ["NEURON_RT_VISIBLE_CORES"] = "0"
os.environ["XLA_IR_DEBUG"] = "1"
os.environ["XLA_HLO_DEBUG"] = "1"
os.environ["NEURON_FRAMEWORK_DEBUG"] = "1"
os.environ["NEURON_RT_INSPECT_ENABLE"] = "1"
os.environ["NEURON_RT_INSPECT_DEVICE_PROFILE"] = "1"
os.environ["NEURON_RT_INSPECT_OUTPUT_DIR"] = "./output"
"""

ARTIFACT_FLAGS = (
    "--verbose=info and --pipeline compile SaveTemps in NEURON_CC_FLAGS; they land in /tmp/$USER/neuroncc_compile_workdir/<uuid>/ "
    "(log-neuron-cc.txt, *.neff, *.hlo_module.pb): vibeserve nki artifacts latest"
)


def _output_directory(folder: Path) -> Iterator[Check]:
    """The troubles of a profiling run, told by what its output directory holds."""
    neffs = sorted(folder.rglob("*.neff")) if folder.is_dir() else []
    traces = sorted(folder.rglob("*.ntff")) if folder.is_dir() else []
    if not neffs:
        why = "set NEURON_RT_INSPECT_ENABLE=1 before imports, print the result (it forces the run), check neuron-ls and that the folder is writable"
        yield Check("output: NEFF", False, f"no NEFF below {folder}", why)
        return
    yield Check("output: NEFF", True, f"{len(neffs)} NEFF(s)")
    if len(neffs) > 1:
        yield Check(
            "output: several NEFFs",
            False,
            f"{len(neffs)} graphs ran on the device",
            "compute references on the CPU; vibeserve nki neffs DIR KERNEL tells which is which",
        )
    if not traces:
        yield Check(
            "output: trace",
            False,
            "no NTFF: the capture failed",
            "on the device: vibeserve nki capture NEFF; check disk space and the kernel environment",
        )
    empty = [path for path in traces if path.stat().st_size < 1024]
    if empty:
        yield Check(
            "output: empty trace",
            False,
            f"{empty[0].name} holds {empty[0].stat().st_size} bytes",
            "--profile-nth-exec=2, NEURON_RT_ENABLE_DGE_NOTIFICATIONS=1; check that the kernel ran",
        )
    latencies = _latencies(folder)
    if len(latencies) > 1:
        spread = (max(latencies) - min(latencies)) / min(latencies)
        fix = "skip the warm-up (--profile-nth-exec=2), pin a core, average several, look for throttling"
        yield Check(
            "output: latency varies",
            spread <= 0.05,
            f"{len(latencies)} runs, {spread:.1%} apart",
            "" if spread <= 0.05 else fix,
        )


def _latencies(folder: Path) -> list[float]:
    import json

    out = []
    for path in sorted(folder.rglob("metrics.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            continue
        nodes = [document, *document.values()] if isinstance(document, dict) else []
        value = next((node["total_time"] for node in nodes if isinstance(node, dict) and node.get("total_time")), None)
        if value:
            out.append(float(value))
    return out


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
