"""Every mistake is one line that says what and where, one hint, and exit code 2."""

import json

import pytest

GOOD = """
dtype = "bfloat16"
target = "trn2"
[dims]
M = 64
K = 32
N = 16
[tensors]
a = "M K"
b = { dims = "K N", weight = true }
c = "M N"
[[stages]]
name = "product"
contract = "a[M K], b[K N] -> c[M N]"
[variants.plain]
split = "M"
"""


@pytest.fixture
def failing(cli, tmp_path):
    def run(text, *args):
        path = tmp_path / "op.toml"
        path.write_text(text)
        code, out, err = cli("roofline", path, *args)
        lines = err.splitlines()
        assert code == 2, (out, err)
        assert out == ""
        assert len(lines) == 2
        assert lines[1].startswith("hint: ")
        return lines[0].replace(str(path), "op.toml"), lines[1]

    return run


def test_the_good_file_is_good(cli, tmp_path):
    path = tmp_path / "op.toml"
    path.write_text(GOOD)
    assert cli("roofline", path)[0] == 0


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("K = 32", "K = = 32", "op.toml: Invalid value (at line 6, column 5)"),
        ("K = 32", "K = 0", "K is 0: a size must be positive"),
        ("K = 32", "K = -4", "K is -4: a size must be positive"),
        ("K = 32", "K = 'M / 3'", "K = M ÷ 3 = 64 ÷ 3 is 21.3333, not a whole number"),
        ("K = 32", "K = 'M / (M - 64)'", "K = M ÷ (M − 64) divides by zero"),
        ("K = 32", "K = 'X * 2'", "op.toml:6: dimension K: unknown name 'X'"),
        ("K = 32", "K = 'open(1)'", "op.toml:6: dimension K: 'open(1)' has something that is no arithmetic"),
        ("K = 32", "K = true", "op.toml:6: dimension K: True is no size"),
        ('a = "M K"', 'a = "M Q"', "op.toml:9: tensor a: unknown dimension 'Q'"),
        ('contract = "a[M K]', 'contract = "a[K M]', "op.toml:14: stage product: a used as [K M], declared as [M K]"),
        ("b[K N]", "b[K Z]", "op.toml:14: stage product: unknown dimension 'Z'"),
        ("b[K N]", "e[K N]", "op.toml:14: stage product: unknown tensor 'e'"),
        ("b[K N] ->", "b[K N]", "op.toml:14: stage product: no '->' in"),
        (
            "-> c[M N]",
            "-> c[M N], a[M K]",
            "op.toml:14: stage product: 'a[M K], b[K N] -> c[M N], a[M K]' needs one output",
        ),
        ("b[K N] ->", "b(K N) ->", "op.toml:14: stage product: cannot read 'b(K N)'"),
        ("a[M K], b", "a[M K] b", "expected a comma before"),
        ('dtype = "bfloat16"', 'dtype = "bf17"', "op.toml:2: dtype: unknown data type 'bf17'"),
        ('dtype = "bfloat16"', 'dtype = "float64"', "trn2 has no peak for float64: it has bfloat16"),
        ('target = "trn2"', 'target = "trn9"', "unknown machine 'trn9'"),
        ('target = "trn2"', 'colour = "red"', "op.toml: the file: unknown key 'colour'"),
        ('split = "M"', 'split = "Z"', "op.toml:15: variant plain: split: unknown dimension 'Z'"),
        ('split = "M"', "split = { M = 'x' }", "variant plain: split of M over 'x'"),
        ('split = "M"', 'kernels = "some"', "variant plain: kernels = 'some'"),
        ('split = "M"', 'kernels = [["up"]]', "kernels must name every stage once"),
        ('split = "M"', 'memory = { z = "read" }', "variant plain: unknown tensor 'z'"),
        ('split = "M"', 'memory = { a = "reed" }', "memory of a: 'reed'"),
        ('contract = "a', 'contrast = "a', "stage product: unknown key 'contrast'"),
        ('name = "product"', "flops = 3", "the FLOPs of a contract follow from its shape"),
    ],
)
def test_mistakes_in_a_file(failing, old, new, message):
    assert old in GOOD
    line, _ = failing(GOOD.replace(old, new))
    assert message in line


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (["--set", "Q=3"], "unknown dimension 'Q': op has M, K, N", "--set M="),
        (["--set", "M=0"], "M is 0: a size must be positive", "1 or more"),
        (["--set", "M=-8"], "M is -8", "1 or more"),
        (["--set", "M=2.5"], "M is 2.5, not a whole number", "divide"),
        (["--set", "M"], "cannot read --set 'M'", "--set R=256"),
        (["--set", "M=65", "--lnc", "2"], "M = 65 does not split over 2 cores: remainder 1", "64 and 66"),
        (["--lnc", "3"], "trn2 has no LNC 3: it knows 1 or 2", "--lnc 2"),
        (["--target", "h100", "--lnc", "2"], "h100 has no logical cores", "leave --lnc out"),
        (["--variant", "fast"], "unknown variant 'fast': op has plain", "use one"),
        (["--dtype", "int8"], "trn2 has no peak for int8", "--peak"),
        (["--peak", "-1"], "--peak -1: not a positive number", "--peak"),
        (["--bandwidth", "rumour"], "no bandwidth_bytes_per_s figure called 'rumour'", "architecture, chip, profiles"),
        (["--sweep", "M=9:3"], "cannot read the sweep", "R=128:4096"),
        (["--sweep", "Z=1:3"], "unknown dimension 'Z'", "use one"),
        (["--sweep", "M=65:65", "--lnc", "2"], "no size of M from 65 to 65 divides", "widen"),
        (["--measured", "gone.json"], "no file gone.json", "JSON"),
        (["--measured", "no-such-profile"], "no-such-profile", ""),
    ],
)
def test_mistakes_on_the_command_line(failing, args, message, hint):
    line, said = failing(GOOD, *args)
    assert message in line
    assert hint in said


