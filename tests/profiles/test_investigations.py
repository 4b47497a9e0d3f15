"""Investigations on tables made by hand, with the answers worked out on paper."""

import pytest
from tests.profiles import made

from vibeserve import profiles
from vibeserve.base.errors import InputError
from vibeserve.profiles import investigations, schema
from vibeserve.profiles.investigations.te_inefficiency import decode_tile
from vibeserve.profiles.profile import Profile


def one(profile, name, **more):
    return profiles.investigate(profile, [name], **more)[0]


def transfers(*rows):
    """Aggregated transfers, the instructions that trigger them, and the edges, from
    (start, end, bytes, variable, source, dest, partitions, line)."""
    size = len(rows)
    aggregated = schema.build(
        "DmaPacketAggregated",
        {
            "start_ts": [row[0] for row in rows],
            "end_ts": [row[1] for row in rows],
            "duration_ns": [row[1] - row[0] for row in rows],
            "id": [1000 + i for i in range(size)],
            "variable": [row[3] for row in rows],
            "transfer_bytes": [row[2] for row in rows],
            "source": [row[4] for row in rows],
            "dest": [row[5] for row in rows],
            "write_num_sbuf_partitions": [row[6] if row[5] == "[SB]" else 0 for row in rows],
            "read_num_sbuf_partitions": [row[6] if row[5] != "[SB]" else 0 for row in rows],
            "queue_name": ["qSyncDynamicHW"] * size,
        },
        rows=size,
    )
    triggers = [
        made.instruction(
            start_ts=max(0, row[0] - 50),
            end_ts=row[0],
            engine="Sync",
            opcode="DMA_DIRECT2D",
            id=i,
            hbm_read_bytes=row[2] if row[5] == "[SB]" else 0,
            hbm_write_bytes=row[2] if row[5] != "[SB]" else 0,
            bir_debug_info_source_location=f"/src/kernel.py:{row[7]}" if row[7] else None,
        )
        for i, row in enumerate(rows)
    ]
    flow = schema.build(
        "Flow",
        {
            "in_id": list(range(size)),
            "out_id": [1000 + i for i in range(size)],
            "in_table": ["Instruction"] * size,
            "out_table": ["DmaPacketAggregated"] * size,
        },
        rows=size,
    )
    return aggregated, triggers, flow


def profile_of(rows, tensors, extra=()):
    aggregated, triggers, flow = transfers(*rows)
    return Profile(
        "p",
        {
            "Metadata": schema.build("Metadata", made.METADATA),
            "DmaPacket": made.packets(*((row[0], row[1], row[2], "hardware_dynamic") for row in rows)),
            "DmaPacketAggregated": aggregated,
            "Instruction": made.instructions([*triggers, *extra]),
            "Flow": flow,
            "TensorInfo": made.tensors(*tensors),
        },
    )


LOADED_TWICE = profile_of(
    [
        (0, 1000, 65536, "x", "[[INPUT]]", "[SB]", 128, 10),
        (1000, 2000, 65536, "x", "[[INPUT]]", "[SB]", 128, 10),
        (2000, 4000, 65536, "w", "[[INPUT]]", "[SB]", 128, 12),
        (4000, 5000, 65536, "y", "[[SB]]", "[OUTPUT]", 128, 30),
        (5000, 5500, 32768, "t", "[[SB]]", "[VIRTUAL]", 128, 20),
        (5500, 6000, 32768, "t", "[[VIRTUAL]]", "[SB]", 128, 20),
    ],
    [("x", "IN", 65536), ("w", "IN", 65536), ("y", "OUT", 65536)],
)


def test_reloads_and_spills_are_told_apart_and_named():
    found = one(LOADED_TWICE, "redundant_dma_transfers")
    assert (found.ran, found.found) == (True, True)
    moved, needed = 4 * 65536 + 2 * 32768, 3 * 65536
    assert found.metrics["excess_bytes"] == moved - needed
    assert found.metrics["excess_ratio"] == pytest.approx(moved / needed)
    assert found.metrics["reload_excess_bytes"] == 65536
    assert found.metrics["spill_bytes"] == 65536
    assert found.metrics["reload_share"] == pytest.approx(65536 / (moved - needed))
    assert found.cost_s == pytest.approx((moved - needed) / 435e9)
    lines = {(line.details["kind"], line.line): line for line in found.lines}
    assert set(lines) == {("reload", 10), ("spill", 20)}
    assert lines["reload", 10].details["repeat"] == 2.0
    assert lines["reload", 10].details["excess_bytes"] == 65536
    assert lines["spill", 20].details["bytes"] == 2 * 32768
    assert found.lines[0].file == "/src/kernel.py"


def test_no_excess_is_said_out_loud():
    profile = profile_of([(0, 100, 65536, "x", "[[INPUT]]", "[SB]", 128, 1)], [("x", "IN", 65536)])
    found = one(profile, "redundant_dma_transfers")
    assert (found.ran, found.found, found.lines) == (True, False, ())
    assert "no excess" in found.reason


