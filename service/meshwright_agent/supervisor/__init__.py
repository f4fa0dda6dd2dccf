"""The agent's side of its children: their start, their frames, and their guaranteed end."""
