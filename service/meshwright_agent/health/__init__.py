"""Health: the registry of components, the rules that judge probes, and what outlives a restart. No HTTP, no driver."""
