"""The three children (device worker, compiler worker, probe) and the one supervisor that owns them."""
