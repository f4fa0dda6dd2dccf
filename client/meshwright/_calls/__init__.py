"""The client's core without I/O: what each endpoint takes and answers, and what follows from an outcome.

Requests, retry decisions, errors and replies are pure values and functions here; what takes several steps is
a generator of steps (`flows`) that `Client` and `AsyncClient` carry out. Knows no HTTP library.
"""
