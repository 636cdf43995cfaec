"""The types that the stages exchange: numbers, dtypes, primitives, traces, graphs, loop nests, schedules and plans."""
