"""The agent that runs on a host: processes, facts, routes. `meshwright` (the client) is what people import."""
