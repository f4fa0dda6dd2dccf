"""What crosses HTTP: one frozen pydantic model per thing, which is also the domain type. No jax, no numpy, no I/O."""
