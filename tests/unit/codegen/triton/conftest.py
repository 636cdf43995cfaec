"""The tests of this folder that run kernels need Triton's interpreter, which a process decides on at its start."""

import os

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if INTERPRETS else ["test_interpreted_*.py"]
