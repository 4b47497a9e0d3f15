"""Machine files: what they say, and that every figure has a source."""

import pytest

from vibeserve.base.errors import InputError
from vibeserve.base.provenance import Provenance
from vibeserve.hardware import describe, get, machines, names
from vibeserve.hardware.catalog import DATA, CatalogError, read_file
from vibeserve.hardware.dtypes import bytes_of, canonical


def test_every_machine_that_the_field_asks_for_is_there():
    wanted = [
        "trn1",
        "trn2",
        "trn3",
        "inf2",
        "h100",
        "h200",
        "a100",
        "b200",
        "l4",
        "l40s",
        "t4",
        "a10",
        "mi300x",
        "mi325x",
        "mi350x",
    ]
    wanted += [f"apple-m{n}{part}" for n in (1, 2, 3, 4) for part in ("", "-pro", "-max")]
    assert set(wanted) <= set(names())
    assert names()[-1] == "cpu"


@pytest.mark.parametrize("machine", machines().values(), ids=lambda machine: machine.name)
def test_every_figure_has_a_source_and_the_used_one_comes_first(machine):
    assert machine.bandwidth_bytes_per_s == machine.used("bandwidth_bytes_per_s").value
    assert machine.peaks
    for dtype, peak in machine.peaks.items():
        assert peak == machine.used(f"peaks.{dtype}").value > 0
    for figures in machine.figures.values():
        assert all(figure.source and isinstance(figure.provenance, Provenance) for figure in figures)
        named = [figure.name for figure in figures if len(figures) > 1]
        assert len(set(named)) == len(named)
        assert all(named)


def test_names_and_aliases_do_not_clash():
    words = [word for machine in machines().values() for word in {machine.name, *machine.aliases}]
    assert len(words) == len(set(words))


def test_trn2_as_the_array_gives_it():
    trn2 = get("trn2")
    assert trn2.array is not None
    assert trn2.array.peak_flops_per_s("bfloat16") == 128 * 128 * 2 * 2.4e9 == 78.6432e12
    pair = trn2.share(2)
    assert (pair.cores, pair.peaks["bfloat16"], pair.bandwidth_bytes_per_s) == (2, 157.2864e12, 0.75e12)
    assert trn2.share().bandwidth_bytes_per_s == 0.375e12
    assert pair.peaks["float8_e4m3"] == 2 * pair.peaks["bfloat16"] == 8 * pair.peaks["float32"]


def test_where_sources_differ_both_are_there_and_either_can_be_used():
    trn2 = get("trn2")
    assert [figure.name for figure in trn2.figures["bandwidth_bytes_per_s"]] == ["architecture", "chip", "profiles"]
    assert trn2.using("bandwidth_bytes_per_s", "profiles").share(2).bandwidth_bytes_per_s == 716e9
    assert trn2.using("peaks.bfloat16", "chip").peaks["bfloat16"] == 667e12
    with pytest.raises(InputError, match="no bandwidth_bytes_per_s figure called 'rumour'") as caught:
        trn2.using("bandwidth_bytes_per_s", "rumour")
    assert "architecture, chip, profiles" in caught.value.hint


def test_aliases_ignore_case_and_dashes():
    assert get("Trainium2") is get("trn2") is get("NeuronCore-v3")
    assert get("H100 SXM").name == "h100"
    assert get("M4 Max").name == "apple-m4-max"


def test_unknown_machine_names_what_is_near():
    with pytest.raises(InputError, match="unknown machine 'trn9'") as caught:
        get("trn9")
    assert "trn1" in caught.value.hint


def test_lnc_that_a_machine_does_not_know():
    with pytest.raises(InputError, match="trn1 has no LNC 2: it knows 1"):
        get("trn1").share(2)
    with pytest.raises(InputError, match="h100 has no logical cores"):
        get("h100").share(2)
    assert get("h100").share().whole


def test_a_dtype_without_a_peak():
    with pytest.raises(InputError, match="trn2 has no peak for float64: it has") as caught:
        get("trn2").peak_flops_per_s("fp64")
    assert "--peak" in caught.value.hint


def test_dtype_names():
    assert canonical("BF16") == "bfloat16"
    assert bytes_of("int4") * 2 == 1
    with pytest.raises(InputError, match="unknown data type 'bfloat17'"):
        canonical("bfloat17")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("colour = 1", "unknown keys"),
        ("[[machine]]\nname = 'x'", "x: missing"),
        ("value", "not positive"),
        ("source", "unknown source 'nowhere'"),
    ],
)
def test_a_file_that_breaks_the_schema_is_named(tmp_path, text, message):
    good = (
        "vendor = 'V'\n[sources]\ns = 'S'\n[[machine]]\nname = 'x'\ntitle = 'X'\ngeneration = 'g'\n"
        "memory_bytes = { value = 1, source = 's' }\nbandwidth_bytes_per_s = { value = 1, source = 's' }\n"
    )
    broken = {
        "value": good.replace("value = 1, source", "value = -1, source", 1),
        "source": good.replace("source = 's'", "source = 'nowhere'", 1),
    }.get(text, "vendor = 'V'\n" + text)
    path = tmp_path / "x.toml"
    path.write_text(broken)
    with pytest.raises(CatalogError, match=message):
        read_file(path)


def test_the_files_are_read_in_the_form_that_they_are_shipped():
    assert sum(len(read_file(path)) for path in DATA.glob("*.toml")) == len(machines())


def test_description_is_plain_data():
    from vibeserve.base.jsonio import dumps

    assert '"used": true' in dumps(describe(get("trn2")))
