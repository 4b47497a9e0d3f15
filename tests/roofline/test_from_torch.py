"""A PyTorch module, counted: against torch's own FLOP counter, and against hand counts of the traffic."""

import sys

import pytest

from vibeserve.base.errors import InputError, MissingError
from vibeserve.roofline import analyze, from_torch

torch = pytest.importorskip("torch")
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

F = torch.nn.functional


def torch_flops(module, inputs):
    from torch.utils.flop_counter import FlopCounterMode

    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops()


class Mlp(torch.nn.Module):
    def __init__(self, d, f):
        super().__init__()
        self.up = torch.nn.Linear(d, f, bias=False)
        self.down = torch.nn.Linear(f, d, bias=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class LlamaLayer(torch.nn.Module):
    """A Llama layer as it is usually written: RMSNorm, grouped attention with rotary embedding, gated MLP."""

    def __init__(self, d=64, heads=4, kv=2, f=96):
        super().__init__()
        self.heads, self.kv, self.h = heads, kv, d // heads
        linear = lambda i, o: torch.nn.Linear(i, o, bias=False)  # noqa: E731
        self.q, self.k, self.v, self.o = linear(d, d), linear(d, kv * self.h), linear(d, kv * self.h), linear(d, d)
        self.gate, self.up, self.down = linear(d, f), linear(d, f), linear(f, d)
        self.n1, self.n2 = torch.nn.RMSNorm(d), torch.nn.RMSNorm(d)

    def rotate(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, x, cos, sin):
        b, s, d = x.shape
        n = self.n1(x)
        q = self.rotate(self.q(n).view(b, s, self.heads, self.h).transpose(1, 2), cos, sin)
        k = self.rotate(self.k(n).view(b, s, self.kv, self.h).transpose(1, 2), cos, sin)
        v = self.v(n).view(b, s, self.kv, self.h).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, d))
        n = self.n2(x)
        return x + self.down(F.silu(self.gate(n)) * self.up(n))


def llama():
    s, h = 24, 16
    return LlamaLayer(), (torch.randn(2, s, 64), torch.randn(s, h // 2), torch.randn(s, h // 2))


def vit_block():
    block = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, norm_first=True, activation="gelu")
    return block, (torch.randn(2, 17, 64),)


def convolution():
    return torch.nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2), (torch.randn(3, 8, 20, 18),)


def transposed_convolution():
    return torch.nn.ConvTranspose2d(8, 12, 3, stride=2), (torch.randn(3, 8, 10, 9),)


@pytest.mark.parametrize(
    "make", [lambda: (Mlp(32, 128), (torch.randn(10, 32),)), llama, vit_block, convolution, transposed_convolution]
)
def test_flops_as_torch_counts_them(make):
    module, inputs = make()
    module = module.train()  # the fused inference path of an encoder layer would hide its products
    # torch's counter does not know the CPU's fused attention, so both count the one that is made of products
    with sdpa_kernel(SDPBackend.MATH):
        assert from_torch(module, inputs).flops == torch_flops(module, inputs) > 0


def test_fused_attention_counts_as_its_products_do():
    module, inputs = llama()
    fused = from_torch(module, inputs)
    with sdpa_kernel(SDPBackend.MATH):
        products = from_torch(module, inputs)
    assert any(call.kind == "attention" for call in fused.calls)
    assert fused.flops == products.flops
    assert fused.eager_bytes < products.eager_bytes
    assert fused.ideal_bytes == products.ideal_bytes


def test_bytes_of_an_mlp_by_hand():
    r, d, f = 10, 32, 128
    found = from_torch(Mlp(d, f).bfloat16(), torch.randn(r, d).bfloat16())
    assert found.flops == 4 * r * d * f
    assert found.ideal_bytes == 2 * (2 * r * d + 2 * d * f)
    assert found.eager_bytes == 2 * (2 * r * d + 2 * d * f + 4 * r * f)
    assert found.eager_intensity < found.ideal_intensity
    assert found.elementwise_flops == r * f


def test_agrees_with_the_operation_file():
    sizes = {"R": 256, "D": 128, "F": 512}
    counted = analyze("vjepa2-mlp", sizes=sizes, target="h100")
    module = Mlp(sizes["D"], sizes["F"]).to(torch.bfloat16).to("meta")
    found = from_torch(module, torch.empty(sizes["R"], sizes["D"], dtype=torch.bfloat16, device="meta"))
    for name, fused in (("fused", True), ("unfused", False)):
        ours, theirs = counted.variant(name).bounds, found.bounds("h100", fused)
        assert (ours.work, ours.bytes) == (theirs.work, theirs.bytes)
        assert ours.t_lower == theirs.t_lower


def test_bytes_of_a_convolution_by_hand():
    module, inputs = convolution()
    found = from_torch(module, inputs)
    x, w, b, y = 3 * 8 * 20 * 18, 12 * 4 * 9, 12, 3 * 12 * 10 * 9
    assert found.flops == 2 * y * 4 * 9
    assert found.ideal_bytes == found.eager_bytes == 4 * (x + w + b + y)


def test_views_move_nothing_and_expanded_tensors_are_as_large_as_they_are():
    class Views(torch.nn.Module):
        def forward(self, x):
            return x.view(4, 8).t().unsqueeze(0).expand(5, 8, 4)[1:3] + 1.0

    found = from_torch(Views(), torch.zeros(32))
    assert [call.name for call in found.calls] == ["add"]
    assert found.calls[0].read_bytes == 32 * 4
    assert found.calls[0].write_bytes == 2 * 32 * 4


def test_only_what_is_used_of_a_table_is_read():
    found = from_torch(torch.nn.Embedding(1000, 16), torch.arange(3))
    assert found.parameter_bytes == 3 * 16 * 4
    assert found.ideal_bytes == 3 * 8 + 2 * 3 * 16 * 4


def test_document_with_a_target():
    found = from_torch(Mlp(32, 128).bfloat16(), torch.randn(10, 32).bfloat16()).document("trn2")
    assert found["eager"]["bound"] == found["ideal"]["bound"] == "memory"
    assert found["by_operation"]["mm"]["calls"] == 2


def test_a_module_that_does_not_run():
    with pytest.raises(InputError, match="does not run on these inputs"):
        from_torch(Mlp(32, 128), torch.randn(10, 31))


def test_without_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingError, match="torch is not installed"):
        from_torch(None, None)


def test_the_function_stays_a_function_after_its_first_call():
    """Its module must not take its name in the package."""
    from vibeserve import roofline

    for _ in range(2):
        assert roofline.from_torch(torch.nn.Linear(4, 8), torch.randn(2, 4)).flops > 0
