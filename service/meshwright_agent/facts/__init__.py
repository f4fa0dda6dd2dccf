"""What this host says of itself, read without jax and without a context: read_ does I/O, parse_ is pure."""
