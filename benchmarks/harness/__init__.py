"""Times contestants side by side, keeps their processes, and shows and saves what was measured."""
