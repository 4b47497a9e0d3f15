"""Test harnesses as other people write them: element types as NumPy's, buffers as keys, signatures, sources, targets."""

# ruff: noqa: B018, E711, UP032 (written as their authors write)

from __future__ import annotations

import concurrent.futures
import copy
import functools
import importlib
import importlib.util
import inspect
import json
import pickle
import sys
import textwrap
import typing

import ml_dtypes
import nki
import nki.isa as nisa
import nki.language as nl
import numpy as np
import pytest
from tests.nki.foreign_hosts import F32, k_copy, k_scale

ALLDT = [
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
    "float16",
    "float32",
    "bfloat16",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e5m2",
]


@pytest.mark.parametrize("name", ALLDT)
def test_np_dtype_roundtrip(name):
    dt = getattr(nl, name)
    npdt = np.dtype(dt)
    a = (np.arange(64).reshape(8, 8) % 7).astype(npdt)
    r = nki.simulate(k_copy)(a)
    assert r.dtype == npdt
    assert r.dtype == dt
    assert dt == r.dtype
    assert r.tobytes() == a.tobytes()
    assert str(npdt) == name or npdt.name == name
    assert np.dtype(str(dt)) == npdt
    assert {npdt: 1}[dt] == 1
    assert {dt: 1}[npdt] == 1
    assert npdt.type is dt.type
    assert np.empty((2,), dt).nbytes == 2 * dt.itemsize
    assert np.asarray([1, 2, 3], dtype=dt).dtype == dt
    assert np.full((2,), 1, dtype=dt).dtype == dt
    assert np.zeros_like(np.ones(3), dtype=dt).dtype == dt
    assert np.ones(3, F32).astype(dt, copy=False).dtype == dt
    assert np.frombuffer(a.tobytes(), dtype=dt).size == 64
    assert a.view(dt).dtype == dt
    assert np.can_cast(dt, dt)
    assert np.result_type(dt, dt) == npdt
    assert np.promote_types(npdt, npdt) == dt
    assert isinstance(np.dtype(dt), np.dtype)
    assert f"{dt}" == name
    assert "{}".format(dt) == name
    assert repr(dt)
    assert json.dumps(str(dt))
    assert dt.__name__ == name
    assert sorted([dt], key=str)
    assert dt in [nl.float32, nl.bfloat16, dt]
    assert dt not in ("x", None)
    assert dt != None
    assert bool(dt)
    assert copy.deepcopy({"d": dt})["d"] is dt
    assert pickle.loads(pickle.dumps((dt, nl.sbuf, nl.add, nisa.engine.vector, nisa.dge_mode.hwdge)))[0] is dt
    assert functools.lru_cache(lambda d: d)(dt) is dt


def test_finfo_iinfo():
    assert np.finfo(nl.float32).max == np.finfo(np.float32).max
    assert np.finfo(nl.float16).max == 65504
    assert ml_dtypes.finfo(nl.bfloat16).max > 3e38
    assert float(ml_dtypes.finfo(nl.float8_e4m3).max) == 240
    assert np.iinfo(nl.int8).min == -128
    assert np.issubdtype(nl.float32, np.floating)
    assert np.issubdtype(nl.int32, np.integer)
    assert not np.issubdtype(nl.uint8, np.floating)


def test_dtype_dicts_of_tolerances():
    tol = {nl.float32: 1e-5, nl.bfloat16: 1e-2, nl.float16: 1e-3, nl.float8_e4m3: 0.1}
    a = np.zeros((2, 2), nl.bfloat16)
    assert tol[a.dtype] == 1e-2
    tol2 = {np.float32: 1, ml_dtypes.bfloat16: 2}
    # NumPy scalar types hash by identity; a look-up with an nl dtype is by ==
    assert [v for k, v in tol2.items() if nl.bfloat16 == k] == [2]
    m = {np.dtype("float32"): nl.float32, np.dtype(ml_dtypes.bfloat16): nl.bfloat16}
    assert m[np.zeros(1, np.float32).dtype] is nl.float32
    assert {str(nl.bfloat16): 1}["bfloat16"] == 1
    assert getattr(nl, str(np.dtype("int8"))) is nl.int8
    assert getattr(nl, np.zeros(1, F32).dtype.name) is nl.float32


