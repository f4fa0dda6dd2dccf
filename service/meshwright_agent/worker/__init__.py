"""The children (device worker, planner, probe) and the one supervisor that owns them."""
