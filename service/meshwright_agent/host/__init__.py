"""The host: what is seen of it, again and again or once, how it is given back, and one that is not there."""
