"""Exits and resumption: breaks, snapshots of the frames, points, and what the next recording learns."""
