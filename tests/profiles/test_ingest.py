"""Bringing profiles in: every kind of source, damaged ones, and what the device tool's wrapper does."""

import gzip
import json
import os
import sqlite3
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from tests.profiles import made

from vibeserve import profiles
from vibeserve.base.errors import InputError, MissingError
from vibeserve.profiles import summary


def legacy_document():
    """A capture in the device tool's older form, small enough to check by hand."""
    return {
        "profile_info": [{"profiler_version": "2.28", "neff_name": "k.neff", "ntff_filename": "/home/x/k.ntff"}],
        "metadata": [
            {
                "pe_num_rows": 128, "pe_num_cols": 128, "pe_clock_freq": 2.4, "pe_clock_others": 1.2, "first_hw_timestamp": 0,
                "last_hw_timestamp": 2000, "dma_ddr_bandwidth": 435e9, "hbm_ddr_bandwidth": 716e9, "num_physical_cores": 1,
                "first_ts": "a", "last_ts": "b", "is_simulation": False, "ntff_version": 6, "ticks_per_nanosec": 1000,
                "vnc_enabled": False,
            }
        ],
        "instruction": [
            {
                "id": 7, "subgroup": "Tensor", "label": "TensorMatrix", "opcode": "MATMUL", "timestamp": 1000, "duration": 264,
                "subgraph": "sg00", "instruction_type": "TRANSPOSE", "elements": 128**3, "bir_id": "sg0000:1", "pc": 3,
                "operands": "src=bfloat16@0x0[1,0,0][128,1,1] dst=0x0[1,0,0][128,1,1] 128*128 ", "evt_wait_time": 30,
                "predecessors": [{"id": 5, "type": "FLOW_DEPENDENCE"}], "crc_in": 1, "crc_out": 2, "hlo_name": "",
            },
            {
                "id": 5, "subgroup": "Sync", "opcode": "DMA_DIRECT2D", "timestamp": 0, "duration": 50, "subgraph": "sg00",
                "instruction_type": "REGULAR", "bir_id": "sg0000:0", "pc": 1, "operands": "", "evt_wait_time": 0,
                "hbm_read_bytes": 32768,
            },
        ],
        "dma": [
            {
                "id": 1, "timestamp": 100, "duration": 210, "transfer_size": 4096, "read_size": 4096, "write_size": 4096,
                "transfer_rate": 1.9e10, "queue_type": "software_dynamic", "packet_aggregation_id": 9, "packet_idx": 0,
                "dma_engine": "64", "dma_queue": "0", "subgroup": "Q0-E64", "variable": "unknown", "subgraph": "sg00",
                "crc": 5, "source": [["unknown"]], "dest": ["unknown"],
            }
        ],
        "active_time": [{"engine": "tensor", "start_ts": 1000, "end_ts": 1264, "duration_ns": 264, "pcore_idx": 0, "subgraph": "sg00"}],
        "neff_node": [
            {"type": "", "variable_name": "", "sg_name": "sg00", "format": "", "shape": "", "node": "3"},
            {"type": "IN", "variable_name": "x", "size": "32768", "shape": "[128 128]", "format": "NC", "sg_name": ""},
        ],
        "summary": [{"total_time": 2e-6, "hardware_flops": 2 * 128**3, "transpose_flops": 2 * 128**3}],
        "warnings": [{"category": "Missing Data", "message": "no DGE notices"}],
        "ham": [{"subgraph": "sg00", "timestamp": 10, "k": 4, "n": 8, "type": 1, "duration": 100}],
        "semaphore_update": [{"subgraph": "sg00", "timestamp": 3, "value": 1, "id": "2"}],
        "instruction_usage": [{"type": "sb", "timestamp": 4, "usage_avg": 0.5, "partition_0_usage": 0.5, "subgraph": "sg00"}],
        "dma_throughput": [
            {"timestamp": 47, "transfer_rate": 7e9, "total_transfer_bytes": 16384, "hbm_transfer_rate": 0, "hbm_total_transfer_bytes": 0, "uses_hbm": "false", "subgraph": "sg00"}
        ],
    }  # fmt: skip


