"""Runs: everything that takes long. One at a time in each lane, and every end written down before it is told."""
