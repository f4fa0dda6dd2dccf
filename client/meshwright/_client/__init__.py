"""The clients: `awaiting` is the source of `blocking`. `requests` and `settings` load no HTTP library."""
