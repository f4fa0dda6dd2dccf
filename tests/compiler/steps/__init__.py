"""The step that is compiled, weighed: against a step written a second time, and against published step times."""
