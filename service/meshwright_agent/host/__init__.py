"""The host: its observation, its snapshots, the release of its devices, and the simulated host."""
