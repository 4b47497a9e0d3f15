"""Hostile queries: none reads a file or a setting, writes, hangs or takes the memory."""

import time

import pytest
from tests.profiles import made

from vibeserve import profiles
from vibeserve.base.errors import InputError

SECRET = "the-secret-of-another-file"

REFUSED = [
    # files by function
    "SELECT * FROM read_text('{secret}')",
    "SELECT content FROM read_blob('{secret}')",
    "SELECT * FROM read_csv('{secret}', header=false)",
    "SELECT * FROM read_csv_auto('{secret}')",
    "SELECT * FROM read_json('{secret}')",
    "SELECT * FROM read_json_auto('{secret}')",
    "SELECT * FROM read_ndjson('{secret}')",
    "SELECT * FROM read_parquet('{folder}/Instruction.parquet')",
    "SELECT * FROM parquet_scan('{folder}/Instruction.parquet')",
    "SELECT * FROM parquet_metadata('{folder}/Instruction.parquet')",
    "SELECT * FROM parquet_schema('{folder}/Instruction.parquet')",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM sniff_csv('{secret}')",
    "SELECT (SELECT content FROM read_text('{secret}'))",
    "SELECT * FROM (SELECT * FROM read_text('{secret}')) t",
    "WITH t AS (SELECT * FROM read_text('{secret}')) SELECT * FROM t",
    "SELECT * FROM Instruction WHERE opcode IN (SELECT content FROM read_text('{secret}'))",
    "SELECT * FROM Instruction ORDER BY (SELECT content FROM read_text('{secret}'))",
    "SELECT count(*) FILTER (WHERE EXISTS (FROM read_text('{secret}'))) FROM Instruction",
    "SELECT * FROM Instruction, LATERAL (SELECT * FROM read_text('{secret}'))",
    "SELECT * FROM Instruction UNION ALL BY NAME SELECT * FROM read_text('{secret}')",
    # quoted paths as tables
    "SELECT * FROM '{secret}'",
    'SELECT * FROM "{secret}"',
    "SELECT * FROM '{folder}/Instruction.parquet'",
    "SELECT * FROM '{folder}/../*/Instruction.parquet'",
    "SELECT * FROM 'Instruction.parquet'",
    "FROM '{secret}'",
    "DESCRIBE SELECT * FROM '{secret}'",
    "SUMMARIZE SELECT * FROM '{secret}'",
    "SELECT * FROM 'https://example.com/x.csv'",
    "SELECT * FROM 's3://bucket/x.parquet'",
    # more than one statement, or another kind
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW Instruction",
    "",
    ";",
    "-- nothing",
    "COPY Instruction TO '{secret}.out'",
    "COPY (SELECT 1) TO '{folder}/x.csv'",
    "EXPORT DATABASE '{folder}'",
    "ATTACH '{secret}' AS x",
    "DETACH memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "SET threads=1",
    "RESET ALL",
    "SET enable_external_access=true",
    "CREATE TABLE x AS SELECT 1",
    "CREATE MACRO f() AS 1",
    "DROP VIEW Instruction",
    "DELETE FROM Instruction",
    "UPDATE Instruction SET pc=0",
    "INSERT INTO Instruction SELECT * FROM Instruction",
    "EXPLAIN ANALYZE SELECT 1",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "VACUUM",
    "CHECKPOINT",
    "BEGIN",
    "USE memory",
    "/* SELECT */ COPY Instruction TO 'x'",
    "SELECT 1 /* ; */ ; ATTACH 'x'",
    # catalogs, settings, environment
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM pg_catalog.pg_tables",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM pragma_database_list()",
    "SELECT current_setting('allowed_directories')",
    "SELECT getenv('HOME')",
    "SELECT getvariable('x')",
    "SHOW ALL TABLES",
    "SHOW DATABASES",
    "SELECT * FROM system.main.duckdb_settings()",
    "SELECT * FROM temp.main.Instruction",
    "SELECT * FROM query('SELECT 1')",
    "SELECT * FROM query_table('Instruction')",
    "SELECT * FROM json_execute_serialized_sql('x')",
    "SELECT nextval('x')",
    # unicode and broken text
    "SELECT * FROM ＲＥＡＤ_ＴＥＸＴ('x')",
    "SELECT\u2028* FROM read_text('{secret}')",
    "SELECT * FROM \"read_text\"('{secret}')",
    "SELECT * FROM main.read_text('{secret}')",
    "SELECT '\x00'",
    "\ufeffCOPY Instruction TO 'x'",
    "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "SELECT " + " + ".join(["1"] * 60000),
    # growth
    "SELECT repeat('x', 2000000000)",
    "SELECT lpad('x', 2000000000, 'y')",
    "SELECT range(10000000000)",
    "SELECT count(*) FROM range(1000000000000)",
    "SELECT repeat(opcode, id * 1000000) FROM Instruction",
]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("guard")
    secret = path / "secret.txt"
    secret.write_text(SECRET)
    profiles.save(made.worked_example(), "k", path)
    return profiles.open("k", path), secret


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:60])
def test_refused(stored, text):
    profile, secret = stored
    before = sorted(path.name for path in secret.parent.rglob("*"))
    query = text.replace("{secret}", str(secret)).replace("{folder}", str(profile.directory))
    with pytest.raises(InputError) as caught:
        profiles.query(profile, query, profiles.Limits(seconds=5))
    assert SECRET not in caught.value.message
    assert sorted(path.name for path in secret.parent.rglob("*")) == before
    assert profiles.query(profile, "SELECT count(*) FROM Instruction").rows == [(20,)]


