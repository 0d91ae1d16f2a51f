"""``python -m validation`` is ``certify validate``."""

from __future__ import annotations

import sys

from validation.cli import main

if __name__ == "__main__":
    sys.exit(main(["validate", *sys.argv[1:]]))
