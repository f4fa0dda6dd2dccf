"""Words for people that came from a driver, a kernel or a file name, made such that they can be sent.

Rule: whatever it was, UTF-8 comes out; what is none stands as its escape. Changes nothing else.
"""

from __future__ import annotations


def make_sendable(text: str) -> str:
    """Returns the text; of a lone surrogate, as Python keeps a byte that is no UTF-8 (PEP 383), its escape."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode(errors="backslashreplace").decode()
    return text
