"""Benches, the agent's side: what a request measures, whether it can be done here, what was found. No jax."""
