"""The store: immutable folders behind a link, two writers, bad names, failed ingests, odd files."""

import json
import subprocess
import sys
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.profiles import made

from vibeserve import profiles
from vibeserve.base.errors import InputError
from vibeserve.profiles import schema, store
from vibeserve.profiles.profile import Profile


def test_saved_profile_is_read_back_as_it_was(tmp_path):
    profiles.save(made.worked_example(), "kernel-a", tmp_path, note="first try")
    again = profiles.open("kernel-a", tmp_path)
    assert again.table("DmaPacket").equals(made.worked_example().table("DmaPacket"))
    assert again.info["note"] == "first try"
    assert (tmp_path / "profiles" / "global" / "kernel-a@latest" / "Instruction.parquet").is_file()
    listed = profiles.list_profiles(tmp_path)
    assert [(item["name"], item["note"]) for item in listed] == [("kernel-a", "first try")]


def test_latest_is_a_link_and_an_open_profile_stays_what_it_was(tmp_path):
    profiles.save(made.worked_example(), "k", tmp_path)
    held = profiles.open("k", tmp_path)
    profiles.save(Profile("k", {"Metadata": schema.build("Metadata", made.METADATA)}), "k", tmp_path)
    assert (store.root(tmp_path) / "k@latest").is_symlink()
    assert held.rows("Instruction") == 20
    assert profiles.open("k", tmp_path).rows("Instruction") == 0


def test_a_failed_save_leaves_the_old_one(tmp_path):
    profiles.save(made.worked_example(), "k", tmp_path)
    bad = Profile("k", {"Instruction": pa.table({"start_ts": ["not a number"], "opcode": ["X"]})})
    with pytest.raises(InputError, match=r"Instruction\.start_ts is string, not int64"):
        profiles.save(bad, "k", tmp_path)
    assert profiles.open("k", tmp_path).rows("Instruction") == 20
    assert len(list(store.root(tmp_path).iterdir())) == 2


def test_unknown_columns_are_kept_and_missing_ones_reported(tmp_path):
    table = (
        made.worked_example().table("DmaPacket").drop_columns(["crc"]).append_column("vendor_extra", pa.array(range(7)))
    )
    stored = profiles.save(Profile("k", {"DmaPacket": table}), "k", tmp_path)
    assert stored.info["missing_columns"] == {"DmaPacket": ["crc"]}
    assert stored.info["extra_columns"] == {"DmaPacket": ["vendor_extra"]}
    assert profiles.query(profiles.open("k", tmp_path), "SELECT sum(vendor_extra) FROM DmaPacket").rows == [(21,)]


def test_split_tables_are_one_table(tmp_path):
    whole = made.worked_example().table("DmaPacket")
    for part, rows in ((0, (0, 3)), (2, (6, 1)), (1, (3, 3))):
        pq.write_table(whole.slice(*rows), tmp_path / f"DmaPacket_{part}.parquet")
    profile = Profile("split", directory=tmp_path)
    assert profile.table_names() == ["DmaPacket"]
    assert profile.rows("DmaPacket") == 7
    assert profile.table("DmaPacket", ["id"]).column("id").to_pylist() == list(range(7))
    assert profiles.query(profile, "SELECT count(*) FROM DmaPacket").rows == [(7,)]


def test_a_plain_folder_of_the_device_tool_is_read_and_kept_on_replacing(tmp_path):
    folder = store.root(tmp_path) / "dev@latest"
    folder.mkdir(parents=True)
    pq.write_table(made.worked_example().table("DmaPacket"), folder / "DmaPacket.parquet")
    assert profiles.open("dev", tmp_path).rows("DmaPacket") == 7
    profiles.save(made.worked_example(), "dev", tmp_path)
    assert profiles.open("dev", tmp_path).rows("Instruction") == 20
    assert any(path.name.startswith("dev@device-") for path in store.root(tmp_path).iterdir())


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "../x", "a\\b", "a b", "-x", ".hidden", "a..b", "x" * 200, "a\n", "ä", "a@b", "a:b", "$(x)"],
)
def test_names_cannot_leave_the_data_path(tmp_path, name):
    for action in (lambda: profiles.save(made.worked_example(), name, tmp_path), lambda: profiles.open(name, tmp_path)):
        with pytest.raises(InputError, match="not a profile name"):
            action()


