"""The same functions as tools for coding agents."""
