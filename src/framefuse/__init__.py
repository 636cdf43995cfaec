"""framefuse: a just-in-time compiler for PyTorch programs."""

__version__ = "0.1.0"
