"""Rounds, acceptance, the run store and resume."""
