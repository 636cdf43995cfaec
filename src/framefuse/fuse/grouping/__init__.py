"""Turns a graph into groups: what one kernel computes, and what the library computes."""