@pytest.mark.parametrize("zipped", [False, True])
def test_the_older_one_object_json(tmp_path, zipped):
    data = json.dumps(legacy_document()).encode()
    source = tmp_path / ("capture.json.gz" if zipped else "capture.json")
    source.write_bytes(gzip.compress(data) if zipped else data)
    stored = profiles.ingest(source, "cap", data_path=tmp_path, note="first")
    row = next(row for row in stored.table("Instruction").to_pylist() if row["id"] == 7)
    assert (row["engine"], row["opcode"], row["start_ts"], row["end_ts"], row["duration_ns"]) == (
        "Tensor",
        "MATMUL",
        1000,
        1264,
        264,
    )
    assert (row["pcore_idx"], row["raw_flops"], row["tensor_instruction_type"]) == (0, 2 * 128**3, "TRANSPOSE")
    assert stored.table("Flow").to_pylist()[0] | {"gap_time": None} == {
        "in_id": 5, "out_id": 7, "in_table": "Instruction", "out_table": "Instruction", "dependency_type": "FLOW_DEPENDENCE",
        "gap_time": None,
    }  # fmt: skip
    packet = stored.first("DmaPacket")
    assert (packet["engine_idx"], packet["queue_name"], packet["end_ts"], packet["transfer_bytes"]) == (
        64,
        "Q0-E64",
        310,
        4096,
    )
    assert stored.first("Metadata")["tensor_engine_clock_freq"] == 2.4
    assert stored.first("Throttle")["type"] == "activity_1"
    assert stored.first("SbufUsage")["partition_0_util_percent"] == 0.5
    assert profiles.metrics(stored)["latency"] == pytest.approx(2e-3)
    assert stored.info["note"] == "first"
    assert profiles.bounds(stored).value("compute_bound") == 0.0  # the window is that of the DMA packet


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.json", b"not json", "is not JSON"),
        ("x.json", b'{"a": 1}', "JSON of no kind"),
        ("x.json", b"[]", "holds no kernel"),
        ("x.json", b"[" * 100_000, "is not JSON"),
        ("x.json.gz", gzip.compress(b"{}", mtime=0)[:-6], "is damaged"),
        ("x.json", b'{"metadata": [{}], "instruction": [{"id": "x"}]}', "damaged"),
        ("x.json", b'{"metadata": [{}], "instruction": [5]}', "damaged"),
        ("x.csv", b"a,b\n1,2\n", "is not ncu's CSV"),
        ("x.sqlite", b"SQLite format 3\x00garbage", "is not an nsys export"),
    ],
)
def test_damaged_sources_leave_the_old_profile(tmp_path, name, data, message):
    profiles.save(made.worked_example(), "k", tmp_path)
    source = tmp_path / name
    source.write_bytes(data)
    with pytest.raises(InputError, match=message):
        profiles.ingest(source, "k", data_path=tmp_path)
    assert profiles.open("k", tmp_path).rows("Instruction") == 20


def test_a_truncated_parquet_file_is_named(tmp_path):
    folder = tmp_path / "tool"
    folder.mkdir()
    pq.write_table(made.worked_example().table("DmaPacket"), folder / "DmaPacket.parquet")
    whole = (folder / "DmaPacket.parquet").read_bytes()
    for cut in (3, 40, len(whole) // 2, len(whole) - 5):
        (folder / "DmaPacket.parquet").write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"DmaPacket\.parquet .* cannot be read"):
            profiles.ingest(folder, "k", data_path=tmp_path)
    (folder / "DmaPacket.parquet").write_bytes(whole)
    assert profiles.ingest(folder, "k", data_path=tmp_path).rows("DmaPacket") == 7


def test_nothing_there(tmp_path):
    with pytest.raises(InputError, match="no such profile source"):
        profiles.ingest(tmp_path / "x", "k", data_path=tmp_path)
    with pytest.raises(InputError, match="no parquet file"):
        profiles.ingest(tmp_path, "k", data_path=tmp_path)


def test_summary_json_by_node(tmp_path):
    source = tmp_path / "metrics.json"
    source.write_text(json.dumps({"n_abc": {"total_time": 3.8e-5, "hbm_read_bytes": 100, "throttle_x": 0.5}}))
    stored = profiles.ingest(source, "s", data_path=tmp_path)
    metrics = profiles.metrics(stored)
    assert metrics["total_time"] == 3.8e-5
    assert metrics["latency"] == pytest.approx(0.038)
    assert metrics["throttle_x"] == 0.5


