"""Drives the stages: records a call, runs the passes over its trace, and hands the compiled code to its function."""
