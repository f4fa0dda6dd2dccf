"""What the agent tells of itself while it works: logs, spans, durations. No device, no route."""
