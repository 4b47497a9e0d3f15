"""What a kernel, an operator and an element type are to the code around them: names, signatures, hashes, pickles, NumPy."""

from __future__ import annotations

import copy
import functools
import inspect
import pickle

import numpy as np
import pytest

import vibeserve.nki.isa as nisa
import vibeserve.nki.language as nl
from vibeserve.nki import KernelError, dtypes, jit, simulate
from vibeserve.nki.kernel import Kernel
from vibeserve.nki.ops import OPS


@jit
def scaled(x, factor=2.0):
    """x times a factor."""
    tile = nl.load(x)
    nisa.tensor_scalar(tile, tile, op0=nl.multiply, operand0=factor)
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    nl.store(out, tile)
    return out


def plain(x, factor):
    return scaled(x, factor)


class Scaler:
    """A kernel as an object."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return scaled(x, self.factor)


X = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize(
    "made",
    [
        lambda: jit(functools.partial(plain, factor=3.0)),
        lambda: simulate(functools.partial(plain, factor=3.0)),
        lambda: jit(functools.partial(functools.partial(plain), factor=3.0)),
        lambda: functools.partial(jit(plain), factor=3.0),
        lambda: simulate(functools.partial(scaled, factor=3.0)),
        lambda: jit(Scaler(3.0)),
        lambda: simulate(Scaler(3.0)),
        lambda: jit(mode="trace", debug_kernel=True, show_compiler_tb=True, experimental_flags="a")(Scaler(3.0)),
    ],
)
def test_what_can_be_called_can_be_a_kernel(made):
    np.testing.assert_array_equal(made()(X), X * 3)


def test_errors_of_a_partial_name_its_function():
    with pytest.raises(KernelError, match="plain"):
        jit(functools.partial(plain, factor=3.0))(X, X, X)
    assert jit(functools.partial(plain, factor=1)).__name__ == "plain"
    assert repr(jit(Scaler(1))) == "<nki kernel Scaler>"


def test_a_kernel_keeps_the_face_of_its_function():
    assert (scaled.__name__, scaled.__qualname__, scaled.__module__) == ("scaled", "scaled", __name__)
    assert scaled.__doc__ == "x times a factor."
    assert str(inspect.signature(scaled)) == "(x, factor=2.0)"
    assert "operand0=factor" in inspect.getsource(scaled)
    assert inspect.unwrap(scaled) is scaled.func is scaled.__wrapped__
    assert str(inspect.signature(simulate(scaled))) == "(x, factor=2.0)"
    assert repr(scaled) == "<nki kernel scaled>"
    assert repr(scaled[2]) == "<nki kernel scaled[2]>"


@pytest.mark.parametrize("kernel", [scaled, scaled[2], scaled[1, 2]])
def test_kernels_are_pickled_by_name_and_compared(kernel):
    again = pickle.loads(pickle.dumps(kernel))
    assert isinstance(again, Kernel)
    assert again == kernel
    assert hash(again) == hash(kernel)
    assert again.func is scaled.func
    assert again.grid == kernel.grid
    assert {kernel: 1}[again] == 1
    assert copy.copy(kernel) is kernel
    assert copy.deepcopy({"k": kernel})["k"] == kernel
    assert (kernel == scaled) is (kernel.grid is None)
    assert kernel != plain


def test_a_kernel_made_of_a_plain_function_is_pickled_with_it():
    again = pickle.loads(pickle.dumps(jit(plain)))
    np.testing.assert_array_equal(again(X, 2.0), X * 2)


def test_jit_refuses_options_that_never_were():
    for call in (lambda: jit(foo=1), lambda: jit(plain, foo=1)):
        with pytest.raises(KernelError, match="foo") as caught:
            call()
        assert caught.value.code == "B2-UNKNOWN-KW"
    with pytest.raises(KernelError, match="debug_kernel="):
        jit(debug_kernl=True)
    with pytest.raises(KernelError, match="NEURON_PLATFORM_TARGET_OVERRIDE=trn1"):
        jit(platform_target="trn1")
    with pytest.raises(KernelError, match="3"):
        jit(3)


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.call is not None], ids=repr)
def test_operators_show_their_parameters(op):
    names = list(inspect.signature(op).parameters)
    two = op.kind in ("arith", "compare", "bit") or op.name in ("divide", "mod", "fmod")
    expected = (
        ["x", "axis", "dtype", "keepdims"]
        if op.name in ("max", "min")
        else ["x", "y", "dtype"]
        if two
        else ["x", "dtype"]
    )
    assert names == expected
    assert op.__doc__
    assert pickle.loads(pickle.dumps(op)) is op


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=str)
def test_element_types_and_numpy_agree_in_both_directions(dtype):
    made = np.dtype(dtype)
    assert (dtype == made) is (made == dtype) is True
    assert hash(dtype) == hash(made)
    assert {made: 1}[dtype] == 1
    assert dtype in {dtype}
    assert str(dtype) == repr(dtype) == dtype.__name__ == dtype.name
    assert made.itemsize == dtype.itemsize
    for shape in ((), (2, 3)):
        array = np.zeros(shape, dtype=dtype)
        assert array.dtype == dtype
        assert array.dtype == made
        assert (array + np.ones(shape, dtype)).astype(dtype).dtype == dtype
    assert np.ones(3, np.float32).astype(dtype).dtype == made
    assert pickle.loads(pickle.dumps(dtype)) is copy.deepcopy(dtype) is dtype
    others = [other for other in dtypes.ALL if other is not dtype]
    assert all(dtype != other for other in others)
    for other in others:
        kind = np.dtype(other)
        assert (dtype == kind) is (kind == dtype)
        assert (dtype == kind.type) is (kind == dtype)
    assert dtype != "nothing"
    assert dtype is not None
    assert (dtype == None) is False  # noqa: E711 (kernels write it so)
    for kind in (np.floating, np.generic, object, dict, int):
        assert dtype != kind


def test_bool_arguments_and_results_are_bool():
    def kernel(x):
        tile = nl.load(x)
        assert tile.dtype == nl.bool_
        out = nl.ndarray(x.shape, dtype=nl.bool_, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    flags = np.array([[True, False, True]])
    got = simulate(kernel)(flags)
    assert got.dtype == np.bool_
    np.testing.assert_array_equal(got, flags)


class Kernels:
    """Kernels as members of a class."""

    factor = 3.0

    @jit
    def bound(self, x):
        return scaled(x, self.factor)

    @staticmethod
    @jit
    def inner(x):
        return scaled(x, 3.0)

    @jit
    @staticmethod
    def outer(x):
        return scaled(x, 3.0)

    def method(self, x):
        return scaled(x, self.factor)


def test_kernels_as_members_of_a_class():
    held = Kernels()
    for kernel in (held.bound, held.inner, held.outer, Kernels.outer, jit(held.method), simulate(held.method)):
        np.testing.assert_array_equal(kernel(X), X * 3)
    assert jit(held.method).__name__ == "method"
    assert Kernels.outer.__name__ == "outer"


def test_arrays_held_by_a_partial_are_arguments():
    def total(x, y, n=1):
        tile = nl.load(x)
        nisa.tensor_tensor(tile, tile, nl.load(y), nl.add)
        out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nl.store(out, tile)
        return out

    np.testing.assert_array_equal(jit(functools.partial(total, y=X))(X), 2 * X)
    np.testing.assert_array_equal(jit(functools.partial(total, X))[1](X, n=3), 2 * X)
    np.testing.assert_array_equal(jit(functools.partial(total, X, X))(), 2 * X)


@pytest.mark.parametrize("body", [lambda x: int("q"), lambda x: plain(1), lambda x: x.nothing, lambda x: {}["k"]])
def test_errors_of_the_kernel_itself_stay_what_they_are(body):
    with pytest.raises((ValueError, TypeError, AttributeError, KeyError)) as caught:
        simulate(body)(X)
    assert not isinstance(caught.value, KernelError)


@pytest.mark.parametrize(
    "made", [scaled, scaled[2], simulate(scaled), jit(functools.partial(plain, factor=3.0)), jit(mode="trace")(plain)]
)
def test_source_and_file_are_the_functions(made):
    function = made.__wrapped__
    assert inspect.getsourcefile(made) == inspect.getfile(made) == __file__
    assert inspect.getsource(made) == inspect.getsource(function)
    assert inspect.getsourcelines(made) == inspect.getsourcelines(function)
    assert inspect.getmodule(made).__name__ == __name__
    assert inspect.unwrap(made) is function
    assert inspect.isfunction(made)
    assert inspect.isroutine(made)
    assert inspect.getclosurevars(made).globals == inspect.getclosurevars(function).globals

    @functools.wraps(made)
    def outer(*args):
        return made(*args)

    assert inspect.unwrap(outer) is function
    assert inspect.signature(outer) == inspect.signature(made)
    assert not inspect.isfunction(jit(Scaler(3.0)))


def test_a_partials_kernel_has_its_signature_and_pickles():
    made = jit(functools.partial(scaled.func, factor=3.0))
    assert inspect.getfullargspec(made).kwonlydefaults == {"factor": 3.0}
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again(X), 3 * X)
    run = pickle.loads(pickle.dumps(simulate(scaled, target="trn3")))
    np.testing.assert_array_equal(run(X), 2 * X)
    assert run.options["target"] == "trn3"
