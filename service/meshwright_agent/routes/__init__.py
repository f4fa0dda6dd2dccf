"""The routes: each checks the caller's scope, calls a verb of the agent, and returns a model or a `Response`."""
