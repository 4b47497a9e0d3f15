"""Integrity and hidden probes: tries to catch a candidate cheating."""
