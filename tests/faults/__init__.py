"""Faults caused for real on real agents: what clients see; see docs/explanation/robustness.md."""
