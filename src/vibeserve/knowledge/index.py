"""Ranked full-text search over pages: SQLite FTS5, with exact names first. Built once, kept in the user's cache."""

from __future__ import annotations

import hashlib
import math
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vibeserve
from vibeserve.base.errors import InputError
from vibeserve.base.paths import cache_dir
from vibeserve.knowledge import catalogue, symbols
from vibeserve.knowledge.pages import Page, built_in, markdown_pages
from vibeserve.knowledge.query import expand, names_in, related, terms, weight_of

_SCHEMA = """
CREATE TABLE page (id TEXT PRIMARY KEY, title TEXT, kind TEXT, body TEXT, source TEXT, line INT, names TEXT, words TEXT, warnings TEXT);
CREATE TABLE name (name TEXT, id TEXT);
CREATE INDEX name_index ON name (name);
CREATE INDEX name_of ON name (id);
CREATE INDEX page_source ON page (source);
CREATE TABLE file (path TEXT PRIMARY KEY, stamp TEXT, root TEXT);
CREATE TABLE size (built_in INT, added INT);
CREATE VIRTUAL TABLE text USING fts5(id UNINDEXED, title, names, words, body, tokenize = "porter unicode61 tokenchars '_'");
CREATE VIRTUAL TABLE added USING fts5(id UNINDEXED, title, names, words, body, tokenize = "porter unicode61 tokenchars '_'");
"""
# Words of a question are taken from the rarest on until they stand on this many pages of added folders together.
_MOST_PAGES = 3000
# With fewer pages than this in all added folders together, how rare a word is among them says nothing.
_FEW_PAGES = 1000
# What a page weighs beside its text: our own pages before a clone's, errors a little less than what to do.
_KIND_WEIGHT = {
    "symbol": 1.1,
    "task": 1.15,
    "operation": 1.15,
    "note": 1.1,
    "guide": 1.05,
    "version": 0.8,
    "document": 0.7,
}
_RELATED = 0.4  # what a word of the same meaning counts beside one of the question's own
_WHOLE = 0.5  # the share of a page's score that depends on how much of the question it holds
_SUFFIXES = (".md", ".rst", ".txt", ".py", ".ipynb")
_LARGEST_FILE = 2_000_000
_EXCERPT_FROM = 50_000  # characters of a page that an excerpt is looked for in


@dataclass(frozen=True, slots=True)
class Found:
    """One result of a search."""

    title: str
    kind: str
    source: str
    line: int
    excerpt: str
    score: float
    id: str
    warnings: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """file:line."""
        return f"{self.source}:{self.line}" if self.line else self.source

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "title": self.title,
            "kind": self.kind,
            "source": self.source,
            "line": self.line,
            "excerpt": self.excerpt,
            "score": self.score,
            "id": self.id,
            "warnings": list(self.warnings),
        }


