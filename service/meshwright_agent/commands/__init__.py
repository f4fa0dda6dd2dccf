"""Commands of `meshwright-agent` beside serve: a plan without an agent, the file of tokens; flags as settings."""
