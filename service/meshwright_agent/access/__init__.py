"""Who may: scopes, tokens, hosts, TLS, the audit. The doorkeeper joins them; nothing here knows a route."""
