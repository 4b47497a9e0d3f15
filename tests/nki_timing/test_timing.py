"""The schedule: worked out on paper, and what must always hold."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vibeserve import nki, profiles
from vibeserve.base.errors import InputError
from vibeserve.nki import running
from vibeserve.nki.errors import KernelError
from vibeserve.nki.timing import document, params, run, tables
from vibeserve.nki.timing.deps import BARRIERS
from vibeserve.nki.timing.ops import Box
from vibeserve.nki.timing.placing import Banks
from vibeserve.nki.timing.schedule import stream_of
from vibeserve.profiles.derive import missing_tables

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "kernels"


def kernel(name: str):
    return running.load_kernel(f"{HERE / 'kernels.py'}:{name}")[0]


def timed(name: str, *args, **options):
    return run.timed(kernel(name), args, target=options.pop("target", "trn2"), **options)[1]


def example(slug: str, name: str, **options):
    path = EXAMPLES / slug / "kernel.py"
    made, _ = running.load_kernel(f"{path}:{name}")
    case = running.default_case(path, name)
    inputs = {key: running.make_input(key, value) for key, value in case.inputs.items()}
    return run.timed(made, kwargs=inputs, target=case.target, lnc=case.lnc, **options)[1]


def test_a_copy_as_on_paper():
    found = timed("copy_through", np.ones((128, 512), np.float32))
    load, copy, store = found.ops
    # 2 KiB rows: 8 on each engine, 4.7 ns + 2048 / 27.2 each, a seventh more where loads stall.
    work = round(8 * 1000 * (4.7 + 2048 / 27.2) * 1.155)
    assert found.schedule.moved[load.index].spans == [(e, 1_333_000, 1_333_000 + work, 8) for e in range(16)]
    assert load.done == 1_333_000 + work + 540_000 + 350_000
    assert copy.start == load.done + 24_000
    assert copy.end == copy.start + round((512 + 0) * 1000 / 0.96) + round(148 * 1000 / 0.96)
    assert store.start == copy.end + 17_000
    packets = round(8 * 1000 * (4.7 + 2048 / 27.2) * 1.04)
    assert store.done == store.start + 1_256_000 + packets + 165_000 + 350_000
    assert found.latency_s == store.done * 1e-12


@pytest.mark.parametrize(("dtype", "interval"), [("bfloat16", 512), ("float32", 2 * 1024)])
def test_queued_products_follow_at_half_clock(dtype, interval):
    a, b = (running.make_input(n, {"shape": s, "dtype": dtype}) for n, s in (("a", [128, 128]), ("b", [128, 512])))
    ends = [op.end for op in timed("products", a, b, 3).ops if op.engine == "tensor"]
    assert [later - earlier for earlier, later in pairwise(ends)] == [round(interval / 1.2 * 1000)] * 2


def test_the_tensor_engine_warms_up_after_a_busy_window():
    a, b = (running.make_input(n, {"shape": s, "dtype": "bfloat16"}) for n, s in (("a", [128, 128]), ("b", [128, 512])))
    found = timed("products", a, b, 40)
    [(when, core, warm)] = found.schedule.warm[:1]
    assert (when % round(3413.33 * 1000), core, warm) == (0, 0, True)
    products = [op for op in found.ops if op.engine == "tensor"]
    assert products[-1].end - products[-2].end == round((512 + 6) / 2.4 * 1000)


def test_a_product_over_an_edge_of_the_grid_goes_on_at_the_new_clock():
    a, b = (np.zeros(shape, np.float32) for shape in ((128, 128), (128, 512)))
    found = timed("products", a, b, 4)
    *_, before, last = [op.end for op in found.ops if op.engine == "tensor"]
    [(edge, _, warm)] = found.schedule.warm
    assert warm
    assert before < edge < last
    cold, full = round(2 * 1024 / 1.2 * 1000), round(2 * 1030 / 2.4 * 1000)
    assert last == pytest.approx(edge + (before + cold - edge) * full / cold, abs=1)


def test_the_phase_of_the_grid_can_be_given(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("[tensor_warmup]\nphase_ns = 1000\n")
    a, b = (running.make_input(n, {"shape": s, "dtype": "bfloat16"}) for n, s in (("a", [128, 128]), ("b", [128, 512])))
    changes = [timed("products", a, b, 40, override=file).schedule.warm[0][0] for file in (None, own)]
    window = round(params.load(3)["tensor_warmup.window_ns"] * 1000)
    assert [change % window for change in changes] == [0, 1_000_000]


def test_a_generation_without_a_cold_start_has_none():
    a, b = (running.make_input(n, {"shape": s, "dtype": "bfloat16"}) for n, s in (("a", [128, 128]), ("b", [128, 512])))
    assert timed("products", a, b, 40, target="trn3").schedule.warm == []


def test_cores_wait_for_each_other_at_a_barrier():
    found = timed("across_cores", np.ones((256, 64), np.float32), lnc=2)
    meeting = [op for op in found.ops if op.opcode in BARRIERS]
    assert len(meeting) == 2
    before = max(op.done for op in found.ops if op.index < min(m.index for m in meeting) and op.core == 0)
    assert all(op.start >= before for op in meeting)
    assert meeting[0].start == meeting[1].start


def test_cores_share_the_bandwidth_of_hbm():
    x = np.zeros((8192, 2048), np.float32)
    one, two = (timed("copy_rows", x, lnc=lnc, shape_only=True) for lnc in (1, 2))
    limit = one.params["machine.hbm_bytes_per_ns"]
    moved = 2 * x.nbytes
    assert 0.9 * limit < moved / (two.schedule.latency_ps / 1000) <= limit
    assert moved / (one.schedule.latency_ps / 1000) <= 16 * one.params["dma.bytes_per_ns"]


def test_the_list_schedule_overlaps_what_is_independent():
    x = np.zeros((128, 1024), np.float32)
    program, listed = (timed("chains", x, mode=mode) for mode in ("program", "list"))
    assert listed.schedule.latency_ps < 0.8 * program.schedule.latency_ps
    assert document(listed)["hbm_read_bytes"] == document(program)["hbm_read_bytes"]


@pytest.mark.parametrize("mode", ["program", "list"])
@pytest.mark.parametrize(
    ("slug", "name"),
    [("softmax", "softmax"), ("flash-attention", "flash_attention"), ("rmsnorm", "rmsnorm"), ("adamw", "adamw")],
)
def test_what_always_holds(slug, name, mode):
    found = example(slug, name, mode=mode, shape_only=True)
    latest: dict[tuple[int, str], int] = {}
    for op in sorted(found.ops, key=lambda op: (op.start, op.index)):
        assert 0 <= op.start <= op.end <= op.done
        assert all(found.ops[index].done <= op.start for index in op.deps), op.place
    for op in found.ops if mode == "program" else ():
        key = (op.core, stream_of(op))
        assert op.start >= latest.get(key, 0)
        latest[key] = op.start
    figures = document(found)
    assert all(0 <= row["utilization"] <= 1 for row in figures["engines"].values())
    again = example(slug, name, mode=mode, shape_only=True)
    assert [(op.start, op.end) for op in again.ops] == [(op.start, op.end) for op in found.ops]


def test_full_and_shape_only_give_one_schedule():
    full, shapes = (example("softmax", "softmax", shape_only=flag) for flag in (False, True))
    assert [(op.start, op.done) for op in full.ops] == [(op.start, op.done) for op in shapes.ops]


@pytest.mark.slow
def test_the_fused_mlp_stays_in_its_bracket_and_the_unfused_one_is_slower():
    fused, unfused = (document(example("vjepa2-mlp", n, shape_only=True)) for n in ("fused_mlp", "unfused_mlp"))
    assert fused["flops"] == unfused["flops"] == 34_359_738_368
    assert 218.5e-6 <= fused["latency_s"] <= 274.4e-6
    assert 700 <= fused["intensity"] <= 819.2
    assert unfused["latency_s"] > fused["latency_s"]
    crossings = (
        unfused["hbm_read_bytes"] + unfused["hbm_write_bytes"] - fused["hbm_read_bytes"] - fused["hbm_write_bytes"]
    )
    assert crossings == 4 * 2048 * 4096 * 2


boxes = st.builds(lambda r, h, c, w: Box(r, r + h, c, c + w), *[st.integers(0, 6), st.integers(1, 4)] * 2)


@given(boxes, boxes)
@settings(max_examples=200)
def test_boxes_against_sets_of_bytes(one, other):
    def cells(box):
        return {(r, c) for r in range(box.row, box.row_end) for c in range(box.low, box.high)}

    assert one.overlaps(other) == bool(cells(one) & cells(other)) == other.overlaps(one)
    assert one.covers(other) == (cells(other) <= cells(one))


def test_the_profile_has_its_tables_and_lines(tmp_path):
    outputs, profile = nki.profile(kernel("copy_through"), target="trn2")(np.ones((128, 512), np.float32))
    np.testing.assert_array_equal(outputs, np.ones((128, 512), np.float32))
    stored = profiles.save(profile, "copy", data_path=tmp_path)
    rows = stored.table("Instruction").to_pylist()
    assert [row["opcode"] for row in rows] == ["DMA_DIRECT2D", "COPY", "DMA_DIRECT2D"]
    assert all(row["bir_debug_info_source_location"].rpartition(":")[0].endswith("kernels.py") for row in rows)
    packets = stored.table("DmaPacket").to_pylist()
    assert sum(row["transfer_bytes"] for row in packets) == 2 * 128 * 512 * 4
    transfers = stored.table("DmaPacketAggregated").to_pylist()
    assert [row["semaphore_id"] for row in transfers] == ["S[8] (qSyncDynamicHW)", "S[24] (qScalarDynamicHW)"]
    found = profiles.bounds(stored)
    assert found.total_time_s > 0
    assert all(bound.value_s is None or bound.value_s <= found.total_time_s for bound in found.bounds)
    assert profiles.metrics(stored)["hbm_read_bytes"] == 128 * 512 * 4
    kinds = {row["variable_name"]: row["type"] for row in stored.table("TensorInfo").to_pylist()}
    assert sorted(kinds.values()) == ["IN", "OUT"]
    assert {row["shape"] for row in stored.table("TensorInfo").to_pylist()} == {"[128 512]"}
    assert stored.first("Metadata")["is_simulation"] is True


def test_columns_that_stay_null_are_documented():
    text = (HERE.parents[1] / "docs" / "timing.md").read_text(encoding="utf-8")
    listed = text.partition("## Columns that stay null")[2].partition("\n## ")[0]
    profile = tables.profile(example("flash-attention", "flash_attention", shape_only=True), "x")
    made = profile.tables | missing_tables(profile)
    made.pop("SchemaFields")  # of the tables' columns, not of the run
    empty = {
        (table, column)
        for table, rows in made.items()
        for column in rows.column_names
        if rows.num_rows and rows.column(column).null_count == rows.num_rows
    }
    assert [
        (table, column)
        for table, column in sorted(empty)
        if f"`{column}`" not in listed and not column.startswith("cc_")
    ] == []


def test_rows_say_how_long_a_transfer_and_an_edge_waited():
    found = timed("copy_through", np.ones((128, 512), np.float32))
    load, copy, store = found.ops
    made = tables.profile(found, "copy").tables
    moved = found.schedule.moved
    waits = [row["dma_wait_time_ns"] for row in made["Instruction"].to_pylist()]
    assert waits == [(moved[0].first - load.end) // 1000, None, (moved[2].first - store.end) // 1000]
    gaps = {(row["in_id"], row["out_id"]): row["gap_time"] for row in made["Flow"].to_pylist()}
    assert gaps[copy.index * 2 + 1, store.index * 2 + 1] == 17
    assert gaps[(1 << 40) + load.index, copy.index * 2 + 1] == (copy.start - moved[0].last) // 1000
    assert {row["queue_idx"] for row in made["DmaPacket"].to_pylist()} == {0, 1}


def test_the_profile_says_what_waits_for_what_and_when_it_is_told():
    found = timed("copy_through", np.ones((128, 512), np.float32))
    made = tables.profile(found, "copy").tables
    kinds = [row["dependency_type"] for row in made["Flow"].to_pylist()]
    assert sorted(kinds) == ["DGE_TRIGGER", "DGE_TRIGGER", "FLOW", "FLOW"]
    rows = made["SemaphoreUpdate"].to_pylist()
    load, copy, store = found.ops
    told = {name: [row for row in rows if row["id"] == name] for name in {row["id"] for row in rows}}
    assert {name: [row["value"] for row in mine] for name, mine in told.items()} == {
        "S[6] (Vector)": [1], "S[8] (qSyncDynamicHW)": [*range(1, 17)], "S[24] (qScalarDynamicHW)": [*range(1, 17)],
    }  # fmt: skip
    start = round(found.params["overhead_ns.start"])
    for name, op in (("S[8] (qSyncDynamicHW)", load), ("S[6] (Vector)", copy), ("S[24] (qScalarDynamicHW)", store)):
        assert told[name][-1]["timestamp"] == op.done // 1000 + start
    assert [row["timestamp"] for row in rows] == sorted(row["timestamp"] for row in rows)


@pytest.mark.parametrize(("same", "waits"), [(True, True), (False, False)])
def test_vector_and_scalar_take_turns_at_a_psum_bank(same, waits):
    x = running.make_input("x", {"shape": [128, 512], "dtype": "bfloat16"})
    found = timed("two_tiles_of_psum", x, same)
    [by_vector] = [op for op in found.ops if op.opcode == "tensor_copy"]
    [by_scalar] = [op for op in found.ops if op.opcode == "activation"]
    begin = by_vector.start + round(256 / found.params["clock_ghz.vector"] * 1000)
    assert (by_scalar.start >= begin) == waits


def test_an_activation_that_only_copies_costs_what_a_copy_does():
    x = running.make_input("x", {"shape": [128, 512], "dtype": "bfloat16"})
    found = timed("two_tiles_of_psum", x, False)
    [copy] = [op for op in found.ops if op.opcode == "activation"]
    assert copy.end - copy.start == pytest.approx((256 + 191) * 1000 / 1.2, abs=1)
    functions = timed("two_functions", np.zeros((128, 512), np.float32))
    lengths = [op.end - op.start for op in functions.ops if op.engine == "scalar"]
    assert [lengths[1], lengths[3]] == pytest.approx([(512 + 312 + 40) * 1000 / 1.2, (512 + 191) * 1000 / 1.2], abs=1)


def test_a_division_works_as_long_as_a_reciprocal_and_a_product():
    found = timed("divided", np.ones((128, 512), np.float32))
    divide, _, reciprocal, product = [op for op in found.ops if op.engine == "vector"]
    latency = 148 * 1000 / 0.96
    work = [op.end - op.start - latency for op in (divide, reciprocal, product)]
    assert work[0] == pytest.approx(work[1] + work[2], abs=2)


def test_tiles_of_psum_go_to_banks_and_rotate():
    banks = Banks(4, 2048)
    for storage, size in ((0, 512), (1, 512), (2, 512), (3, 512), (4, 1024), (5, 3000)):
        banks.take(storage, size)
    assert [banks.places[n] for n in range(5)] == [*(((n, 512),) for n in range(4)), ((0, 1024),)]
    assert sum(size for _, size in banks.places[5]) == 3000  # where no bank is free, pieces of several
    for storage in (2, 0, 1, 3, 4, 5):
        banks.release(storage)
    assert (banks.room, banks.tiles) == ([2048] * 4, [0] * 4)
    banks.take(6, 8192)
    assert banks.room == [0] * 4
    banks.take(7, 2048)
    assert banks.places[7] == ()  # PSUM is full: capacity is checked elsewhere


@pytest.mark.parametrize("mode", ["program", "list"])
@pytest.mark.parametrize("how", ["none", "depends", "no_reorder", "with_schedule"])
def test_an_order_that_is_asked_for_is_kept(how, mode):
    made, x = kernel("ordered"), np.zeros((128, 512), np.float32)
    if how == "with_schedule":
        made = made.with_schedule([("second", "first")])
    _, found = run.timed(made, (x, how), target="trn2", mode=mode)
    named = {op.name: op for op in found.ops if op.name}
    assert (named["second"].start >= named["first"].done) == (how != "none")


def test_an_order_between_names_that_there_are_none_of_is_told():
    made = kernel("ordered").with_schedule([("second", "third")])
    with pytest.raises(InputError, match="'third'"):
        run.timed(made, (np.zeros((128, 512), np.float32),), target="trn2")


@pytest.mark.parametrize("by_gpsimd", [False, True])
def test_an_exchange_takes_its_bytes_and_both_cores(by_gpsimd):
    def exchanges(columns):
        found = timed("exchange", np.zeros((256, columns), np.float32), by_gpsimd, lnc=2)
        ops = [op for op in found.ops if op.opcode == "sendrecv"]
        assert len(ops) == 2
        assert ops[0].start == ops[1].start
        return ops[0].done - ops[0].start, found.params

    small, params_ = exchanges(64)
    large, _ = exchanges(256)
    rate = (
        params_["dma.gpsimd_bytes_per_ns"]
        if by_gpsimd
        else 16 * params_["dma.bytes_per_ns"] / params_["dma.load_stall"]
    )
    assert large - small == pytest.approx(128 * 192 * 4 * 1000 / rate, rel=0.01)


def test_a_change_of_function_loads_its_table():
    found = timed("two_functions", np.zeros((128, 512), np.float32))
    loads = found.schedule.tables
    acts = [op.index for op in found.ops if op.engine == "scalar"]
    assert [index for index, _, _ in loads] == [acts[0], acts[2], acts[4]]
    assert loads[0][1:] == (156_000, 156_000 + 1_283_000)  # while the kernel still loads its input
    assert found.ops[acts[0]].start > loads[0][2]
    assert found.ops[acts[2]].start >= loads[1][2]
    rows = tables.profile(found, "x").table("Instruction").to_pylist()
    assert [row["opcode"] for row in rows].count("ACT_TABLE_LOAD") == 3
    assert len({row["id"] for row in rows}) == len(rows)


@pytest.mark.parametrize(("target", "slower"), [("trn1", "waits"), ("trn2", "slows")])
def test_vector_and_gpsimd_share_a_port(target, slower):
    x = running.make_input("x", {"shape": [128, 4096], "dtype": "bfloat16"})
    found = timed("vector_beside_gpsimd", x, target=target)
    [long] = [op for op in found.ops if op.engine == "gpsimd"]
    [copy] = [op for op in found.ops if op.engine == "vector"]
    clock = found.params["clock_ghz.vector"]
    if slower == "waits":
        assert copy.start >= long.start + 2 * 4096 * 1000 / found.params["clock_ghz.gpsimd"]
    else:
        assert copy.start < long.end
        assert copy.end - copy.start >= 4096 * 1000 / clock  # four elements a cycle when alone


def test_the_list_schedule_shares_copies_of_transposes():
    x = np.arange(128 * 512, dtype=np.float32).reshape(128, 512)
    program, listed = timed("transposed_pieces", x), timed("transposed_pieces", x)
    listed.schedule = run.listed(
        listed.recorder, listed.params, listed.target
    )  # slower here, so not what mode="list" gives
    assert [op.opcode for op in program.ops].count("tensor_copy") == 4
    [copy] = [op for op in listed.ops if op.opcode == "tensor_copy"]
    assert copy.operands[0].shape == (128, 512)
    assert all(op.done <= copy.start for op in listed.ops if op.opcode == "nc_transpose")
    assert document(listed)["transpose_flops"] == document(program)["transpose_flops"]


@pytest.mark.parametrize("shape_only", [False, True])
def test_tiles_that_do_not_fit_are_an_error_or_spill(shape_only):
    x = np.zeros((128, 8192), np.float32)  # 32 KiB of a partition: six fit into a trn2's SBUF
    with pytest.raises(KernelError, match="alive at once"):
        timed("too_many_tiles", x, shape_only=shape_only)
    fits = timed("too_many_tiles", x, 6, shape_only=shape_only, allow_spill=True)
    assert document(fits)["spill_save_bytes"] == document(fits)["spill_reload_bytes"] == 0
    found = timed("too_many_tiles", x, shape_only=shape_only, allow_spill=True)
    figures = document(found)
    assert figures["spill_save_bytes"] >= 2 * x.nbytes
    assert figures["spill_reload_bytes"] >= figures["spill_save_bytes"]
    assert figures["hbm_read_bytes"] == 8 * x.nbytes + figures["spill_reload_bytes"]
    assert figures["hbm_write_bytes"] == 8 * x.nbytes + figures["spill_save_bytes"]
    rows = tables.profile(found, "spills").table("Instruction").to_pylist()
    assert sum(row["spill_save_bytes"] for row in rows) == figures["spill_save_bytes"]
    live: dict[int, int] = {}
    last = {storage: op.index for op in found.ops for storage in {o.storage for o in op.operands if o.region == "sbuf"}}
    for op in found.ops:  # what is resident at any time fits
        for operand in op.operands:
            if operand.region == "sbuf":
                live[operand.storage] = operand.free_bytes
        assert sum(live.values()) <= found.target.sbuf_usable_per_partition
        live = {storage: size for storage, size in live.items() if last[storage] > op.index}


def test_hardware_flops_count_both_passes_of_fp32():
    a, b = (np.zeros(s, np.float32) for s in ((128, 128), (128, 512)))
    found = timed("products", a, b, 1)
    assert document(found)["flops"] == 2 * 128 * 128 * 512
    [row] = [r for r in tables.profile(found, "x").table("Instruction").to_pylist() if r["opcode"] == "MATMUL"]
    assert row["raw_flops"] == 2 * 2 * 128 * 128 * 512


def test_double_row_does_twice_the_work_of_as_many_columns():
    a, b = (running.make_input(n, {"shape": [128, 2, s], "dtype": "float8_e4m3"}) for n, s in (("a", 128), ("b", 512)))
    found = timed("double_rows", a, b)
    assert document(found)["flops"] == 2 * 256 * 128 * 512
    plain = timed("products", a[:, 0, :], b[:, 0, :], 1)
    lasted = [next(op.end - op.start for op in run_.ops if op.engine == "tensor") for run_ in (found, plain)]
    assert lasted[0] == lasted[1]


def test_constants_can_be_overridden_and_wrong_ones_are_told(tmp_path):
    own = tmp_path / "own.toml"
    own.write_text("[dma]\ntrigger_ns = 1000\ndone_ns = { value = 0, mark = 'measured' }\n")
    x = np.ones((128, 512), np.float32)
    changed, plain = timed("copy_through", x, override=own), timed("copy_through", x)
    assert plain.schedule.latency_ps - changed.schedule.latency_ps == 2 * 350_000
    for text, said in (
        ("[dma]\nnothing = 1\n", "no constant 'dma.nothing'"),
        ("[dma]\ndone_ns = 'x'\n", "done_ns = 'x'"),
        ("[dma\n", "own.toml"),
        ("[dma]\ndone_ns = { value = 1, mark = 'sure' }\n", "the mark 'sure'"),
    ):
        own.write_text(text)
        with pytest.raises(InputError, match=said):
            params.load(3, own)


@pytest.mark.parametrize("generation", [2, 3, 4])
def test_every_constant_has_its_mark(generation):
    found = params.load(generation)
    assert {constant.mark for constant in found.constants.values()} <= set(params.MARKS)
    assert set(found.values) == set(params.load(3).values)


def test_sensitivity_names_what_the_result_leans_on():
    from vibeserve.nki.timing.sensitivity import sensitivities

    found = timed("copy_through", np.ones((128, 512), np.float32))
    before = found.schedule.latency_ps
    rows = sensitivities(found)
    assert found.schedule.latency_ps == before
    by_name = {row["constant"]: row for row in rows}
    assert by_name["dma.load_stall"]["doubled"] > 0 > by_name["dma.load_stall"]["halved"]
    assert all(row["mark"] in ("inferred", "guess") for row in rows)


def test_the_command(cli, tmp_path):
    where = f"{HERE / 'kernels.py'}:copy_through"
    arguments = ("--input", "x=128x512:float32", "--timing")
    code, out, _ = cli("nki", "simulate", where, *arguments, "--profile", "mine", "--json")
    assert code == 0
    found = json.loads(out)
    for key in (
        "kernel", "target", "lnc", "outputs", "latency_s", "flops", "transpose_flops", "hbm_read_bytes", "hbm_write_bytes",
        "intensity", "engines", "sbuf_peak_bytes_per_partition", "psum_peak_banks", "mfu", "profile",
    ):  # fmt: skip
        assert key in found
    assert found["profile"] == "mine"
    assert list(found["latency_s_by_schedule"]) == ["program", "list"]
    assert found["latency_s_by_schedule"]["program"] == found["latency_s"]
    assert found["sbuf_peak_bytes_per_partition"] == 2 * 512 * 4
    code, out, _ = cli("profile", "bounds", "mine", "--json")
    assert code == 0
    code, out, _ = cli("nki", "simulate", where, *arguments)
    assert code == 0
    assert "not verified on hardware" in out
    assert "roofline     memory-bound (ridge" in out
    assert cli("nki", "simulate", where, *arguments, "--schedule", "magic")[0] == 2


def test_a_kernel_whose_addresses_are_data_says_so_and_runs_in_full(cli):
    where = f"{EXAMPLES / 'views' / 'kernel.py'}:select_expert"
    code, out, err = cli("nki", "simulate", where, "--timing", "--shape-only", "--json")
    assert code == 0
    assert json.loads(out)["shape_only"] is False
    assert "run in full" in err


def test_a_script_that_asks_the_runtime_for_profiles_gets_simulated_ones(tmp_path, cli, monkeypatch):
    monkeypatch.setenv("NEURON_RT_INSPECT_ENABLE", "0")
    monkeypatch.setenv("NEURON_RT_INSPECT_OUTPUT_DIR", "")
    script = tmp_path / "script.py"
    script.write_text(
        f"import os, sys\nos.environ['NEURON_RT_INSPECT_ENABLE'] = '1'\n"
        f"os.environ['NEURON_RT_INSPECT_OUTPUT_DIR'] = {str(tmp_path / 'output')!r}\nsys.path.insert(0, {str(HERE)!r})\n"
        "import numpy as np\nfrom kernels import copy_through\nprint(copy_through(np.ones((128, 512), np.float32)).sum())\n"
    )
    code, out, err = cli("nki", "run", script)
    assert (code, out) == (0, "65536.0\n")
    assert "simulated profile of copy_through" in err
    code, out, _ = cli("profile", "bounds", "copy_through", "--data-path", tmp_path / "output", "--json")
    assert code == 0
    assert json.loads(out)["total_time_s"] > 0


@pytest.mark.parametrize(
    ("slug", "name"), [("rmsnorm", "rmsnorm"), ("conv1d", "conv1d"), ("gated-mlp", "gated_mlp"), ("softmax", "softmax")]
)
def test_the_list_schedule_is_never_slower_than_program_order(slug, name):
    program, listed = (example(slug, name, shape_only=True, mode=mode) for mode in ("program", "list"))
    assert listed.schedule.latency_ps <= program.schedule.latency_ps
    assert program.schedule.order == "program"
    if listed.schedule.order == "program":
        assert listed.schedule.start == program.schedule.start
        assert document(listed)["latency_s"] == document(program)["latency_s"]


def test_both_outcomes_of_the_list_schedule_are_met():
    kept = {
        n: example(s, n, shape_only=True, mode="list").schedule.order for s, n in (("rmsnorm",) * 2, ("softmax",) * 2)
    }
    assert kept == {"rmsnorm": "program", "softmax": "list"}


def test_the_card_says_what_holds_a_kernel_up(cli):
    where = f"{EXAMPLES / 'rmsnorm' / 'kernel.py'}:rmsnorm"
    code, out, _ = cli("nki", "simulate", where, "--timing", "--shape-only")
    assert code == 0
    assert "it keeps program order: its own order is slower" in out
    assert "held up by   " in out
    assert "µs of start and end around it" in out
    code, out, _ = cli("nki", "simulate", where, "--timing", "--shape-only", "--json")
    found = json.loads(out)
    assert found["list_keeps_program_order"] is True
    assert found["latency_s_by_schedule"]["list"] == found["latency_s_by_schedule"]["program"]


def test_the_card_names_an_engine_that_holds_a_kernel_up_more_than_its_limit_does(cli):
    softmax = f"{EXAMPLES / 'softmax' / 'kernel.py'}:softmax"
    out = cli("nki", "simulate", softmax, "--timing", "--shape-only", "--schedule", "list")[1]
    assert "roofline     memory-bound" in out
    assert "held up by   the vector engine, busy for" in out
    out = cli(
        "nki", "simulate", f"{EXAMPLES / 'tiled-matmul' / 'kernel.py'}:matmul_blocked_all", "--timing", "--shape-only"
    )[1]
    assert "held up by   mostly that limit" in out


def test_bounds_of_a_simulated_profile_say_how_they_differ_from_the_card(cli):
    where = f"{HERE / 'kernels.py'}:copy_through"
    cli("nki", "simulate", where, "--input", "x=128x512:float32", "--profile", "words")
    code, out, err = cli("profile", "bounds", "words")
    assert (code, err) == (0, "")
    assert "serialization is the larger part" in out
    assert "the latency of `nki simulate` counts from the first instruction to the last wait" in out
    assert "435 GB/s" in out


def test_a_long_run_leaves_the_collector_as_it_was():
    import gc

    assert gc.isenabled()
    timed("copy_through", np.ones((128, 512), np.float32))
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


WALK = """
import os
os.environ['NEURON_RT_INSPECT_ENABLE'] = '1'
os.environ['NEURON_RT_INSPECT_DEVICE_PROFILE'] = '1'
os.environ['NEURON_RT_INSPECT_SYSTEM_PROFILE'] = '0'
os.environ['NEURON_RT_INSPECT_OUTPUT_DIR'] = './output'
os.environ['NEURON_RT_VISIBLE_CORES'] = '0'
os.environ['NEURON_CC_FLAGS'] = '--target trn2 --lnc 1'
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from kernels import copy_through
print(copy_through(np.ones((128, 512), np.float32)).sum())
"""


def test_from_a_script_to_bounds_as_on_a_device(tmp_path, cli, monkeypatch):
    """Run, find the NEFF, capture it, take it in, look at it: each step says that it is simulated."""
    monkeypatch.chdir(tmp_path)
    for name in ("ENABLE", "DEVICE_PROFILE", "SYSTEM_PROFILE", "OUTPUT_DIR"):
        monkeypatch.setenv(f"NEURON_RT_INSPECT_{name}", "")
    monkeypatch.setenv("NEURON_RT_VISIBLE_CORES", "")
    monkeypatch.setenv("NEURON_CC_FLAGS", "")
    Path("script.py").write_text(WALK.format(folder=str(HERE)))
    code, _, err = cli("nki", "run", "script.py")
    assert (code, "simulated" in err) == (0, True)
    code, out, err = cli("nki", "neffs", "./output", "copy_through")
    assert (code, out, "simulated" in err) == (0, "output/profiles/global/copy_through@latest\n", True)
    assert json.loads(cli("nki", "neffs", "./output", "--json")[1])["neffs"][0]["kind"] == "nki"
    code, _, err = cli("nki", "neffs", "./output", "another")
    assert (code, "there is copy_through" in err) == (1, True)
    code, _, err = cli("nki", "capture", out.strip())
    assert (code, "nothing ran on a device" in err) == (0, True)
    metrics = json.loads(Path("profiles/run_001/metrics.json").read_text())
    assert metrics["hbm_read_bytes"] == 128 * 512 * 4
    code, _, err = cli("profile", "ingest", "profiles/run_001", "--display-name", "walk", "--data-path", "data")
    assert (code, "simulated" in err) == (0, True)
    assert "[simulated]" in cli("profile", "analyze", "walk", "--data-path", "data")[1]
    assert json.loads(cli("profile", "bounds", "walk", "--data-path", "data", "--json")[1])["bottleneck"]
