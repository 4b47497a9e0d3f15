"""Arguments, results, torch tensors, grids, messages and classes as other people's harnesses have them."""

# ruff: noqa: B017, PLW1510, PT018 (written as their authors write)

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import itertools
import os
import pickle
import subprocess
import sys
import textwrap
import typing

import nki
import nki.isa as nisa
import nki.language as nl
import nki.typing as nt
import numpy as np
import pytest
from tests.nki.foreign_hosts import F32, k_copy, k_scale


def test_args_kinds():
    class Cfg(nl.NKIObject):
        a: int
        b: float = 1.5
        dt: object = nl.float32

    @dataclasses.dataclass
    class DC(nl.NKIObject):
        w: object
        act: object = nl.silu
        dims: tuple = (1, 2)
        extra: list = dataclasses.field(default_factory=list)

    @dataclasses.dataclass(frozen=True)
    class FZ:
        w: object
        n: int = 3

    class E(enum.Enum):
        A = 0
        B = 1

    NT = collections.namedtuple("NT", "w b")

    @nki.jit
    def k(x, cfg, dc, fz, e, nt_, pair, d, dtype, op, s, flag, none=None, *rest, **kw):
        assert cfg.a == 4
        assert cfg.b == 1.5
        assert cfg.dt == nl.float32
        assert dc.act is nl.silu
        assert dc.dims == (1, 2)
        assert dc.extra == []
        assert fz.n == 3
        assert e == E.B
        assert e != E.A
        assert flag is True
        assert none is None
        assert s == "mode"
        assert dtype == nl.bfloat16
        assert op == nl.add
        acc = nl.load(x)
        for w in (dc.w, fz.w, nt_.w, nt_.b, pair[0], pair[1][0], d["w"], *rest, *kw.values()):
            nisa.tensor_tensor(dst=acc, data1=acc, data2=nl.load(w), op=op)
        o = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(o, acc)
        return o

    def one():
        return np.ones((2, 2), F32)

    r = k(
        one(),
        Cfg(a=4),
        DC(one()),
        FZ(one()),
        E.B,
        NT(one(), one()),
        (one(), (one(),)),
        {"w": one()},
        nl.bfloat16,
        nl.add,
        "mode",
        True,
        None,
        one(),
        one(),
        extra=one(),
    )
    np.testing.assert_array_equal(r, 11)


def test_returns():
    @dataclasses.dataclass
    class Out:
        y: object
        n: int

    NT = collections.namedtuple("NT", "y z")

    class NO(nl.NKIObject):
        y: object
        z: object = None

    def mk(x, f):
        o = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(o, nl.load(x))
        return f(o)

    x = np.ones((2, 3), F32)
    assert nki.simulate(lambda x: None)(x) is None
    r = nki.simulate(lambda x: mk(x, lambda o: (o, 3, "s", None)))(x)
    assert isinstance(r, tuple)
    assert r[1:] == (3, "s", None)
    r = nki.simulate(lambda x: mk(x, lambda o: [o, [o]]))(x)
    assert isinstance(r, list)
    assert (r[1][0] == 1).all()
    r = nki.simulate(lambda x: mk(x, lambda o: {"y": o, "n": {"z": o}}))(x)
    assert (r["n"]["z"] == 1).all()
    r = nki.simulate(lambda x: mk(x, lambda o: NT(o, o)))(x)
    assert isinstance(r, NT)
    assert isinstance(r.z, np.ndarray)
    r = nki.simulate(lambda x: mk(x, lambda o: Out(o, 3)))(x)
    assert isinstance(r, Out)
    assert isinstance(r.y, np.ndarray)
    assert r.n == 3
    r = nki.simulate(lambda x: mk(x, NO))(x)
    assert isinstance(r.y, np.ndarray)
    r = nki.simulate(lambda x: mk(x, lambda o: o.reshape((3, 2))))(x)
    assert r.shape == (3, 2)
    r = nki.simulate(lambda x: mk(x, lambda o: o[0:1]))(x)
    assert r.shape == (1, 3)
    r = nki.simulate(lambda x: x)(x)
    assert r is x
    with pytest.raises(AssertionError, match="shared_hbm"):
        nki.simulate(nl.load)(x)


