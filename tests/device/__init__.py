"""Checks on a real card: `python -m tests.device`; docs/how-to/check-a-card.md has the results."""
