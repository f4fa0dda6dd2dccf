"""Who may: scopes, tokens, hosts, rates, TLS, the audit. The doorkeeper joins them; nothing here knows a route."""
