"""`python -m framefuse COMMAND ...`: the command line where its script is not on the path."""

import sys

from framefuse.cli import main

sys.exit(main())
