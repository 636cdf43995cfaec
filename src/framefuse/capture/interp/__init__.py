"""The interpreter: the machine with its frames and loop, and how attributes, calls and generators work."""
