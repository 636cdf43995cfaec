"""Turns a group into loop nests; what the forms of all devices share stands here, their own in ``cpu`` and ``gpu``."""