class Index:
    """A search index in one SQLite file. Readers open it read-only; it is replaced as a whole when the pages change."""

    def __init__(self, path: Path):
        self.path = path

    @classmethod
    def standard(cls) -> Index:
        """The index of all built-in pages; built where the cache has none for these data files yet."""
        files = sorted(path for path in catalogue.DATA.parent.rglob("*") if path.suffix in (".yaml", ".md", ".py"))
        stamp = "\x1f".join(f"{path.name}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in files)
        key = hashlib.sha256(stamp.encode()).hexdigest()[:16]
        index = cls(cache_dir() / "docs" / f"{vibeserve.__version__}-{key}.sqlite")
        if not index.path.exists():
            index.build([*built_in(), *symbols.pages()])
            index.take_over(path for path in index.path.parent.glob("*.sqlite") if path != index.path)
        return index

    def take_over(self, older: Iterable[Path]) -> None:
        """Add the folders that indexes of earlier data had, and remove those indexes."""
        for path in older:
            try:
                with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
                    roots = [Path(root) for (root,) in db.execute("SELECT DISTINCT root FROM file")]
            except sqlite3.DatabaseError:
                roots = []  # none of ours, or broken: nothing to take from it
            for root in roots:
                if root.is_dir():
                    self.add_folder(root)
            path.unlink(missing_ok=True)

    def build(self, pages: Iterable[Page]) -> None:
        """Write the index anew, in one step."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".building")
        os.close(handle)
        os.unlink(name)
        with closing(sqlite3.connect(name)) as db, db:
            db.executescript(_SCHEMA)
            for page in pages:
                _insert(db, page)
            _count(db)
        os.replace(name, self.path)

    def add_folder(self, folder: Path) -> dict[str, int]:
        """Add the documents of a folder (Markdown, reStructuredText, text, Python); only what changed is read again."""
        if not folder.is_dir():
            raise InputError(f"no such directory: {folder}", hint="give a folder of documents")
        root = str(folder.resolve())
        counts = {"files": 0, "added": 0, "removed": 0, "unchanged": 0, "skipped": 0}
        with closing(sqlite3.connect(self.path)) as db, db:
            known = dict(db.execute("SELECT path, stamp FROM file").fetchall())
            below = {path for (path,) in db.execute("SELECT path FROM file WHERE root = ?", (root,))}
            seen = set()
            for path in sorted(folder.resolve().rglob("*")):
                if (
                    path.suffix not in _SUFFIXES
                    or not path.is_file()
                    or any(part.startswith(".") for part in path.relative_to(root).parts)
                ):
                    continue
                counts["files"] += 1
                status = path.stat()
                stamp = f"{status.st_mtime_ns}-{status.st_size}"
                seen.add(str(path))
                if known.get(str(path)) == stamp:
                    counts["unchanged"] += 1
                    continue
                if status.st_size > _LARGEST_FILE:
                    counts["skipped"] += 1
                    continue
                if str(path) in known:
                    _remove(db, str(path))
                text = path.read_text(encoding="utf-8", errors="replace")
                for page in markdown_pages(text, str(path), "document"):
                    _insert(db, page)
                db.execute("INSERT OR REPLACE INTO file VALUES (?, ?, ?)", (str(path), stamp, root))
                counts["added"] += 1
            for path in below - seen:
                _remove(db, path)
                db.execute("DELETE FROM file WHERE path = ?", (path,))
                counts["removed"] += 1
            if counts["added"] or counts["removed"]:
                db.execute("INSERT INTO added (added) VALUES ('optimize')")
                _count(db)
        return counts

    def search(self, words: str, most: int = 10, kinds: Sequence[str] = ()) -> list[Found]:
        """The best pages for a question, best first. Raises InputError for an empty one."""
        if not words.strip():
            raise InputError("nothing to search for", hint="vibeserve docs search WORDS")
        with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            ranked: dict[str, float] = {}
            for name, weight in names_in(words).items():
                for (page,) in db.execute("SELECT id FROM name WHERE name = ?", (name.lower(),)):
                    ranked[page] = max(ranked.get(page, 0.0), weight)
            for page, score in self._ranked(db, words).items():
                ranked[page] = ranked.get(page, 0.0) + score
            best = sorted(ranked.items(), key=lambda item: (-item[1], item[0]))
            if kinds:
                best = [(page, score) for page, score in best if _kind(db, page) in kinds]
            return [_found(db, page, score, words) for page, score in best[:most]]

    def _ranked(self, db: sqlite3.Connection, words: str) -> dict[str, float]:
        """Pages by their words: BM25 of the question's own, less where a page holds few of them, and a little for words that mean
        the same."""
        held = _held(db, words)
        found = {
            page: -score * (1.0 - _WHOLE + _WHOLE * held.get(page, 0.0))
            for page, score in _matches(db, "text", expand(words))
        }
        for page, score in _matches(db, "text", related(words)):
            found[page] = found.get(page, 0.0) - score * _RELATED
        kinds = {page: page.partition("/")[0] for page in found}
        weights = {kind: _KIND_WEIGHT.get(kind, 1.0) * weight_of(kind, words) for kind in set(kinds.values())}
        return {page: score * weights[kinds[page]] for page, score in found.items()} | _added(db, words)

    def page(self, name: str) -> Page | None:
        """A page by its id or by an exact name."""
        with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            row = db.execute("SELECT * FROM page WHERE id = ?", (name,)).fetchone()
            if row is None:
                row = db.execute(
                    "SELECT page.* FROM name JOIN page USING (id) WHERE name.name = ? ORDER BY kind = 'symbol' DESC LIMIT 1",
                    (name.lower(),),
                ).fetchone()
        return _page(row) if row else None

    def names(self, kind: str) -> list[str]:
        """Every exact name that leads to a page of a kind."""
        with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            rows = db.execute("SELECT names FROM page WHERE kind = ? ORDER BY id", (kind,)).fetchall()
        return [name for (text,) in rows for name in text.split("\x1f") if name]

    def contents(self) -> list[tuple[str, str, str]]:
        """(kind, id, title) of every page but those of added folders, in order."""
        with closing(sqlite3.connect(f"{self.path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return db.execute(
                "SELECT kind, id, title FROM page WHERE kind <> 'document' ORDER BY kind, title"
            ).fetchall()


def _matches(db: sqlite3.Connection, table: str, expression: str) -> list[tuple[str, float]]:
    """(page, BM25) of the best pages for an FTS5 expression; the lower the better."""
    if not expression:
        return []
    return db.execute(
        f"SELECT id, bm25({table}, 0, 4.0, 4.0, 4.0, 1.0) FROM {table} WHERE {table} MATCH ? ORDER BY 2 LIMIT 80",
        (expression,),
    ).fetchall()


def _held(db: sqlite3.Connection, words: str) -> dict[str, float]:
    """How much of the question each built-in page holds, 0 to 1: its words, each by how rare it is. A word that stands in added
    folders alone counts too: the pages that lack it are not the ones that are meant."""
    (pages,) = db.execute("SELECT built_in FROM size").fetchone()
    held, whole = dict[str, float](), 0.0
    for term in terms(words):
        found = db.execute("SELECT id FROM text WHERE text MATCH ?", (term,)).fetchall()
        if not found and not db.execute("SELECT 1 FROM added WHERE added MATCH ? LIMIT 1", (term,)).fetchone():
            continue
        rarity = _rarity(pages, len(found))
        whole += rarity
        for (page,) in found:
            held[page] = held.get(page, 0.0) + rarity
    return {page: rarity / whole for page, rarity in held.items()}


def _rarity(pages: int, having: int) -> float:
    """The weight of a word that `having` of the pages have, as BM25 takes it; never below 0."""
    return math.log(1 + (pages - having + 0.5) / (having + 0.5))


def _added(db: sqlite3.Connection, words: str) -> dict[str, float]:
    """Pages of added folders with their scores, on the scale of the built-in pages: whatever is added, those rank as before.

    The rarest words of the question choose the pages, so that the time does not grow with the words that every page has.
    """
    built_in, pages = db.execute("SELECT built_in, added FROM size").fetchone()
    if not pages:
        return {}
    if pages <= _FEW_PAGES:
        return _few(db, words, built_in + pages)
    expression = _rarest(db, words)
    scale = min(1.0, math.log(built_in + 2) / math.log(pages + 2)) * _KIND_WEIGHT["document"]
    return {page: -score * scale for page, score in _matches(db, "added", expression)}


def _few(db: sqlite3.Connection, words: str, pages: int) -> dict[str, float]:
    """Scores where little was added: no word is rare among a few pages, so how rare it is among all pages counts, and twice in a title."""
    found: dict[str, float] = {}
    for term in terms(words):
        inside = db.execute("SELECT id, title FROM added WHERE added MATCH ?", (term,)).fetchall()
        if not inside:
            continue
        (others,) = db.execute("SELECT count(*) FROM text WHERE text MATCH ?", (term,)).fetchone()
        rarity = _rarity(pages, len(inside) + others) * _KIND_WEIGHT["document"]
        word = term.strip('"').rstrip("s")
        for page, title in inside:
            found[page] = found.get(page, 0.0) + rarity * (2.0 if word in title.lower() else 1.0)
    return found


def _rarest(db: sqlite3.Connection, words: str) -> str:
    """An FTS5 expression of the question's rarest words in the added folders, together on at most _MOST_PAGES pages; where all are
    common, all of the three rarest on one page, else the rarest."""
    counted: list[tuple[int, str]] = []
    for term in terms(words):
        pages = _pages_of(db, term)
        if pages:
            counted.append((pages, term))
    counted.sort()
    chosen, total = list[str](), 0
    for pages, term in counted:
        if total + pages > _MOST_PAGES:
            break
        chosen.append(term)
        total += pages
    if chosen or not counted:
        return " OR ".join(chosen)
    together = " AND ".join(term for _, term in counted[:3])
    found = db.execute("SELECT 1 FROM added WHERE added MATCH ? LIMIT 1", (together,)).fetchone()
    return together if found else counted[0][1]


def _pages_of(db: sqlite3.Connection, term: str) -> int:
    """On how many pages of added folders a term stands, counted up to one more than _MOST_PAGES."""
    counted = "SELECT count(*) FROM (SELECT 1 FROM added WHERE added MATCH ? LIMIT ?)"
    (count,) = db.execute(counted, (term, _MOST_PAGES + 1)).fetchone()
    return int(count)


def _count(db: sqlite3.Connection) -> None:
    """Note how many pages there are: counting them takes longer than a search."""
    db.execute("DELETE FROM size")
    db.execute(
        "INSERT INTO size SELECT count(*) FILTER (WHERE kind <> 'document'), count(*) FILTER (WHERE kind = 'document') FROM page"
    )


def _insert(db: sqlite3.Connection, page: Page) -> None:
    """Add a page; its row in `text` (or `added`) has the number of its row in `page`, by which it is found again."""
    names = "\x1f".join(page.names)
    values = (page.id, page.title, page.kind, page.body, page.source, page.line, names, page.words)
    row = db.execute(
        "INSERT INTO page VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, "\x1f".join(page.warnings))
    ).lastrowid
    db.executemany("INSERT INTO name VALUES (?, ?)", [(name.lower(), page.id) for name in page.names])
    spelled = " ".join([*page.names, *(re.sub(r"[._-]", " ", name) for name in page.names)])
    title = f"{page.title} {re.sub(r'[._]', ' ', page.title)}"
    table = "added" if page.kind == "document" else "text"
    db.execute(
        f"INSERT INTO {table} (rowid, id, title, names, words, body) VALUES (?, ?, ?, ?, ?, ?)",
        (row, page.id, title, spelled, page.words, page.body),
    )


def _remove(db: sqlite3.Connection, source: str) -> None:
    """Remove the pages of an added file."""
    pages = db.execute("SELECT rowid, id FROM page WHERE source = ? AND kind = 'document'", (source,)).fetchall()
    db.executemany("DELETE FROM added WHERE rowid = ?", [(row,) for row, _ in pages])
    db.executemany("DELETE FROM name WHERE id = ?", [(page,) for _, page in pages])
    db.executemany("DELETE FROM page WHERE rowid = ?", [(row,) for row, _ in pages])


def _kind(db: sqlite3.Connection, page: str) -> str:
    (kind,) = db.execute("SELECT kind FROM page WHERE id = ?", (page,)).fetchone()
    return str(kind)


def _page(row: Sequence[Any]) -> Page:
    names, warnings = (tuple(item for item in text.split("\x1f") if item) for text in (row[6], row[8]))
    return Page(row[0], row[1], row[2], row[3], row[4], row[5], names, row[7], warnings)


def _found(db: sqlite3.Connection, page_id: str, score: float, words: str) -> Found:
    page = _page(db.execute("SELECT * FROM page WHERE id = ?", (page_id,)).fetchone())
    return Found(
        page.title,
        page.kind,
        page.source,
        page.line,
        _excerpt(page.body, words),
        round(score, 3),
        page.id,
        page.warnings,
    )


def _excerpt(body: str, words: str, size: int = 240) -> str:
    """The stretch of the text where the words are thickest."""
    flat = " ".join(body[:_EXCERPT_FROM].split())
    if len(flat) <= size:
        return flat
    wanted = dict.fromkeys(word.lower() for word in re.findall(r"\w{3,}", words))
    lowered = flat.lower()
    places = sorted((match.start(), word) for word in wanted for match in re.finditer(re.escape(word), lowered))
    best, most, first = 0, 0, 0
    inside: dict[str, int] = {}
    for place, word in places:
        inside[word] = inside.get(word, 0) + 1
        while places[first][0] + size < place + len(word):
            left = places[first][1]
            inside[left] -= 1
            if not inside[left]:
                del inside[left]
            first += 1
        if len(inside) > most:
            best, most = places[first][0], len(inside)
    best = max(0, min(best - 40, len(flat) - size))
    if best:
        best = flat.rfind(" ", 0, best) + 1
    return ("…" if best else "") + flat[best : best + size].strip() + ("…" if best + size < len(flat) else "")
