"""The fleet's private packages: addresses of hosts, requests to a host, and their results. Public API:
meshwright.fleet."""
