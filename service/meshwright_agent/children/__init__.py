"""The children's side: what runs in the device worker, the planner and the probe. Only this package imports jax."""
