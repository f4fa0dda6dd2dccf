"""Answers: what routes are asked for and the agent works out: plans, batch sizes, benches, what the compiler says."""