def chrome_events():
    return [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}},
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": "aten::mm",
            "ts": 0.0,
            "dur": 50.0,
            "pid": 1,
            "tid": 2,
            "args": {"External id": 4},
        },
        {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "ts": 10.0,
            "dur": 5.0,
            "pid": 1,
            "tid": 2,
            "args": {"correlation": 9},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "gemm",
            "ts": 20.0,
            "dur": 30.0,
            "pid": 0,
            "tid": 7,
            "args": {"stream": 7, "device": 0, "correlation": 9},
        },
        {
            "ph": "X",
            "cat": "kernel",
            "name": "relu",
            "ts": 40.0,
            "dur": 20.0,
            "pid": 0,
            "tid": 8,
            "args": {"stream": 8, "device": 0},
        },
        {
            "ph": "X",
            "cat": "gpu_memcpy",
            "name": "Memcpy HtoD",
            "ts": 0.0,
            "dur": 8.0,
            "pid": 0,
            "tid": 7,
            "args": {"stream": 7, "bytes": 4096, "device": 0},
        },
        {"ph": "B", "cat": "cpu_op", "name": "outer", "ts": 60.0, "pid": 1, "tid": 2},
        {"ph": "E", "ts": 70.0, "pid": 1, "tid": 2},
    ]


@pytest.mark.parametrize("wrapped", [True, False])
def test_chrome_traces_answer_the_same_questions(tmp_path, wrapped):
    source = tmp_path / "trace.json"
    source.write_text(json.dumps({"traceEvents": chrome_events()} if wrapped else chrome_events()))
    stored = profiles.ingest(source, "gpu", data_path=tmp_path)
    held = profiles.bounds(stored)
    assert held.total_time_s == 70e-6
    assert held.engines["gpu"] == 40e-6  # [20,50) and [40,60) together
    assert held.engines["memcpy"] == 8e-6
    assert held.engines["cpu"] == 60e-6
    assert held.bottleneck == ("cpu",)
    edge = stored.first("Flow")
    assert (edge["dependency_type"], edge["gap_time"]) == ("LAUNCH", 5000)
    assert all(not item.found for item in profiles.investigate(stored))


def test_nsys_exports(tmp_path):
    source = tmp_path / "report.sqlite"
    with sqlite3.connect(source) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        db.execute("INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel')")
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
            "correlationId INTEGER, shortName INTEGER, gridX INT, gridY INT, gridZ INT, blockX INT, blockY INT, blockZ INT)"
        )
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 1500, 0, 7, 3, 1, 8, 1, 1, 256, 1, 1)")
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INT, streamId INT, correlationId INT, bytes INT, copyKind INT)"
        )
        db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1400, 1700, 0, 7, 4, 8192, 1)")
    db.close()
    stored = profiles.ingest(source, "n", data_path=tmp_path)
    rows = stored.table("Instruction").to_pylist()
    assert [(row["engine"], row["opcode"], row["start_ts"]) for row in rows] == [
        ("gpu", "gemm", 0),
        ("memcpy", "Memcpy HtoD", 400),
    ]
    assert rows[0]["operands"] == "grid=[8,1,1] block=[256,1,1]"
    assert "not verified on hardware" in stored.info["verified"]


def test_ncu_csv(tmp_path):
    source = tmp_path / "ncu.csv"
    source.write_text(
        '==PROF== Connected\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"\n'
        '"0","gemm","gpu__time_duration.sum","usecond","12.5"\n"0","gemm","dram__bytes_read.sum","Mbyte","1.5"\n'
        '"1","relu","gpu__time_duration.sum","nsecond","1,000"\n'
    )
    stored = profiles.ingest(source, "c", data_path=tmp_path)
    rows = stored.table("Instruction").to_pylist()
    assert [(row["opcode"], row["duration_ns"], row["hbm_read_bytes"]) for row in rows] == [
        ("gemm", 12500, 1_500_000),
        ("relu", 1000, None),
    ]


FAKE_TOOL = """#!/usr/bin/env python3
import os, pathlib, shutil, sys
args = dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert sys.argv[1] == "view" and "--ingest-only" in sys.argv, sys.argv
mode = os.environ.get("FAKE_MODE", "good")
out = pathlib.Path(args["--data-path"]) / "profiles" / "global" / (args["--display-name"] + "@latest")
if mode != "broken":
    shutil.copytree(os.environ["FAKE_PARQUET"], out)
    print("Processing for " + args["--display-name"] + " is complete")
if mode != "good":
    print("listen tcp 127.0.0.1:3002: bind: address already in use", file=sys.stderr)
    sys.exit(1)
"""