def test_np_interop_of_results():
    a = np.ones((4, 4), ml_dtypes.bfloat16)
    r = k_copy(a)
    assert isinstance(r, np.ndarray)
    np.testing.assert_allclose(r.astype(F32), np.ones((4, 4)))
    np.testing.assert_array_equal(np.asarray(r, dtype=np.float32), 1)
    assert np.allclose(r.astype(np.float64), 1)
    assert r.flags.writeable
    r[0, 0] = 5


def test_buffers():
    d = {nl.sbuf: "s", nl.psum: "p", nl.shared_hbm: "h", nl.private_hbm: "ph"}
    assert d[nl.hbm] == "ph"
    assert len(d) == 4
    assert nl.hbm == nl.private_hbm
    assert nl.hbm is nl.private_hbm
    assert True
    assert nl.sbuf in (nl.sbuf, nl.psum)
    assert nl.sbuf not in (nl.hbm, nl.shared_hbm)
    assert {nl.sbuf, nl.sbuf, nl.psum} == {nl.psum, nl.sbuf}
    assert isinstance(nl.sbuf, nl.MemoryRegion)
    assert nl.MemoryRegion.sbuf == nl.sbuf
    assert nl.sbuf.name == "sbuf"
    assert str(nl.sbuf)
    assert copy.deepcopy(nl.sbuf) is nl.sbuf
    assert pickle.loads(pickle.dumps(nl.shared_hbm)) is nl.shared_hbm
    assert nl.is_hbm(nl.hbm)
    assert nl.is_hbm(nl.shared_hbm)
    assert not nl.is_hbm(nl.sbuf)
    assert nl.is_on_chip(nl.psum)
    assert nl.is_psum(nl.psum)
    assert nl.is_sbuf(nl.sbuf)
    seen = {}

    @nki.jit
    def k(a):
        t = nl.load(a)
        seen[t.buffer] = seen.get(t.buffer, 0) + 1
        seen[a.buffer] = 1
        p = nl.ndarray((1, 1), nl.float32, nl.psum)
        seen[p.buffer] = p.buffer == nl.psum
        o = nl.ndarray(a.shape, a.dtype, buffer=nl.shared_hbm)
        seen[o.buffer] = hash(o.buffer)
        nl.store(o, t)
        return o

    k(np.ones((2, 2), F32))
    assert set(seen) == {nl.sbuf, nl.psum, nl.hbm, nl.shared_hbm}


def test_signature_name_source():
    assert list(inspect.signature(k_scale).parameters) == ["a", "factor", "bias"]
    assert inspect.signature(k_scale).parameters["factor"].default == 2.0
    assert k_scale.__name__ == "k_scale"
    assert k_scale.__doc__ == "Doc line."
    src = inspect.getsource(k_scale)
    assert "tensor_scalar" in src
    assert src.startswith("@nki.jit")
    assert inspect.getsourcelines(k_scale)[1] > 0
    assert inspect.getdoc(k_scale) == "Doc line."
    assert inspect.getmodule(k_scale) is sys.modules[k_scale.__module__]
    assert inspect.unwrap(k_scale) is k_scale.func
    assert inspect.getsourcefile(inspect.unwrap(k_scale)).endswith(".py")
    assert k_scale.func.__code__.co_varnames[0] == "a"
    assert k_scale.__code__.co_filename.endswith(".py")
    assert k_scale.__defaults__ == (2.0, 0.0)
    assert k_scale.__globals__ is k_scale.func.__globals__
    assert inspect.getfullargspec(k_scale).args == ["a", "factor", "bias"]
    assert inspect.signature(k_scale).bind(1, factor=3).arguments["factor"] == 3
    assert callable(k_scale)
    assert typing.get_type_hints(k_scale) == {"factor": float}
    w = functools.wraps(k_scale)(k_scale)
    assert w.__name__ == "k_scale"
    assert inspect.signature(nki.simulate(k_scale)).parameters.keys() == {"a", "factor", "bias"}
    assert nki.simulate(k_scale).__name__ == "k_scale"
    assert k_scale[2].__name__ == "k_scale"
    assert repr(k_scale)
    with pytest.raises(AttributeError):
        k_scale.nothing