def test_annotations():
    ns = {"nt": nt, "nl": nl, "typing": typing, "nki": nki}
    exec(
        textwrap.dedent("""
        import nki.isa as nisa
        @nki.jit
        def k(x: nt.tensor[2, 3], y: nt.tensor | None = None, z: typing.Optional[nt.tensor] = None, w: nt.mutable_tensor = None,
              dt: nl.DType = nl.float32, ts: typing.Tuple[nt.tensor, nt.tensor] = None, u: typing.Union[nt.tensor, float] = 1.0,
              v: "nl.NkiTensor | None" = None, q: list[nt.tensor] = (), b: None | nt.tensor = None) -> nt.tensor[2, 3]:
            o = nl.ndarray(x.shape, dt, buffer=nl.shared_hbm)
            nl.store(o, nl.load(x))
            return o
    """),
        ns,
    )
    np.testing.assert_array_equal(ns["k"](np.ones((2, 3), F32)), 1)


def test_torch_kinds():
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 6)
    for dt in (
        torch.float32,
        torch.bfloat16,
        torch.float16,
        torch.int32,
        torch.int8,
        torch.uint8,
        torch.int16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.bool,
    ):
        a = (x * 3).to(dt)
        r = nki.simulate(k_copy)(a)
        assert r.dtype == dt
        assert r.shape == a.shape
        assert torch.equal(r.to(torch.float32), a.to(torch.float32))
    p = torch.nn.Parameter(torch.ones(2, 3))
    assert torch.equal(k_copy(p), torch.ones(2, 3))
    bt = torch.arange(12).reshape(3, 4).to(torch.bfloat16).T
    assert torch.equal(k_copy(bt), bt)

    @nki.jit
    def inplace(a):
        t = nl.load(a)
        nisa.tensor_scalar(t, t, nl.add, 1.0)
        nisa.dma_copy(dst=a, src=t)
        return a

    for dt in (torch.float32, torch.bfloat16, torch.float8_e5m2):
        for a in (torch.zeros(3, 4).to(dt), torch.zeros(4, 3).to(dt).T, torch.zeros(6, 8).to(dt)[::2, ::2]):
            r = inplace(a)
            assert (a.to(torch.float32) == 1).all(), (dt, a.stride())
            assert r is a
    with pytest.raises(AssertionError, match="int32"):
        k_copy(torch.zeros(2, 2, dtype=torch.int64))
    with pytest.raises(AssertionError, match="float32"):
        k_copy(np.zeros((2, 2)))
    assert torch.equal(k_scale(torch.ones(2, 2), torch.tensor(3.0)), torch.full((2, 2), 3.0))


def test_mixed_np_shapes():
    for shape in [(1, 1), (7,), (128,), (3, 5), (129, 2), (2, 3, 4), (1, 128, 2, 2)]:
        x = np.random.default_rng(1).standard_normal(shape).astype(F32)

        @nki.jit
        def k(x):
            o = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
            nisa.dma_copy(dst=o, src=x)
            return o

        np.testing.assert_array_equal(k(x), x)