@pytest.mark.parametrize(
    "text",
    [
        "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
        "SELECT sum(hash("
        + ", ".join(f"t{i}.id" for i in range(10))
        + ")) FROM "
        + ", ".join(f"Instruction t{i}" for i in range(10)),
        "SELECT list_sum(list_transform(range(10000000), lambda x: sqrt(x))) FROM Instruction a, Instruction b",
    ],
    ids=["recursive", "cross join", "lambda"],
)
def test_long_ones_are_stopped(stored, text):
    start = time.monotonic()
    with pytest.raises(InputError) as caught:
        profiles.query(stored[0], text, profiles.Limits(seconds=0.5, memory_bytes=256 * 2**20))
    assert caught.value.code in ("query-timeout", "query-memory")
    assert time.monotonic() - start < 60  # it ends: this is no measurement


def test_many_rows_are_cut_with_a_notice(stored):
    result = profiles.query(stored[0], "SELECT * FROM range(100000)", profiles.Limits(rows=1000))
    assert len(result.rows) == 1000
    assert result.truncated
    assert result.document()["truncated"] is True


def test_long_values_are_cut_with_a_notice(stored):
    result = profiles.query(stored[0], "SELECT repeat('x', 9000) AS t", profiles.Limits(value_characters=100))
    assert result.rows[0][0] == "x" * 100 + "… (9000 characters)"


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT count(*) FROM Instruction", [(20,)]),
        ("select COUNT(*) from instruction", [(20,)]),
        ("SELECT count(*) FROM main.Instruction;", [(20,)]),
        ("FROM (SELECT 1 AS a) SELECT a + 1", [(2,)]),
        ("WITH t AS (SELECT DISTINCT opcode FROM Instruction) SELECT * FROM t", [("MATMUL",)]),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 5) SELECT sum(n) FROM t", [(15,)]),
        ("SELECT a.id FROM Instruction a JOIN DmaPacket d ON a.id = d.id WHERE d.transfer_bytes = 4", [(6,)]),
        ("SELECT * FROM (VALUES (1), (2)) v(x)", [(1,), (2,)]),
        ("SELECT sum(x) FROM generate_series(1, 4) t(x)", [(10,)]),
        ("SELECT unnest([1, 2])", [(1,), (2,)]),
        ("SELECT 0.0 / 0.0, 1e308 * 10", [(None, None)]),
        ("SELECT 'read_text(''/etc/passwd'')'", [("read_text('/etc/passwd')",)]),
        ("SELECT row_number() OVER (ORDER BY id) FROM Instruction ORDER BY 1 LIMIT 1", [(1,)]),
    ],
)
def test_what_a_user_needs_runs(stored, text, rows):
    assert profiles.query(stored[0], text).rows == rows


def test_twin_columns_get_names_of_their_own(stored):
    document = profiles.query(stored[0], "SELECT 1 AS x, 2 AS x, 3 AS x_1").document()
    assert document["data"] == [{"x": 1, "x_2": 2, "x_1": 3}] or len(document["data"][0]) == 3


def test_a_wrong_column_names_the_schema_verb(stored):
    with pytest.raises(InputError, match="nosuch") as caught:
        profiles.query(stored[0], "SELECT nosuch FROM Instruction")
    assert "profile schema k" in caught.value.hint


def test_cli_sql(cli, stored, tmp_path):
    path = stored[1].parent
    code, out, _ = cli(
        "profile", "sql", "k", "SELECT opcode, count(*) AS n FROM Instruction GROUP BY 1", "--data-path", path, "--json"
    )
    assert code == 0
    assert '"rowCount": 1' in out
    code, _, err = cli("profile", "sql", "k", "COPY Instruction TO 'x'", "--data-path", path)
    assert code == 2
    assert err.startswith("error: COPY is not a SELECT\nhint: ")
    assert cli("profile", "sql", "nosuch", "SELECT 1", "--data-path", path)[0] == 2
