"""The process as a server: sockets, connections, the claim on the host, what systemd is told. No route, no device."""
