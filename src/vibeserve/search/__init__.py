"""Decides what to try next from evidence, and keeps what survived: every candidate a git commit, every fact a row."""