def test_parametrised_grid_and_lnc(monkeypatch):
    @nki.jit
    def k(x):
        n, i = nl.num_programs(0), nl.program_id(0)
        rows = x.shape[0] // n
        o = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        t = nl.ndarray((rows, x.shape[1]), x.dtype, nl.sbuf)
        nisa.dma_copy(dst=t, src=x[nl.ds(i * rows, rows), :])
        nisa.tensor_scalar(dst=t, data=t, op0=nl.add, operand0=float(i + 10 * n + 100 * nl.program_ndim()))
        nisa.dma_copy(dst=o[nl.ds(i * rows, rows), :], src=t)
        return o

    x = np.zeros((8, 2), F32)
    assert (k(x) == 10).all()
    assert (k[1](x) == 110).all()
    assert (k[2](x) == np.repeat([120, 121], 4)[:, None]).all()
    assert (k[(2,)](x) == np.repeat([120, 121], 4)[:, None]).all()
    assert (nki.simulate(k[2])(x) == np.repeat([120, 121], 4)[:, None]).all()
    grid = (2,)
    assert (nki.simulate(k)[grid](x) == np.repeat([120, 121], 4)[:, None]).all()
    monkeypatch.setenv("NEURON_LOGICAL_NC_CONFIG", "2")
    assert (k(x) == np.repeat([120, 121], 4)[:, None]).all()
    for bad in (0, 3, -1, "2", 2.0, (2, 2), None):
        with pytest.raises(AssertionError):
            k[bad](x)


def test_print_and_device_print(capsys):
    @nki.jit
    def k(x):
        t = nl.load(x)
        print("shape", t.shape, t.dtype, t, f"{t.dtype} {t.buffer}")
        nl.device_print("val", t)
        nl.device_print(print_prefix="kw", tensor=t)
        o = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(o, t)
        return o

    k(np.full((2, 2), 3, F32))
    out = capsys.readouterr().out
    assert "val" in out
    assert "3." in out
    assert "kw" in out


def test_errors_are_of_the_vendor_kinds():
    def k(x):
        t = nl.ndarray((130, 4), nl.float32, nl.sbuf)
        nisa.memset(dst=t, value=0.0)

    with pytest.raises(nisa.NkiValidationError, match="partition dimension 130 exceeds maximum 128"):
        nki.simulate(k)(np.ones(1, F32))
    with pytest.raises(AssertionError):
        nki.simulate(k)(np.ones(1, F32))
    with pytest.raises(Exception):
        nki.jit(k)(np.ones(1, F32))


def test_kernel_in_class_and_static():
    class Mod:
        scale = 3.0

        @staticmethod
        @nki.jit
        def s(x):
            return helper(x, 3.0)

        @nki.jit
        def m(self, x):
            return helper(x, self.scale)

        @classmethod
        def c(cls, x):
            return nki.jit(functools.partial(helper, f=cls.scale))(x)

        def __init__(self):
            self.k = nki.jit(self.body)

        def body(self, x, extra=None):
            return helper(x, self.scale)

        @functools.cached_property
        def lazy(self):
            return nki.jit(self.body)

    def helper(x, f):
        t = nl.load(x)
        nisa.tensor_scalar(t, t, nl.multiply, f)
        o = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
        nl.store(o, t)
        return o

    x = np.ones((2, 2), F32)
    m = Mod()
    for call in (Mod.s, m.s, m.m, Mod.c, m.c, m.k, m.lazy, nki.simulate(m.body), m.k[2], nki.simulate(m.k)):
        np.testing.assert_array_equal(call(x), 3 * x)


def test_closure_factories():
    def make(op, rev, dtype=nl.float32):
        @nki.jit
        def k(x):
            t = nl.load(x, dtype=dtype)
            nisa.tensor_scalar(dst=t, data=t, op0=op, operand0=2.0, reverse0=rev)
            o = nl.ndarray(x.shape, dtype, nl.shared_hbm)
            nl.store(o, t)
            return o

        k.__name__ = f"k_{op.name}_{rev}"
        return k

    x = np.arange(1, 7, dtype=F32).reshape(2, 3)
    for op, f in (
        (nl.add, np.add),
        (nl.subtract, np.subtract),
        (nl.multiply, np.multiply),
        (nl.maximum, np.maximum),
        (nl.minimum, np.minimum),
        (nl.greater, np.greater),
    ):
        for rev in (False, True):
            want = f(2.0, x) if rev else f(x, 2.0)
            np.testing.assert_array_equal(make(op, rev)(x), want.astype(F32))
            assert make(op, rev).__name__ == f"k_{op.name}_{rev}"


