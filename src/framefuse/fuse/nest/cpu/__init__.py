"""The forms of loop nests for a CPU: vector loops in threads, with running results in the caches."""
