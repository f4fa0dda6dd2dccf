"""Benches in the agent's process: the scope of a request, its limits on this host, and its results. No jax."""
