"""Print the library as one file."""

from vibeserve.nki.lib.single import source

print(source(), end="")
