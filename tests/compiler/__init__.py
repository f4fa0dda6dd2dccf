"""What XLA's TPU compiler makes of our device order and of JAX's: `make verify-order`, `python -m tests.compiler`."""
