"""Measures what happens once: imports, first calls, exports, and the memory of many compilations."""
