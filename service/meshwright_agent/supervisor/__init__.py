"""The agent's side of its children: how each is started, what is said to it, and its end for certain."""
