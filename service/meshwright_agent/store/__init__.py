"""SQLite: runs, their events, bench records, plans, idempotency keys. One thread owns the connection."""
