"""The pages of `profile serve`: every page has a JSON twin at the same address with `.json`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from vibeserve.base.errors import InputError
from vibeserve.profiles import pages, sql, store
from vibeserve.profiles.analysis import analyze
from vibeserve.profiles.profile import Profile
from vibeserve.profiles.web import guards, handlers, json_response
from vibeserve.report import Block, Callout, Field, Form, Link, Section, Table, Text, page

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

_ROWS = 100


def site(data_path: Path | str | None) -> Starlette:
    """The pages as an ASGI application."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.routing import Route

    def route(path: str, build: Any) -> list[Route]:
        async def answer(request: Request) -> Response:
            return await run_in_threadpool(_answer, build, data_path, request)

        return [Route(path, answer), Route("/index.json" if path == "/" else f"{path}.json", answer)]

    # The JSON twins come first: a profile's name may hold a dot.
    found = [
        *route("/", _home),
        *route("/p/{name}/t/{table}", _table),
        *route("/p/{name}/sql", _sql),
        *route("/p/{name}", _profile),
    ]
    found.sort(key=lambda item: not item.path.endswith(".json"))
    return Starlette(routes=found, exception_handlers=handlers(), middleware=guards())


def _answer(build: Any, data_path: Path | str | None, request: Request) -> Response:
    from starlette.responses import HTMLResponse

    document, make_page = build(data_path, request)
    if request.url.path.endswith(".json"):
        return json_response(document)
    return HTMLResponse(make_page())


def _home(data_path: Path | str | None, request: Request) -> tuple[Any, Any]:
    found = store.list_profiles(data_path)

    def make() -> str:
        rows: list[list[Any]] = [
            [Link(item["name"], f"/p/{quote(item['name'])}"), item["created"], item["source"], item["note"]]
            for item in found
        ]
        table = Table(["profile", "created", "source", "note"], rows, empty="no profile yet: vibeserve profile ingest")
        return page(
            "Profiles", [Section("Profiles", [table])], links=[Link("JSON", "/index.json")], contents=False, online=True
        )

    return {"profiles": found}, make


def _profile(data_path: Path | str | None, request: Request) -> tuple[Any, Any]:
    profile = store.open_profile(request.path_params["name"], data_path)
    analysis = analyze(profile)
    document = {**analysis.document(), "tables": {name: profile.rows(name) for name in profile.table_names()}}

    def make() -> str:
        rows: list[list[Any]] = [
            [Link(name, f"/p/{quote(profile.name)}/t/{quote(name)}"), count]
            for name, count in document["tables"].items()
        ]
        tables = Section(
            "Tables",
            [
                _sql_form(profile, "SELECT engine, count(*) AS n FROM Instruction GROUP BY 1"),
                Table(["table", "rows"], rows),
            ],
        )
        return page(
            f"Profile {profile.name}",
            [*pages.sections(profile, analysis), tables],
            subtitle=str(profile.info.get("source", "")),
            eyebrow="profile",
            links=_links(profile, f"/p/{quote(profile.name)}.json"),
            online=True,
        )

    return document, make


def _table(data_path: Path | str | None, request: Request) -> tuple[Any, Any]:
    profile = store.open_profile(request.path_params["name"], data_path)
    described = sql.describe(profile, request.path_params["table"])["tables"][0]
    name = described["name"]
    names = [column["name"] for column in described["columns"]]
    offset = max(0, _whole(request.query_params.get("offset"), 0))
    condition = request.query_params.get("where", "").strip()
    order = request.query_params.get("order", "")
    text = f'SELECT * FROM "{name}"'
    if condition:
        text += f" WHERE ({condition})"
    if order.removeprefix("-") in names:
        text += f' ORDER BY "{order.removeprefix("-")}"' + (" DESC" if order.startswith("-") else "")
    text += f" LIMIT {_ROWS} OFFSET {offset}"
    answer, problem = _run(profile, text)
    document = {
        "profile": profile.name,
        "table": described,
        "query": text,
        **answer,
        **({"error": problem} if problem else {}),
    }

    def make() -> str:
        here = f"/p/{quote(profile.name)}/t/{quote(name)}"
        fields = [
            Field("where", "condition (SQL)", condition),
            Field("order", "order by", order, "choice", ["", *names]),
        ]
        blocks: list[Block] = [Text(described["about"]), Form(here, fields, "Filter"), *_result(answer, problem)]
        if len(answer.get("data", [])) == _ROWS:
            blocks.append(
                Table(
                    ["more"],
                    [
                        [
                            Link(
                                "next rows",
                                f"{here}?offset={offset + _ROWS}&where={quote(condition)}&order={quote(order)}",
                            )
                        ]
                    ],
                )
            )
        columns = Table(
            ["column", "type", "unit", "meaning", "pitfall"],
            [
                [c["name"], c["type"], c["unit"] or "", c["description"], c["pitfall"] or ""]
                for c in described["columns"]
            ],
        )
        return page(
            name,
            [Section("Rows", blocks), Section("Columns", [columns])],
            eyebrow=f"profile {profile.name}",
            links=_links(profile, f"{here}.json?{request.url.query}"),
            online=True,
        )

    return document, make


def _sql(data_path: Path | str | None, request: Request) -> tuple[Any, Any]:
    profile = store.open_profile(request.path_params["name"], data_path)
    text = request.query_params.get("q", "").strip()
    answer, problem = _run(profile, text) if text else ({}, None)
    document = {"profile": profile.name, "query": text, **answer, **({"error": problem} if problem else {})}

    def make() -> str:
        here = f"/p/{quote(profile.name)}/sql"
        blocks: list[Block] = [_sql_form(profile, text), *_result(answer, problem)]
        return page(
            "SQL",
            [Section("Query", blocks)],
            eyebrow=f"profile {profile.name}",
            links=_links(profile, f"{here}.json?{request.url.query}"),
            contents=False,
            online=True,
        )

    return document, make


def _run(profile: Profile, text: str) -> tuple[dict[str, Any], str | None]:
    try:
        return sql.query(profile, text, sql.Limits(rows=1000)).document(), None
    except InputError as error:
        return {}, error.message


def _result(answer: dict[str, Any], problem: str | None) -> list[Block]:
    if problem:
        return [Callout(problem, title="The query was not run", tone="bad")]
    if not answer:
        return []
    names = [column["name"] for column in answer["columns"]]
    rows: list[list[Any]] = [[_short(row[name]) for name in names] for row in answer["data"]]
    out: list[Block] = [Table(names, rows, empty="no row")]
    if answer["truncated"]:
        out.append(Text("There are more rows than are shown.", muted=True))
    return out


def _short(value: Any) -> Any:
    if isinstance(value, list | dict):
        return str(value)[:200]
    if isinstance(value, bool):
        return "true" if value else "false"
    return value[:300] if isinstance(value, str) else value


def _sql_form(profile: Profile, text: str) -> Block:
    return Form(
        f"/p/{quote(profile.name)}/sql", [Field("q", "One SELECT over this profile's tables", text, "area")], "Run"
    )


def _links(profile: Profile, twin: str) -> list[Link]:
    here = f"/p/{quote(profile.name)}"
    return [Link("profiles", "/"), Link(profile.name, here), Link("SQL", f"{here}/sql"), Link("JSON", twin)]


def _whole(text: str | None, default: int) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 19 else default
