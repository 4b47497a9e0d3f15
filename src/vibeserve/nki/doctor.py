"""Is this environment fit for kernel work on a device? Each check says what was seen and what to set; nothing is changed."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from vibeserve import knowledge
from vibeserve.base.paths import expanded
from vibeserve.nki.troubles import troubles

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
# Pairs that mean nothing together: (a flag with its value, or without one for any) and why.
_CONTRADICTIONS = (
    (("--auto-cast", "none"), ("--auto-cast-type", None), "nothing is cast"),
    (
        ("--enable-mixed-precision-accumulation", None),
        ("--disable-mixed-precision-accumulation", None),
        "the second turns the first off",
    ),
    (("--no_cache", None), ("--cache_dir", None), "the cache is not used"),
    (("--no_cache", None), ("--retry_failed_compilation", None), "the cache is not used"),
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


def _version(name: str, folders: list[str]) -> str | None:
    """A package's version in the given site-packages, or in this Python where there are none."""
    found = (
        importlib.metadata.distributions(name=name, path=folders)
        if folders
        else importlib.metadata.distributions(name=name)
    )
    return next((item.version for item in found), None)


@dataclass(frozen=True, slots=True)
class Machine:
    """What the checks look at, handed in so that tests need no device."""

    environment: Mapping[str, str]
    folder: Path
    which: Callable[[str], str | None] = shutil.which
    run: Callable[[list[str]], str | None] = _output
    installed: Callable[[str, list[str]], str | None] = _version
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
    try:
        front = yaml.safe_load(match.group(1)) if match else None
    except yaml.YAMLError:
        return None
    found = front.get("nki_venv_path") if isinstance(front, dict) else None
    return str(found).strip() or None if found is not None else None


def diagnose(machine: Machine, script: Path | None = None, output: Path | None = None) -> list[Check]:
    """Every check: environment, device, packages, agreement of target and LNC, flags, disk; then of a script and of a
    profiling output directory where they are given."""
    text = script.read_text(encoding="utf-8", errors="replace") if script is not None else ""
    settings = script_settings(text)
    seen = replace(machine, environment={**machine.environment, **settings})
    found = [
        _venv(machine),
        *_device(machine),
        _packages(machine),
        *_targets(seen),
        *_flags(seen),
        _disk(seen),
    ]
    if script is not None:
        found += _script(script, text, settings)
    if output is not None:
        found += [Check(item.name, item.ok, item.detail, item.fix) for item in troubles(output)]
    return found


def _venv(machine: Machine) -> Check:
    path = venv_path(machine)
    if path is None:
        return Check("kernel environment", False, NOT_CONFIGURED, "export NKI_VENV_PATH=/path/to/venv")
    if not (expanded(path) / "bin" / "activate").is_file():
        return Check(
            "kernel environment",
            False,
            f"{path} holds no virtual environment (no bin/activate)",
            f"correct {'NKI_VENV_PATH' if machine.environment.get('NKI_VENV_PATH') else f'nki_venv_path in {SETTINGS_FILE}'}",
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
    """The neuronx packages of the kernel environment where one is set, else of this Python."""
    venv = venv_path(machine)
    folders = [str(path) for path in expanded(venv).glob("lib/python*/site-packages")] if venv else []
    have = {name: version for name in _PACKAGES if (version := machine.installed(name, folders))}
    if not have:
        where = f"in {venv}" if folders else "in this Python"
        return Check("packages", None, f"no neuronx package {where}", "activate the kernel environment")
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
    given: dict[str, set[str]] = {}
    unknown = []
    for name, value in flag_values(flags):
        known = knowledge.find_flag(name) or knowledge.find_flag(f"{name} {value}")
        if known is None:
            unknown.append(name)
        given.setdefault(known.name if known else name, set()).add(value)
    found = [f"{name} is {' and '.join(sorted(values))}" for name, values in given.items() if len(values) > 1]
    for (one, wanted), (other, _), why in _CONTRADICTIONS:
        if one in given and other in given and (wanted is None or wanted in given[one]):
            found.append(f"{one}{'=' + wanted if wanted else ''} with {other} ({why})")
    if found:
        yield Check("compiler flags", False, f"they contradict one another: {'; '.join(found)}", "drop one of them")
    elif unknown:
        yield Check("compiler flags", None, f"not known here: {', '.join(unknown)}", "vibeserve docs search FLAG")
    else:
        yield Check("compiler flags", True, flags or "none")


def flag_values(flags: str) -> Iterator[tuple[str, str]]:
    """(flag, value) of `--lnc 1`, `--lnc=1`, `-O1`; the value is '' where there is none. `--pipeline compile SaveTemps` has two words."""
    words = flags.split()
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if not word.startswith("-"):
            continue
        name, equals, value = word.partition("=")
        if (match := re.fullmatch(r"-O([0-3])", name)) is not None:
            yield "--optlevel", match.group(1)
            continue
        values = [value] if equals else []
        while not equals and at < len(words) and not words[at].startswith("-"):
            values.append(words[at])
            at += 1
        yield name, " ".join(values)


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


def _script(path: Path, text: str, settings: Mapping[str, str]) -> Iterator[Check]:
    """Are the variables of a script set before its imports? (The lint rules of host code, and the profiling variables.)"""
    from vibeserve.nki import lint

    late = lint.lint_text(text, str(path), lint.Options(only=("H-*",)))
    for item in late:
        yield Check(f"script line {item.line}", False, item.message, item.instead)
    missing = [name for name in _PROFILING if name not in settings]
    if missing:
        yield Check("script profiling", None, f"the script does not set {', '.join(missing)}", HEADER)
    elif not late:
        yield Check("script", True, "its variables are set before the imports")


_PROFILING = ("NEURON_RT_INSPECT_ENABLE", "NEURON_RT_INSPECT_DEVICE_PROFILE", "NEURON_RT_INSPECT_OUTPUT_DIR")


def script_settings(text: str) -> dict[str, str]:
    """The environment variables that a script sets to written-out text: os.environ[…] = …, setdefault, update, putenv."""
    from vibeserve.nki.lint.checks.host import environment_settings

    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return {}
    return {name: value for _, name, value in environment_settings(ast.walk(tree)) if value is not None}


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


def artifact_help() -> dict[str, list[dict[str, str]]]:
    """How to keep what the compiler makes, and where it lands: {"keep": [{"set", "keeps"}], "places": [{"path", "holds"}]}."""
    return knowledge.artifact_help()


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
