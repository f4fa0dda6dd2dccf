"""The routes: each checks the caller's scope, calls a method of the agent, and returns a model or a `Response`."""
