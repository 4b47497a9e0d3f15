"""The reference of the smallest bundle: the fake server, at its usual speed."""

import sys

from fake_server import main

if __name__ == "__main__":
    sys.exit(main())
