"""Runs a user's script unchanged, with its models compiled, and sums up what that gave."""
