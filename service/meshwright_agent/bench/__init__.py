"""What is measured, in the device worker: real JAX calls, every sample kept, every result checked."""
