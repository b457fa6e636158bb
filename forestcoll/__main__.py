"""`forestcoll` and `python -m forestcoll`."""

from __future__ import annotations

import sys

from forestcoll.cli import main

if __name__ == "__main__":
    sys.exit(main())