def test_ops_as_values():
    table = {"relu": nl.relu, "silu": nl.silu, "gelu": nl.gelu}
    assert {nl.add: 1}[nl.add] == 1
    assert nl.add.__name__ == "add"
    assert table["relu"] == nl.relu
    assert nl.relu != nl.silu
    assert nl.add in (nl.add, nl.multiply)
    assert str(nl.add)
    assert isinstance(nisa.engine.vector, enum.Enum)
    assert nisa.vector_engine is nisa.engine.vector
    assert next(iter(nisa.engine)) == nisa.engine.unknown
    assert nisa.dge_mode.none.value == 3
    assert nisa.dge_mode(2) is nisa.dge_mode.hwdge
    assert nisa.constants.oob_mode.skip is nisa.oob_mode.skip
    assert nisa.reduce_cmd["reset_reduce"].value == 3
    assert nisa.matmul_perf_mode.double_row.value == "double_row"
    for e in (nisa.engine, nisa.dge_mode, nisa.oob_mode, nisa.reduce_cmd, nisa.nc_version, nisa.dma_engine):
        for m in e:
            assert pickle.loads(pickle.dumps(m)) is m
            assert hash(m) is not None


@pytest.mark.parametrize(("n", "f"), list(itertools.product([1, 2, 127, 128, 129, 300], [1, 3, 512, 513])))
def test_remainders(n, f):
    x = np.random.default_rng(n * 1000 + f).standard_normal((n, f)).astype(F32)

    @nki.jit
    def k(x):
        N, F = x.shape
        o = nl.ndarray((N, F), dtype=x.dtype, buffer=nl.shared_hbm)
        P, T = nl.tile_size.pmax, 512
        for i in nl.affine_range((N + P - 1) // P):
            p = min(P, N - i * P)
            for j in nl.sequential_range(-(-F // T)):
                w = min(T, F - j * T)
                t = nl.ndarray((P, T), dtype=x.dtype, buffer=nl.sbuf)
                nisa.dma_copy(dst=t[0:p, 0:w], src=x[i * P : i * P + p, j * T : j * T + w])
                nisa.activation(dst=t[:p, :w], op=nl.square, data=t[:p, :w])
                nisa.dma_copy(dst=o[nl.ds(i * P, p), nl.ds(j * T, w)], src=t[:p, :w])
        return o

    s = nki.simulate(k)
    np.testing.assert_array_equal(s(x), x * x)


def test_env_simulator_subprocess(tmp_path):
    s = tmp_path / "run.py"
    s.write_text(
        textwrap.dedent("""
        import numpy as np, nki, nki.language as nl, nki.isa as nisa, inspect
        @nki.jit
        def k(x):
            t = nl.load(x); o = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm); nl.store(o, t); return o
        if __name__ == "__main__":
            r = k(np.ones((2, 2), np.float32)); print(r.sum(), inspect.getsource(k).count("nl."))
    """)
    )
    r = subprocess.run(
        [sys.executable, str(s)], env={**os.environ, "NKI_SIMULATOR": "1"}, capture_output=True, text=True
    )
    assert r.returncode == 0 and r.stdout.split()[0] == "4.0", r.stderr


def test_write_to_views_and_overlap():
    base = np.zeros((6, 4), F32)

    @nki.jit
    def k(x, y):
        t = nl.load(y)
        nisa.tensor_scalar(t, t, nl.add, 1.0)
        nisa.dma_copy(dst=x, src=t)

    k(base[2:4], base[0:2])
    assert base.sum() == 8
    assert (base[2:4] == 1).all()
    ro = np.ones((2, 2), F32)
    ro.flags.writeable = False
    np.testing.assert_array_equal(k_copy(ro), ro)
    f = np.asfortranarray(np.arange(6, dtype=F32).reshape(2, 3))
    np.testing.assert_array_equal(k_copy(f), f)
    np.testing.assert_array_equal(
        k_copy(np.arange(12, dtype=F32).reshape(3, 4)[::-1, ::2]), np.arange(12, dtype=F32).reshape(3, 4)[::-1, ::2]
    )
