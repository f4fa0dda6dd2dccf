"""Our device order beside JAX's on every named TPU slice: `make order-table`, `python -m tests.compiler.sweep`."""
