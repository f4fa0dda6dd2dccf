"""SQLite: runs, events, plans. One writer thread owns the file."""
