"""Records a real run of a Python function as a trace: torch calls, facts they rest on, effects, the result's recipe."""
