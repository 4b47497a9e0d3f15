"""The pytest plugin: `import nki` in tests means the simulator where nki itself is not installed."""

from vibeserve.nki.shim.finder import install

install()
