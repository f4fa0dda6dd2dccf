"""Code of the child processes: device worker, planner and probe. Only this package imports jax."""