def test_a_window_cannot_say_what_is_needed():
    found = one(LOADED_TWICE, "redundant_dma_transfers", span=(0, 3000))
    assert (found.ran, found.found) == (False, False)
    assert "within a window" in found.reason


def test_dma_efficiency_groups_by_line_and_flags_small_descriptors():
    found = one(LOADED_TWICE, "dma_efficiency")
    assert found.found
    assert found.metrics["achieved_bytes_per_s"] == pytest.approx(327680 / 6000e-9)
    assert found.cost_s == pytest.approx(6000e-9 - 327680 / 435e9)
    line = next(line for line in found.lines if line.line == 10)
    assert line.count == 2
    assert line.details["direction"] == "load"
    assert line.details["descriptor_bytes"] == 512
    assert line.details["small"]
    assert line.details["share_of_bytes"] == pytest.approx(131072 / 327680)
    store = next(line for line in found.lines if line.line == 30)
    assert (store.details["direction"], store.details["descriptor_bytes"]) == ("store", 512)


def test_efficient_transfers_are_no_finding():
    size = round(435e9 * 1e-6)  # one microsecond at peak
    profile = profile_of([(0, 1000, size, "x", "[[INPUT]]", "[SB]", 128, 1)], [("x", "IN", size)])
    found = one(profile, "dma_efficiency")
    assert (found.ran, found.found) == (True, False)
    assert "under 5 %" in found.reason


def test_lines_are_unknown_without_aggregated_transfers_and_the_gap_is_still_measured():
    tables = {key: value for key, value in LOADED_TWICE.tables.items() if key not in ("DmaPacketAggregated", "Flow")}
    found = one(Profile("p", tables), "dma_efficiency")
    assert (found.ran, found.found, found.lines) == (True, True, ())
    assert any("NEURON_RT_ENABLE_DGE_NOTIFICATIONS" in note for note in found.notes)


def test_incomplete_attribution_is_said():
    tables = dict(LOADED_TWICE.tables)
    tables["DmaPacketAggregated"] = tables["DmaPacketAggregated"].slice(0, 3)
    found = one(Profile("p", tables), "dma_efficiency")
    assert found.coverage == pytest.approx(3 * 65536 / 327680)
    assert any("leave 40.0% out" in note for note in found.notes)


def test_transposes_by_line():
    found = one(made.worked_example(), "redundant_te_transposes")
    assert found.found
    assert found.cost_s == pytest.approx(33_554_432 / 78.6432e12)
    assert [(line.line, line.count, line.details["share"]) for line in found.lines] == [(31, 8, 1.0)]
    assert found.metrics["transpose_share"] == pytest.approx(33_554_432 / 234_881_024)


def test_no_transposes():
    rows = [made.matmul(0, 128, 128, 512)]
    found = one(
        Profile("p", {"Instruction": made.instructions(rows), "Metadata": schema.build("Metadata", made.METADATA)}),
        "redundant_te_transposes",
    )
    assert (found.ran, found.found, found.reason) == (True, False, "no transpose on the Tensor Engine")


def test_small_tiles_by_line_and_size():
    rows = [made.matmul(i * 300, 128, 128, 512, line=20, id=i) for i in range(4)]
    rows += [made.matmul(2000 + i * 300, 32, 128, 512, line=22, id=10 + i) for i in range(4)]
    tables = {"Instruction": made.instructions(rows), "Metadata": schema.build("Metadata", made.METADATA)}
    found = one(Profile("p", tables), "te_inefficiency")
    assert found.found
    total = 4 * 2 * 128 * 128 * 512 + 4 * 2 * 32 * 128 * 512
    assert found.metrics["undersized_flops_share"] == pytest.approx(4 * 2 * 32 * 128 * 512 / total)
    tiles = {
        line.line: (line.details["k"], line.details["m"], line.details["n"], line.details["undersized"])
        for line in found.lines
    }
    assert tiles == {20: (128, 128, 512, False), 22: (32, 128, 512, True)}


@pytest.mark.parametrize(
    ("operands", "tile"),
    [
        (
            "S[5] (Tensor)++@complete acc_flags=3 src=bfloat16@0x37e00[1,0,0][128,1,1] dst=0x2000000[1,0,0][128,1,1] 128*64 ",
            (128, 64, 128),
        ),
        (
            "acc_flags=1 fp32_mode=LOW_HIGH src=float32@0x0[1,4,0][16,32,1] dst=0x0[1,0,0][512,1,1] 32*128",
            (32, 128, 512),
        ),
        ("nonsense", None),
        ("", None),
        ("src=bfloat16@0x0[1][512] 128", None),
    ],
)
def test_tiles_are_read_from_the_operands(operands, tile):
    assert decode_tile(operands) == tile


