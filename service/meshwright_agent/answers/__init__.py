"""Computes the answers of routes: plans, batch sizes, benches and the compiler's reports."""
