"""Serving parts that candidates are built from; imports nothing else of vibeserve."""