@pytest.fixture
def device_tool(tmp_path, monkeypatch):
    folder = tmp_path / "parquet"
    folder.mkdir()
    for name in ("Instruction", "DmaPacket"):
        pq.write_table(made.worked_example().table(name), folder / f"{name}.parquet")
    tool = tmp_path / "bin" / "neuron-explorer"
    tool.parent.mkdir()
    tool.write_text(FAKE_TOOL)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_PARQUET", str(folder))
    (tmp_path / "k.neff").write_bytes(b"neff")
    (tmp_path / "profile_exec_2.ntff").write_bytes(b"ntff")
    return tmp_path


@pytest.mark.parametrize(("mode", "rows"), [("good", 20), ("port", 20)])
def test_neff_and_ntff_by_the_device_tool(device_tool, monkeypatch, mode, rows):
    monkeypatch.setenv("FAKE_MODE", mode)
    stored = profiles.ingest(device_tool / "k.neff", "k", ntff=device_tool / "profile.ntff", data_path=device_tool)
    assert stored.rows("Instruction") == rows
    assert "is complete" in stored.info["messages"]
    assert "profile_exec_2.ntff" in stored.info["source"]  # what capture with --profile-nth-exec=2 really writes


def test_a_failed_device_tool_is_never_reported_as_the_new_profile(device_tool, monkeypatch):
    profiles.save(made.synthetic(10, 5), "k", device_tool)
    monkeypatch.setenv("FAKE_MODE", "broken")
    with pytest.raises(InputError, match=r"neuron-explorer failed \(exit 1\): .*address already in use"):
        profiles.ingest(device_tool / "k.neff", "k", ntff=device_tool / "profile.ntff", data_path=device_tool)
    assert profiles.open("k", device_tool).rows("Instruction") == 10


def test_without_the_device_tool_the_commands_are_told(tmp_path, monkeypatch, cli):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "k.neff").write_bytes(b"neff")
    (tmp_path / "p.ntff").write_bytes(b"ntff")
    with pytest.raises(MissingError, match="neuron-explorer is not installed") as caught:
        profiles.ingest(tmp_path / "k.neff", "k", ntff=tmp_path / "p.ntff", data_path=tmp_path)
    assert "--ingest-only" in caught.value.hint
    code, out, _ = cli(
        "profile", "ingest", "-n", tmp_path / "k.neff", "-s", tmp_path / "p.ntff", "--display-name", "k", "--json"
    )
    assert code == 3
    assert json.loads(out)["error"]["code"] == "missing"


def captures():
    folder = os.environ.get("VIBESERVE_DEVICE_PROFILES")
    return sorted(Path(folder).glob("*.json.gz")) if folder else []


@pytest.mark.skipif(not captures(), reason="not run: VIBESERVE_DEVICE_PROFILES names no folder of captures")
def test_real_captures_hold_the_summary_relations(tmp_path):
    """What is computed from the tables equals what the device tool wrote into Summary, within its rounding to whole ns."""
    for source in captures():
        stored = profiles.ingest(source, "cap", data_path=tmp_path)
        stated, computed = stored.first("Summary"), summary.compute(stored)
        exact = ("hardware_flops", "transpose_flops", "hbm_read_bytes", "hbm_write_bytes", "matmul_instruction_count")
        for key in exact:
            assert computed[key] == stated[key], (source.name, key)
        for key in (
            "dma_active_time",
            "total_active_time",
            *(f"{engine}_engine_active_time" for engine in summary.ENGINES),
        ):
            assert computed[key] == pytest.approx(stated[key], abs=20e-9), (source.name, key)
        for key in (
            "mm_arithmetic_intensity",
            "mfu_estimated_percent",
            "hfu_estimated_percent",
            "mbu_estimated_percent",
        ):
            assert computed[key] == pytest.approx(stated[key], rel=1e-4), (source.name, key)
        assert computed["dynamic_dma_size_percent"] == pytest.approx(stated["dynamic_dma_size_percent"], rel=1e-9)
        for key in ("event_count", "trace_count"):  # the tool counts a few rows that it does not write
            assert 0 <= stated[key] - computed[key] <= 14, (source.name, key)
        held = profiles.bounds(stored)
        assert (
            0
            < held.value("memory_bound_ideal_no_reloads")
            <= held.value("memory_bound_ideal")
            < held.value("memory_bound")
        )
        assert held.value("memory_bound") < held.total_time_s < stated["total_time"]
        transposes = next(item for item in profiles.investigate(stored) if item.name == "redundant_te_transposes")
        assert transposes.metrics["transpose_flops"] == 83886080
        assert sum(line.count for line in transposes.lines) == 20