def test_unknown_operation_names_the_packaged_ones(cli):
    code, _, err = cli("roofline", "vjepa3-mlp")
    assert code == 2
    assert "unknown operation 'vjepa3-mlp'" in err
    assert "vjepa2-mlp" in err


def test_json_has_the_error_too(cli):
    code, out, _ = cli("roofline", "vjepa2-mlp", "--set", "Q=1", "--json")
    assert code == 2
    assert json.loads(out)["error"]["message"].startswith("unknown dimension 'Q'")


def test_a_variant_without_a_split_on_two_cores(failing):
    line, hint = failing(GOOD.replace('split = "M"', ""), "--lnc", "2")
    assert "variant plain of op says no split, and the kernel runs on 2 cores" in line
    assert "split = 'M'" in hint


def test_a_split_that_leaves_parts_over(failing):
    line, _ = failing(GOOD.replace('split = "M"', "split = { M = 2, K = 2 }"), "--lnc", "2")
    assert "over 4 cores, and the kernel runs on 2" in line


def test_a_window_that_does_not_fit(failing):
    text = """
[dims]
N = 1
C = 1
K = 1
H = 8
P = 8
I = 9
[tensors]
x = "N C H"
w = "K C I"
y = "N K P"
[[stages]]
contract = "x[N C 3*P+I], w[K C I] -> y[N K P]"
"""
    line, hint = failing(text)
    assert "the window P by I reaches 30 rows of x, which has H = 8" in line
    assert "stride" in hint


def test_stages_out_of_order(failing):
    text = GOOD.replace('c = "M N"', 'c = "M N"\nd = "M N"').replace(
        "[[stages]]", '[[stages]]\nname = "late"\nelementwise = "c[M N] -> d[M N]"\n[[stages]]', 1
    )
    line, _ = failing(text)
    assert "stage late reads c before it is made" in line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "not an object"),
        ("{", "no JSON"),
        ('{"plain": {"total": 1}}', "no metric that is counted here"),
        ('{"plain": {"hardware_flops": "many"}}', "not a number: 'many'"),
    ],
)
def test_bad_measurements(failing, tmp_path, text, message):
    path = tmp_path / "m.json"
    path.write_text(text)
    line, _ = failing(GOOD, "--measured", path)
    assert message in line


def test_a_flat_measurement_needs_its_variant(cli, tmp_path):
    path = tmp_path / "m.json"
    path.write_text('{"hardware_flops": 34.36e9}')
    code, _, err = cli("roofline", "vjepa2-mlp", "--measured", path)
    assert code == 2
    assert "--variant NAME" in err
    code, out, _ = cli("roofline", "vjepa2-mlp", "--measured", path, "--variant", "fused", "--json")
    assert code == 0
    assert json.loads(out)["measured"][0]["agrees"]


def test_crossings_that_are_not_whole(cli):
    code, _, err = cli("roofline", "matmul", "--set", "T=3000")
    assert code == 2
    assert "b would cross 1.36533 times as a read, which is not whole" in err
