"""Golden replies: what users see, as files. `python -m tests.golden` compares, `--write` records anew.

`requests/GROUP.json` lists requests: of HTTP, of the command line, of the public Python names.
`replies/GROUP/NAME.json` holds a request with its reply. Nothing here knows how an answer is made, so that all of it
may be rebuilt.
"""
