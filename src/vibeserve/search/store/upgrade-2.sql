-- From version 1 to version 2.
ALTER TABLE hypotheses ADD COLUMN mechanism TEXT NOT NULL DEFAULT '';

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
