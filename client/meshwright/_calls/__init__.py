"""The client's core without I/O: the request and answer of each endpoint, and the handling of each outcome.

Requests, retry decisions, errors and replies are pure values and functions here; A procedure of several steps is a
generator (`flows`) that `Client` and `AsyncClient` carry out. Independent of the HTTP library.
"""
