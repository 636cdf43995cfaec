"""The command line, as `python -m framefuse COMMAND ...` and as a script; where torch is missing it says so."""

import importlib
import sys
from importlib.util import find_spec

from framefuse import __version__

MISSING = "framefuse's commands need torch (pip install torch); framefuse.load(path) runs exported programs without it."


def main() -> int:
    """Runs one command; returns its exit status."""
    if find_spec("torch") is not None:
        status: int = importlib.import_module("framefuse.cli").main()
        return status
    if sys.argv[1:] == ["--version"]:
        print(f"framefuse {__version__} (without torch, Python {'.'.join(map(str, sys.version_info[:3]))})")
        return 0
    print(MISSING, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
