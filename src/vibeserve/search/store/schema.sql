-- The run store, version 2. Rows are only ever added; what changes: run.state, hypotheses.state and mechanism, and a
-- call's row when the call ends. upgrade-2.sql makes a version 1 store into this.
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

-- What was asked, where, and in which environment. One row.
CREATE TABLE run (
  id INTEGER PRIMARY KEY CHECK (id = 1),
  name TEXT NOT NULL,
  state TEXT NOT NULL,                 -- running | interrupted | finished | failed
  reason TEXT NOT NULL DEFAULT '',
  bundle TEXT NOT NULL,                -- slug
  request TEXT NOT NULL,               -- JSON: bundle paths, metric, agent, rounds, budget, seed, flags
  environment TEXT NOT NULL,           -- JSON: what resume compares
  device TEXT NOT NULL,                -- JSON: fingerprint
  started TEXT NOT NULL,               -- UTC
  seed INTEGER NOT NULL
) STRICT;

-- The processes that worked on this run (not part of its result: an unbroken run has one).
CREATE TABLE sessions (
  id INTEGER PRIMARY KEY, pid INTEGER NOT NULL, started TEXT NOT NULL, ended TEXT, how TEXT
) STRICT;

-- The journal: each step of the run, once, with what it returned. Facts of a step are written in the same transaction.
CREATE TABLE steps (
  key TEXT PRIMARY KEY, position INTEGER NOT NULL UNIQUE, value TEXT NOT NULL,
  began_s REAL NOT NULL, took_s REAL NOT NULL
) STRICT;

CREATE TABLE hypotheses (
  id INTEGER PRIMARY KEY, round INTEGER NOT NULL UNIQUE, techniques TEXT NOT NULL, title TEXT NOT NULL, parent TEXT NOT NULL,
  hypothesis TEXT NOT NULL, expected_effect TEXT NOT NULL, expected_ratio REAL, falsification TEXT NOT NULL,
  activation TEXT NOT NULL, settings TEXT NOT NULL, why TEXT NOT NULL, not_others TEXT NOT NULL,
  proposed_by TEXT NOT NULL,
  state TEXT NOT NULL,                 -- todo | in progress | proven | disproven | parked | abandoned
  mechanism TEXT NOT NULL DEFAULT ''   -- why it was abandoned or parked, or what disproved it
) STRICT;

CREATE TABLE candidates (
  id TEXT PRIMARY KEY, round INTEGER NOT NULL UNIQUE, parent TEXT, "commit" TEXT, tree TEXT,
  techniques TEXT NOT NULL, settings TEXT NOT NULL, summary TEXT NOT NULL, at_s REAL NOT NULL
) STRICT;

CREATE TABLE gates (
  id INTEGER PRIMARY KEY, round INTEGER NOT NULL, candidate TEXT NOT NULL, name TEXT NOT NULL,
  ok INTEGER,                          -- 1, 0, or NULL: not run
  detail TEXT NOT NULL, document TEXT NOT NULL, at_s REAL NOT NULL, provenance TEXT NOT NULL,
  UNIQUE (candidate, name)
) STRICT;

-- Every value of every window. A pair is two rows with the same round, kind and pair.
CREATE TABLE measurements (
  id INTEGER PRIMARY KEY, round INTEGER NOT NULL, candidate TEXT NOT NULL,
  kind TEXT NOT NULL,                  -- baseline | screen | pair | final | curve
  pair INTEGER NOT NULL, place INTEGER NOT NULL, -- pair number from 0; 0 = ran first, 1 = ran second
  metric TEXT NOT NULL, unit TEXT NOT NULL, value REAL, reason TEXT NOT NULL DEFAULT '',
  window_s REAL, seed INTEGER NOT NULL, failed INTEGER NOT NULL, noisy TEXT NOT NULL DEFAULT '',
  document TEXT NOT NULL,              -- file under the run directory: the benchmark's own JSON
  at_s REAL NOT NULL, provenance TEXT NOT NULL,
  UNIQUE (round, kind, pair, candidate)
) STRICT;

CREATE TABLE evidence (
  id INTEGER PRIMARY KEY, candidate TEXT NOT NULL, name TEXT NOT NULL, value REAL NOT NULL, unit TEXT NOT NULL,
  provenance TEXT NOT NULL, source TEXT NOT NULL, UNIQUE (candidate, name)
) STRICT;

-- The end of each round, and of the run ('final').
CREATE TABLE decisions (
  id INTEGER PRIMARY KEY, round INTEGER NOT NULL, kind TEXT NOT NULL, candidate TEXT NOT NULL, against TEXT NOT NULL,
  verdict TEXT NOT NULL, reason TEXT NOT NULL, value REAL, ratio REAL, ci_low REAL, ci_high REAL, pairs INTEGER NOT NULL,
  at_s REAL NOT NULL, UNIQUE (round, kind)
) STRICT;

CREATE TABLE events (id INTEGER PRIMARY KEY, at_s REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL) STRICT;

-- Every call of an agent. The row is written before its program starts, so that a kill loses nothing; tokens and cost
-- are what the agent's program says of itself (NULL: it did not say), took_s is measured here.
CREATE TABLE calls (
  id INTEGER PRIMARY KEY, round INTEGER NOT NULL, task TEXT NOT NULL, attempt INTEGER NOT NULL,
  role TEXT NOT NULL,                  -- designer | implementer | reviewer | check
  agent TEXT NOT NULL, model TEXT NOT NULL DEFAULT '', sandbox TEXT NOT NULL,
  state TEXT NOT NULL,                 -- running | answered | malformed | timed out | failed | cancelled | killed
  detail TEXT NOT NULL DEFAULT '', started TEXT NOT NULL, took_s REAL,
  input_tokens INTEGER, output_tokens INTEGER, cost_usd REAL,
  transcript TEXT NOT NULL,            -- folder under the run directory: prompt, what it printed
  reply TEXT,                          -- JSON: the answer, where there was one
  UNIQUE (round, task, attempt)
) STRICT;

-- What an agent said. Nothing here is ever used as a measurement.
CREATE TABLE claims (
  id INTEGER PRIMARY KEY, call INTEGER NOT NULL REFERENCES calls (id), name TEXT NOT NULL, value TEXT NOT NULL,
  provenance TEXT NOT NULL CHECK (provenance = 'claimed'), UNIQUE (call, name)
) STRICT;
