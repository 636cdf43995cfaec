"""Turns loop nests into machine code (LLVM) or into Python that says the same slowly."""
