"""Leases: who has reserved which devices of this host, and until when. `book`: the rules; `desk`: what routes ask."""