def test_source_written_and_imported(tmp_path):
    p = tmp_path / "gen_kernel.py"
    p.write_text(
        textwrap.dedent("""
        import nki
        import nki.language as nl
        import nki.isa as nisa
        from .helpers import tile_rows
        @nki.jit
        def kern(x, n: int = 1):
            out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
            for s, e in tile_rows(x.shape[0]):
                t = nl.ndarray((e - s, x.shape[1]), dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=t, src=x[s:e])
                for _ in nl.static_range(n):
                    nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.add)
                nisa.dma_copy(dst=out[s:e], src=t)
            return out
    """)
    )
    (tmp_path / "helpers.py").write_text(
        "def tile_rows(n, t=128):\n    return [(i, min(i + t, n)) for i in range(0, n, t)]\n"
    )
    (tmp_path / "__init__.py").write_text("from .gen_kernel import kern\n")
    sys.path.insert(0, str(tmp_path.parent))
    try:
        mod = importlib.import_module(tmp_path.name)
        x = np.random.default_rng(0).standard_normal((300, 40)).astype(F32)
        np.testing.assert_array_equal(nki.simulate(mod.kern)(x, n=3), x * 8)
        assert "tile_rows" in inspect.getsource(mod.kern)
        assert mod.kern.__module__ == f"{tmp_path.name}.gen_kernel"
    finally:
        sys.path.remove(str(tmp_path.parent))


def test_exec_kernel():
    ns = {}
    exec(
        textwrap.dedent("""
        import nki, nki.language as nl, nki.isa as nisa
        @nki.jit
        def kk(x):
            t = nl.load(x)
            o = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            nl.store(o, value=nl.exp(t))
            return o
    """),
        ns,
    )
    x = np.linspace(-2, 2, 24, dtype=F32).reshape(4, 6)
    np.testing.assert_allclose(nki.simulate(ns["kk"])(x), np.exp(x), rtol=1e-6)
    with pytest.raises(OSError):
        inspect.getsource(ns["kk"])


def test_target_swap(monkeypatch):
    @nki.jit
    def gen(x):
        v = nisa.get_nc_version()
        t = nl.load(x)
        nisa.tensor_scalar(dst=t, data=t, op0=nl.multiply, operand0=0.0, op1=nl.add, operand1=float(int(v)))
        o = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        nl.store(o, t)
        return o

    x = np.ones((1, 2), F32)
    for name, want in (
        ("trn1", 2),
        ("inf2", 2),
        ("gen2", 2),
        ("trn2", 3),
        ("gen3", 3),
        ("trn3", 4),
        ("gen4", 4),
        ("trn1", 2),
    ):
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", name)
        assert gen(x)[0, 0] == want == nki.simulate(gen)(x)[0, 0]
        assert int(nisa.get_nc_version()) == want
        assert nisa.get_nc_version() == nisa.nc_version(want)
        assert nl.tile_size.sbuf_fmax_bytes == {2: 180224, 3: 212984, 4: 245752}[want]
        assert (nisa.get_nc_version() >= nisa.nc_version.gen3) == (want >= 3)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn1")
    with pytest.raises(AssertionError):
        k_scale[2](x)
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    k_scale[2](x)


