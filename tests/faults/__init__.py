"""Faults caused for real on real agents: what clients see, and that the agent goes on; see docs/robustness.md."""
