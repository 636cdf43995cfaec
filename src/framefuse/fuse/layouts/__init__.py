"""Assigns the order of dimensions in memory to pictures and volumes: contiguous or channels-last, for a whole graph."""
