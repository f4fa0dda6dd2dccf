"""Meshes of a running job; `meshwright.mesh` is the public face. Imports jax."""
