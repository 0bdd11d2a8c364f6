"""`python -m oxygen.bench NAME`, the same as `oxygen bench NAME`."""

from __future__ import annotations

import sys

from oxygen.bench.main import main

if __name__ == "__main__":
    sys.exit(main())
