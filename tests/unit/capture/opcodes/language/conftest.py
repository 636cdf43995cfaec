"""Programs in syntax of CPython 3.12 are read there only."""

import sys

collect_ignore = [] if sys.version_info >= (3, 12) else ["test_since_312.py"]
