"""The command line: one module per verb group; parses, calls, prints."""
