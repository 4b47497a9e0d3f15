"""What helpers say of the launch and of sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nkilib.core.utils.allocator import align_to, num_elts
from nkilib.core.utils.kernel_helpers import NUM_HW_PSUM_BANKS, get_program_sharding_info, is_launched_as_spmd

import vibeserve.nki.language as nl
import vibeserve.nki.shim  # noqa: F401
from vibeserve.nki import simulate


@pytest.mark.parametrize(
    ("lnc", "wanted"), [(None, [(False, 0, 1, 0)]), (1, [(False, 1, 1, 0)]), (2, [(True, 1, 2, 0), (True, 1, 2, 1)])]
)
def test_facts_of_the_launch(lnc: int | None, wanted: list[Any]) -> None:
    seen = []

    def kernel(x: Any) -> Any:
        seen.append((is_launched_as_spmd(), *get_program_sharding_info()))
        return x

    simulate(kernel, lnc=lnc)(np.ones((2, 2), np.float32))
    assert seen == wanted


def test_sizes() -> None:
    assert [align_to(value, 32) for value in (0, 1, 32, 33)] == [0, 32, 32, 64]
    assert num_elts((128, 3, 5)) == 15
    assert num_elts((128,)) == 1
    assert NUM_HW_PSUM_BANKS == nl.tile_size.psum_num_banks == 8
