"""The data files: every listed name is there, every instruction's entry fits its signature and the rules' vocabulary."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import vibeserve.nki.collectives
import vibeserve.nki.language  # noqa: F401  (fills the registry)
from vibeserve.nki import special
from vibeserve.nki.instruction import REGISTRY, Spec, entries
from vibeserve.nki.ops import OPS
from vibeserve.nki.rules import _FACTS, RULES
from vibeserve.nki.targets import target

ROOT = Path(__file__).parents[2]
KINDS = {"arith", "compare", "bit", "unary", "reduction", "activation"}


def coverage():
    spec = importlib.util.spec_from_file_location("nki_coverage", ROOT / "tools" / "nki_coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules["nki_coverage"] = module
    spec.loader.exec_module(module)
    return module


def test_every_listed_name_is_simulated_or_says_that_it_is_not():
    missing = [
        f"{row.module}.{row.name}: {row.state}"
        for row in coverage().rows()
        if row.state != "simulated" and not row.state.startswith("raises")
    ]
    assert missing == []


def test_every_instruction_has_an_entry_and_every_entry_an_instruction():
    assert set(REGISTRY) == set(entries())


def operands_of(rule: str, argument: object) -> list[str]:
    if rule in ("same_partitions", "same_elements", "same_dtype", "not_both_psum", "column"):
        return list(argument)
    if rule in ("spaces", "dtypes", "limits", "ops", "enums"):
        return list(argument)
    if rule == "bits_on_integers":
        return [*argument, *(name for names in argument.values() for name in names)]
    return []


@pytest.mark.parametrize("name", sorted(entries()))
def test_an_entry_fits_its_signature(name):
    entry, params = entries()[name], set(REGISTRY[name].params)
    for fact in ("reads", "writes", "scalars", "optional", "lists", "indirect"):
        assert set(entry.get(fact, ())) <= params, fact
    assert entry["engines"]
    for rule, argument in entry.items():
        if rule in _FACTS:
            continue
        assert rule in RULES, rule
        assert set(operands_of(rule, argument)) <= params, rule
        for op in (op for ops in argument.values() for op in ops) if rule == "ops" else ():
            assert op in KINDS or op in OPS
        for named in ([argument] if isinstance(argument, str) else argument) if rule == "special" else ():
            assert callable(special.named(named))
    assert isinstance(REGISTRY[name], Spec)


@pytest.mark.parametrize(
    ("name", "number"), [("trn1", 2), ("inf2", 2), ("gen2", 2), ("trn2", 3), ("gen3", 3), ("trn3", 4), ("gen4", 4)]
)
def test_targets(name, number):
    found = target(name)
    assert found.number == number
    assert found.sbuf_usable_per_partition < found.sbuf_per_partition
    assert found.psum_per_partition == 8 * found.psum_bank