def test_delete_and_rename(tmp_path):
    profiles.save(made.worked_example(), "a", tmp_path)
    profiles.save(made.worked_example(), "c", tmp_path)
    profiles.rename("a", "b", tmp_path)
    assert [item["name"] for item in profiles.list_profiles(tmp_path)] == ["b", "c"]
    assert profiles.open("b", tmp_path).rows("Instruction") == 20
    with pytest.raises(InputError, match="there is a profile 'c' already"):
        profiles.rename("b", "c", tmp_path)
    profiles.delete("b", tmp_path)
    with pytest.raises(InputError, match="no profile 'b'"):
        profiles.open("b", tmp_path)
    with pytest.raises(InputError, match="no profile 'b'"):
        profiles.delete("b", tmp_path)


def test_readers_never_see_half_a_profile(tmp_path):
    """Two writers replace a profile whose two tables always agree, while a reader looks."""
    profiles.save(_pair(1), "k", tmp_path)
    stop = threading.Event()
    errors: list[str] = []

    def write(first: int) -> None:
        for value in range(first, first + 6):
            profiles.save(_pair(value), "k", tmp_path)

    def read() -> None:
        while not stop.is_set():
            held = profiles.open("k", tmp_path)
            if held.rows("ActiveTime") != held.rows("DmaPacket"):
                errors.append(f"{held.rows('ActiveTime')} against {held.rows('DmaPacket')}")

    reader = threading.Thread(target=read)
    writers = [threading.Thread(target=write, args=(first,)) for first in (1, 30)]
    reader.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    stop.set()
    reader.join()
    assert errors == []
    assert profiles.open("k", tmp_path).rows("ActiveTime") in (6, 35)


def _pair(count: int) -> Profile:
    return Profile(
        "k",
        {
            "ActiveTime": made.active(*(("tensor", i * 10, i * 10 + 5) for i in range(count))),
            "DmaPacket": made.packets(*((i * 10, i * 10 + 5, 64, "data") for i in range(count))),
        },
    )


_WRITER = """
import sys
import pyarrow as pa
from vibeserve import profiles
from vibeserve.profiles import schema
table = schema.build("ActiveTime", {"engine": ["tensor"] * 9, "start_ts": range(9), "end_ts": range(1, 10), "pcore_idx": [0] * 9, "duration_ns": [1] * 9})
for _ in range(5):
    profiles.save(profiles.Profile("k", {"ActiveTime": table}), "k", sys.argv[1])
"""


def test_two_processes_write_the_same_name(tmp_path):
    workers = [subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)]) for _ in range(2)]
    assert [worker.wait(timeout=60) for worker in workers] == [0, 0]
    assert profiles.open("k", tmp_path).rows("ActiveTime") == 9


def test_cli_list_delete_rename(cli, tmp_path):
    profiles.save(made.worked_example(), "a", tmp_path)
    code, out, _ = cli("profile", "list", "--data-path", tmp_path, "--json")
    assert code == 0
    assert set(json.loads(out)["profiles"][0]) >= {"name", "path", "source", "created", "note"}
    assert cli("profile", "rename", "a", "b", "--data-path", tmp_path)[0] == 0
    assert cli("profile", "delete", "a", "--data-path", tmp_path)[0] == 2
    assert cli("profile", "delete", "b", "--data-path", tmp_path)[0] == 0


@pytest.mark.parametrize("text", ["", "[1]", "{", "[" * 100_000, "\x00"])
def test_a_damaged_info_hides_neither_the_profile_nor_the_others(cli, tmp_path, text):
    profiles.save(made.worked_example(), "good", tmp_path)
    saved = profiles.save(made.worked_example(), "hurt", tmp_path)
    (saved.directory / "profile.json").write_text(text)
    (saved.directory / "sources.json").write_text(text)
    code, out, _ = cli("profile", "list", "--json", "--data-path", tmp_path)
    assert (code, [item["name"] for item in json.loads(out)["profiles"]]) == (0, ["good", "hurt"])
    assert json.loads(out)["profiles"][1]["source"].startswith("unknown: profile.json cannot be read")
    code, out, _ = cli(
        "profile", "sql", "hurt", "select count(*) as n from DmaPacket", "--json", "--data-path", tmp_path
    )
    assert (code, json.loads(out)["data"]) == (0, [{"n": made.worked_example().rows("DmaPacket")}])
    assert cli("profile", "compare", "good", "hurt", "--data-path", tmp_path)[0] == 0
