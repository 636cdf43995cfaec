"""Turns what a trace assumed into a guard program, and explains which assumption failed."""
