"""Turns a compiled call into a shared library that runs without Python, and such a library into a callable."""
