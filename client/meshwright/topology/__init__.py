"""What the machine, or the target, is: devices, links, chips. Data tables with their sources. No jax, no numpy."""
