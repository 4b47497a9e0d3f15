"""The servers of the comparison that are not ours: each is started as a candidate, as it is set up for any load."""

from __future__ import annotations

import pytest
from benchmarks.serving.peer import read_peers

from vibeserve.measure import read_candidate

THEIRS = [
    (name, load)
    for name, peer in read_peers().items()
    if not (peer.ours or peer.bundle_reference)
    for load in ("", *peer.on)
]


@pytest.mark.parametrize(("name", "load"), THEIRS)
def test_a_peer_is_a_candidate(name, load, tmp_path):
    with read_peers()[name].for_load(load).candidate(tmp_path) as directory:
        start = read_candidate(directory).start
    assert start[1].endswith("wrap.py")
    assert start[2:] == ((name, load) if load else (name,))
