"""Checks on a real card: what no fake can tell. `python -m tests.device`; docs/device.md has what came of them."""
