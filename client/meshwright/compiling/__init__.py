"""XLA's compilers for hardware that need not be here. Each compile is a child process, and always ends in a report."""