@pytest.mark.parametrize(
    "deco",
    [
        nki.jit,
        nki.jit(),
        nki.jit(mode="trace"),
        nki.jit(mode="auto", debug_kernel=True),
        nki.jit(show_compiler_tb=True),
        nki.jit(experimental_flags="x"),
        lambda f: nki.jit(nki.jit(f)),
        lambda f: f,
        functools.partial,
        lambda f: nki.jit(functools.partial(f)),
    ],
)
def test_decorators(deco):
    def body(x):
        t = nl.load(x)
        o = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(o, t)
        return o

    x = np.arange(6, dtype=F32).reshape(2, 3)
    np.testing.assert_array_equal(nki.simulate(deco(body))(x), x)


def test_platform_target_refused():
    with pytest.raises(Exception, match="NEURON_PLATFORM_TARGET_OVERRIDE"):
        nki.jit(platform_target="trn2")
    with pytest.raises(Exception, match="NEURON_PLATFORM_TARGET_OVERRIDE"):

        @nki.jit(platform_target="trn1")
        def f(x):
            return x


@pytest.mark.parametrize(
    "name", ["benchmark", "profile", "baremetal", "simulate_kernel", "trace", "tensor", "cpu_simulate"]
)
def test_legacy_top(name):
    with pytest.raises(AttributeError, match="gone"):
        getattr(nki, name)
    assert not hasattr(nki, name)


@pytest.mark.parametrize("name", ["arange", "mgrid", "par_dim", "spmd_dim", "nc", "loop_reduce", "static_cast", "fp32"])
def test_legacy_nl(name):
    with pytest.raises(AttributeError, match="gone"):
        getattr(nl, name)


@pytest.mark.parametrize(
    ("body", "frag"),
    [
        (lambda x: nl.load(x[nl.arange(4)[:, None], nl.arange(4)[None, :]]), "slices"),
        (lambda x: nl.load(x, mask=None), "slice"),
        (lambda x: nl.mgrid[0:4, 0:4], "slices"),
        (lambda x: nl.zeros((nl.par_dim(4), 4), dtype=nl.float32), "dimension 0"),
        (lambda x: nl.ndarray((4, 4), np.float32, buffer="sbuf"), "nl.sbuf"),
        (lambda x: nisa.activation(op=np.exp, data=nl.load(x)), "dst"),
        (lambda x: nisa.activation(dst=nl.load(x), op=np.exp, data=nl.load(x)), "nl.exp"),
        (
            lambda x: nisa.tensor_reduce(dst=nl.ndarray((4, 1), nl.float32), op=nl.max, data=nl.load(x), axis=1),
            "maximum",
        ),
        (
            lambda x: nisa.tensor_reduce(dst=nl.ndarray((4, 1), nl.float32), op=np.add, data=nl.load(x), axis=1),
            "nl.add",
        ),
        (lambda x: nisa.tensor_copy(nl.load(x), nl.load(x), dtype=nl.float32), "dst"),
        (
            lambda x: nisa.nc_matmul(
                nl.ndarray((4, 4), nl.float32, nl.psum), nl.load(x), nl.load(x), psumAccumulateFlag=1
            ),
            "accumulate",
        ),
        (lambda x: nl.load(x) + nl.load(x), "nl.add"),
        (lambda x: nl.load(x) * 2.0, "tensor_scalar"),
        (lambda x: -nl.load(x), "nl"),
        (lambda x: nisa.tensor_copy(nl.load(x), nl.load(x), engin=1), "engine"),
        (lambda x: nisa.memset((4, 4), 0), "tensor"),
    ],
)
def test_old_idioms_are_refused_with_the_replacement(body, frag):
    with pytest.raises((AssertionError, AttributeError), match="(?s)" + frag):
        nki.simulate(body)(np.ones((4, 4), F32))


def test_threads():
    x = np.arange(32, dtype=F32).reshape(4, 8)
    with concurrent.futures.ThreadPoolExecutor(4) as ex:
        out = list(ex.map(lambda i: k_scale(x, float(i)), range(16)))
    for i, o in enumerate(out):
        np.testing.assert_array_equal(o, x * i)
