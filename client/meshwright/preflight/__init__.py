"""Preflight: many hosts checked in one JAX job before a training job starts; the slow or faulty host is named."""
