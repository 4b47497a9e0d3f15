"""Numerical validation."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from vibeserve.base.errors import InputError
from vibeserve.nki import compare, stages


def test_measures_and_elements():
    expected = np.arange(12, dtype=np.float32).reshape(3, 4)
    actual = expected.copy()
    actual[1, 2] += 0.5
    actual[2, 3] += 2
    found = compare(actual, expected)
    assert not found
    assert (found.outside, found.count) == (2, 12)
    assert found.first is not None
    assert found.worst is not None
    assert found.first.index == (1, 2)
    assert found.worst.index == (2, 3)
    assert found.max_abs_diff == 2
    assert abs(found.norm_diff - np.sqrt(4.25)) < 1e-9
    assert 0.99 < found.cosine < 1
    assert "worst at (2, 3)" in str(found)


def test_tolerances_follow_the_coarser_dtype():
    expected = np.full((4,), 1.0, np.float32)
    assert compare((expected * 1.01).astype(ml_dtypes.bfloat16), expected)
    assert not compare(expected * 1.01, expected)
    assert compare(expected * 1.01, expected, rtol=0.1)


def test_special_values_and_shapes():
    a = np.array([np.nan, np.inf, -np.inf, 1], np.float32)
    assert compare(a, a)
    assert not compare(a, np.array([0, np.inf, -np.inf, 1], np.float32))
    assert "shape" in str(compare(a, a[:2]))


def test_the_first_stage_that_departs_is_named():
    good = {"qk": np.ones(4), "softmax": np.full(4, 0.25), "out": np.zeros(4)}
    bad = good | {"softmax": np.full(4, 0.5), "out": np.ones(4)}
    found = stages(bad, good)
    assert found.departs == "softmax"
    assert found.comparisons["qk"]
    assert "first stage that departs is 'softmax'" in str(found)
    assert stages(good, good).departs is None
    with pytest.raises(InputError, match="stage 'out'"):
        stages({"qk": 1, "softmax": 1}, good)
