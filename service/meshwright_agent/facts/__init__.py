"""Facts about this host, read without jax and without a device context: read_ does I/O, parse_ is pure."""
