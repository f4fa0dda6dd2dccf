"""Health: the registry of components, the rules that evaluate probes, and state across restarts. No HTTP, no driver."""
