"""A reference that was proved is not proved again, where nothing has changed."""

from __future__ import annotations

from pathlib import Path

from vibeserve.base.clock import LogicalClock
from vibeserve.search.lab import Gate
from vibeserve.search.proofs import Proofs


def test_kept_for_its_environment_alone(tmp_path: Path) -> None:
    proofs = Proofs(tmp_path, {"torch": "1"}, clock=LogicalClock())
    assert proofs.find() is None
    proofs.keep(Gate("check", True, "3 of 3 cases passed", {"passed": True}))
    found = proofs.find()
    assert found is not None
    assert found.ok is True
    assert found.detail.startswith("3 of 3 cases passed, proved on 2026-01-01")
    assert found.document == {"passed": True}
    assert Proofs(tmp_path, {"torch": "2"}).find() is None


def test_a_file_that_cannot_be_read_is_no_proof(tmp_path: Path) -> None:
    proofs = Proofs(tmp_path, {})
    for text in ("", "[]", '{"detail": 1}', "\x00"):
        proofs.path.write_text(text)
        assert proofs.find() is None