def test_undecodable_operands_count_as_unknown():
    rows = [made.matmul(0, 128, 128, 512), made.matmul(300, 128, 128, 512, id=1) | {"operands": "new format"}]
    found = one(
        Profile("p", {"Instruction": made.instructions(rows), "Metadata": schema.build("Metadata", made.METADATA)}),
        "te_inefficiency",
    )
    assert found.metrics["undecoded"] == 1
    assert any("could not be decoded" in note for note in found.notes)


def test_late_matmuls_after_a_dma_are_counted_and_marked_experimental():
    aggregated, triggers, flow = transfers((0, 5000, 65536, "x", "[[INPUT]]", "[SB]", 128, 10))
    rows = [made.matmul(100, 128, 128, 512, id=50, line=20), made.matmul(5100, 128, 128, 512, id=51, line=20)]
    edge = schema.build(
        "Flow", {"in_id": [1000], "out_id": [51], "in_table": ["DmaPacketAggregated"], "out_table": ["Instruction"]}
    )
    import pyarrow as pa

    profile = Profile(
        "p",
        {
            "Metadata": schema.build("Metadata", made.METADATA),
            "DmaPacket": made.packets((0, 5500, 65536, "hardware_dynamic")),
            "DmaPacketAggregated": aggregated,
            "Instruction": made.instructions([*triggers, *rows]),
            "Flow": pa.concat_tables([flow, edge]),
        },
    )
    found = one(profile, "te_dma_pipelining")
    assert found.experimental
    assert found.metrics["excess_s"] == pytest.approx((5000 - 512 / 2.4) / 1e9)
    assert found.metrics["after_dma_s"] == found.metrics["excess_s"]
    assert [(line.line, line.count) for line in found.lines] == [(20, 1)]


def reused(*kinds: str) -> Profile:
    """A tile read until 5000 ns, and a write to it at 5000 that had everything else at 1000; edges of these kinds."""
    rows = [
        made.matmul(0, 128, 128, 512, id=1, line=9) | {"engine": "vector", "start_ts": 0, "end_ts": 1000},
        made.matmul(0, 128, 128, 512, id=2, line=10) | {"engine": "scalar", "start_ts": 0, "end_ts": 5000},
        made.matmul(0, 128, 128, 512, id=3, line=20) | {"engine": "vector", "start_ts": 5000, "end_ts": 6000},
    ]
    edges = schema.build(
        "Flow",
        {
            "in_id": [1, 2],
            "out_id": [3, 3],
            "in_table": ["Instruction"] * 2,
            "out_table": ["Instruction"] * 2,
            "dependency_type": list(kinds),
        },
    )
    tables = {
        "Instruction": made.instructions(rows),
        "Flow": edges,
        "Metadata": schema.build("Metadata", made.METADATA),
    }
    return Profile("p", tables)


@pytest.mark.parametrize("kind", ["ANTI", "ANTI_DEPENDENCE", "OUTPUT_DEPENDENCE"])
def test_a_wait_for_a_tile_still_in_use_is_found_with_both_lines(kind):
    found = one(reused("FLOW", kind), "tile_reuse")
    assert found.found
    assert found.cost_s == pytest.approx(4e-6)
    assert found.metrics["vector_wait_s"] == pytest.approx(4e-6)
    [line] = found.lines
    assert line.line == 20
    assert line.details["waited_for"].endswith(":10")


def test_a_wait_for_data_is_no_reuse_and_unknown_kinds_are_said():
    assert not one(reused("FLOW", "FLOW"), "tile_reuse").found
    assert not one(reused("ANTI", "FLOW_DEPENDENCE"), "tile_reuse").found
    untold = one(reused("", ""), "tile_reuse")
    assert not untold.ran
    assert "which kind" in untold.reason


def test_all_run_on_an_empty_instruction_table_and_say_why_not():
    profile = Profile(
        "p", {"ActiveTime": made.active(("vector", 0, 10)), "DmaPacket": made.packets((0, 10, 64, "data"))}
    )
    for found in profiles.investigate(profile):
        assert not found.found
        assert found.reason
        assert found.document()["cost_s"] is None or found.document()["cost_s"] >= 0


def test_the_bottleneck_comes_first_and_the_rest_is_listed():
    found = profiles.investigate(LOADED_TWICE)
    assert [item.name for item in found][:2] == ["dma_efficiency", "redundant_dma_transfers"]
    assert len(found) == len(investigations.names())


def test_unknown_investigation():
    with pytest.raises(InputError, match="no investigation 'nosuch'"):
        profiles.investigate(LOADED_TWICE, ["nosuch"])


def test_cli_investigate_json(cli, tmp_path):
    import json

    profiles.save(LOADED_TWICE, "k", tmp_path)
    code, out, _ = cli("profile", "investigate", "k", "--data-path", tmp_path, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["profile"] == "k"
    for item in document["investigations"]:
        assert set(item) >= {"name", "ran", "reason", "found", "cost_s", "lines"}
        for line in item["lines"]:
            assert set(line) >= {"file", "line", "cost_s", "count"}
