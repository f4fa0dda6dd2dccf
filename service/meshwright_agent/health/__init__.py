"""Health: the board, what judges looks and reports, what is remembered, and the history. No HTTP, no driver."""
