"""HTTP: routes, problems, health, metrics. Nothing here knows how an answer is made."""
