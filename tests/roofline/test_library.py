"""Every operation of the library against a count made here by hand, with sizes that are not the file's own."""

from fractions import Fraction

import pytest

from vibeserve.base.paths import packaged
from vibeserve.roofline import analyze, load

# operation, sizes, target, lnc, and for each variant (FLOPs, bytes), written out in those sizes.
CASES = []


def case(op, target, lnc, expect, **sizes):
    CASES.append(pytest.param(op, sizes, target, lnc, expect, id=op))


R, D, F = 64, 96, 160
case(
    "vjepa2-mlp", "trn2", 1,
    {"fused": (4 * R * D * F, 2 * (2 * R * D + 2 * D * F)), "unfused": (4 * R * D * F, 2 * (2 * R * D + 2 * D * F + 4 * R * F))},
    R=R, D=D, F=F,
)  # fmt: skip
case(
    "gated-mlp", "trn2", 2,
    {
        "fused": (6 * R * D * F, 2 * (2 * R * D + 2 * 3 * D * F)),
        "two-kernels": (6 * R * D * F, 2 * (2 * R * D + 2 * 3 * D * F + 2 * R * F)),
        "unfused": (6 * R * D * F, 2 * (3 * R * D + 2 * 3 * D * F + 6 * R * F)),
    },
    R=R, D=D, F=F,
)  # fmt: skip
M, K, N, T = 64, 32, 48, 16
case(
    "matmul", "trn2", 1,
    {
        "ideal": (2 * M * K * N, 2 * (M * K + K * N + M * N)),
        "blocked": (2 * M * K * N, 2 * (M * K + K * N * M // T + M * N)),
    },
    M=M, K=K, N=N, T=T,
)  # fmt: skip
B, N, G, S, H = 2, 4, 3, 32, 16
pairs = B * N * G * S * (S + 1) // 2
case(
    "attention-prefill", "trn2", 2,
    {
        "flash": (4 * pairs * H, 2 * (2 * B * N * G * S * H + 2 * B * N * S * H)),
        "naive": (4 * pairs * H, 2 * (2 * B * N * G * S * H + 2 * B * N * S * H) + 2 * (4 + 2) * B * N * G * S * S),
    },
    B=B, N=N, G=G, S=S, H=H,
)  # fmt: skip
T = 64
case(
    "attention-decode", "trn2", 2,
    {
        "grouped": (4 * B * N * G * T * H, 2 * (2 * B * N * G * H + 2 * B * N * T * H)),
        "per-head": (4 * B * N * G * T * H, 2 * (2 * B * N * G * H + 2 * G * B * N * T * H)),
    },
    B=B, N=N, G=G, T=T, H=H,
)  # fmt: skip
N, S, H, L = 4, 64, 16, 16
case(
    "flash-attention", "trn2", 2,
    {
        "flash": (4 * N * S * S * H, 2 * (2 * N * S * H + 2 * (S // L) * N * S * H)),
        "naive": (4 * N * S * S * H, 2 * 4 * N * S * H + 2 * (4 + 2) * N * S * S),
    },
    N=N, S=S, H=H, L=L,
)  # fmt: skip
case(
    "rmsnorm", "trn2", 2,
    {
        "fused": (4 * R * D, 2 * (2 * R * D + 2 * D)),
        "two-passes": (4 * R * D, 2 * (3 * R * D + 2 * D) + 2 * 4 * R),
    },
    R=R, D=D,
)  # fmt: skip
C = 40
case(
    "softmax", "trn2", 2,
    {"fused": (5 * R * C, 4 * 2 * R * C), "unfused": (5 * R * C, 4 * (3 * R * C + 3 * R * C + 4 * R))},
    R=R, C=C,
)  # fmt: skip
E, K = 4, 2
A, C = 4, R * K // 4
moe = 2 * R * D * E + 6 * A * C * D * F
case(
    "moe", "trn2", 1,
    {
        "fused": (moe, 2 * (2 * R * D + D * E + 3 * A * D * F)),
        "grouped": (
            moe,
            2 * (3 * R * D + D * E + 3 * A * D * F + 2 * A * C * D + 2 * A * C * D + 2 * A * C * F) + 4 * 3 * R * E,
        ),
    },
    R=R, D=D, F=F, E=E, K=K,
)  # fmt: skip
N, C, K, H, V = 2, 8, 6, 10, 12
y, win = N * K * H * V, C * 9
case(
    "conv2d", "h100", None,
    {
        "direct": (2 * y * win, 2 * (N * C * H * V + K * win + y)),
        "unfolded": (2 * y * win, 2 * (N * C * H * V + K * win + y + 2 * N * H * V * win)),
    },
    N=N, C=C, K=K, H=H, V=V,
)  # fmt: skip
B, L, D, N = 2, 32, 24, 4
state = B * L * D * N
case(
    "mamba-scan", "trn2", 1,
    {
        "fused": (8 * state, 4 * (3 * B * L * D + 2 * B * L * N + D * N)),
        "unfused": (8 * state, 4 * (4 * B * L * D + 2 * B * L * N + D * N + 6 * state)),
    },
    B=B, L=L, D=D, N=N,
)  # fmt: skip
R, D, O, K = 64, 96, 80, 8
lora = 2 * R * D * O + 2 * R * D * K + 2 * R * K * O
case(
    "lora", "trn2", 1,
    {
        "fused": (lora, 2 * (R * D + D * O + D * K + K * O + R * O)),
        "separate": (lora, 2 * (2 * R * D + D * O + D * K + K * O + 2 * R * K + 4 * R * O + R * O)),
        "merged": (2 * R * D * O, 2 * (R * D + D * O + R * O)),
    },
    R=R, D=D, O=O, K=K,
)  # fmt: skip
R, D, F = 8, 256, 96
work = 2 * R * D * F
case(
    "quantized-linear", "h100", None,
    {
        "bf16": (work, 2 * (R * D + D * F + R * F)),
        "int8": (work, 2 * (R * D + R * F + F) + D * F),
        "int4": (work, 2 * (R * D + R * F + 2 * F) + D * F // 2),
        "fp8": (work, R * D + D * F + 2 * (R * F + F)),
    },
    R=R, D=D, F=F,
)  # fmt: skip
B, T, D, N, G, H, F = 2, 16, 32, 2, 2, 8, 48
weights = D * N * G * H * 2 + 2 * D * N * H + 3 * D * F
layer = 2 * B * weights + 4 * B * N * G * T * H
floor = 2 * (2 * B * D + weights + 2 * D + 2 * B * N * T * H + 2 * B * N * H)
case(
    "llama-decode-layer", "h100", None,
    {
        "ideal": (layer, floor),
        "fused": (layer, floor + 2 * (2 * B * N * G * H + 2 * B * N * G * H + 4 * B * D + 2 * B * F)),
        "eager": (
            layer,
            floor
            + 2 * (4 * B * D + 1 * B * D)  # n1: written, read three times; x read once more
            + 2 * (4 * B * N * G * H + 2 * B * N * H)  # q0, q; k0
            + (2 * 4 + 2 * 2) * B * N * G * T  # s in float32, p
            + 2 * (2 * B * N * G * H + 2 * B * D + 3 * B * D + 3 * B * D)  # a, o, r, n2
            + 2 * (6 * B * F + 2 * B * D),  # g, u, h; m
        ),
    },
    B=B, T=T, D=D, N=N, G=G, H=H, F=F,
)  # fmt: skip


@pytest.mark.parametrize(("op", "sizes", "target", "lnc", "expect"), CASES)
def test_counts_by_hand(op, sizes, target, lnc, expect):
    found = analyze(op, sizes=sizes, target=target, lnc=lnc)
    counted = {one.name: (one.bounds.work, one.bounds.bytes) for one in found.variants}
    assert counted == expect


def test_every_operation_has_a_hand_count():
    files = {path.stem for path in (packaged("examples") / "roofline").glob("*.toml")}
    assert files == {str(parameter.values[0]) for parameter in CASES}


@pytest.mark.parametrize("path", sorted((packaged("examples") / "roofline").glob("*.toml")), ids=lambda path: path.stem)
def test_every_operation_runs_as_it_stands(path):
    op = load(path)
    assert op.about
    found = analyze(op)
    for variant in found.variants:
        assert variant.about
        assert variant.bounds.t_lower <= variant.bounds.t_upper
        assert variant.changes
    if found.machine.lnc:
        assert analyze(op, lnc=2).variants


def test_transposes_by_matmul_are_counted_apart():
    found = analyze("flash-attention", sizes={"S": 256, "N": 4, "L": 64}).variant("flash")
    elements = 4 * 256 * 256
    assert found.numbers.transpose_flops == elements * 2 * 128
    assert found.bounds.work == 4 * elements * 128
    titles = {step.title: step for step in found.steps}
    assert titles["FLOPs that only move data"].value == elements * 2 * 128
    # A GPU has no matmul array that transposes through an identity.
    assert analyze("flash-attention", target="h100").variant("flash").numbers.transpose_flops == 0


def test_grouped_decode_uses_each_cached_byte_g_times():
    found = analyze("attention-decode", sizes={"T": 10**6})
    assert float(found.variant("grouped").bounds.intensity) == pytest.approx(4, rel=1e-3)
    assert float(found.variant("per-head").bounds.intensity) == pytest.approx(1, rel=1e-3)


def test_a_mixture_of_experts_reads_only_active_experts():
    one = analyze("moe", sizes={"R": 1}, lnc=1)
    assert (one.sizes["A"], one.sizes["C"]) == (2, 1)
    many = analyze("moe", sizes={"R": 8192}, lnc=1)
    assert (many.sizes["A"], many.sizes["C"]) == (8, 2048)
    weights = {tensor["name"]: tensor for tensor in one.variants[0].document()["tensors"]}
    assert weights["Wg"]["bytes"] == 2 * 2 * 4096 * 14336


def test_fp8_has_its_own_peak():
    found = analyze("quantized-linear")
    peaks = {one.name: one.bounds.peak for one in found.variants}
    assert peaks["fp8"] == Fraction(1978.9e12)
    assert peaks["int4"] == peaks["bf16"] == Fraction(989.4e12)


def test_several_data_types_make_a_mixed_peak():
    from vibeserve.roofline import operation

    op = operation(
        name="two",
        dims={"M": 64, "K": 32, "N": 16},
        tensors={"a": "M K", "b": "K N", "c": "M N", "d": "N K", "e": "M K"},
        stages=[
            {"name": "low", "contract": "a[M K], b[K N] -> c[M N]"},
            {"name": "high", "contract": "c[M N], d[N K] -> e[M K]", "dtype": "float32"},
        ],
    )
    found = analyze(op, target="h100").variants[0].bounds
    expect = found.work / (Fraction(found.work, 2) / Fraction(989.4e12) + Fraction(found.work, 2) / Fraction(66.9e12))
    assert found.peak == expect
