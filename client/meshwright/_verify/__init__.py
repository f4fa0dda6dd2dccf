"""The modules behind `meshwright.verify`: the parent describes a step, a child traces it for the plan's target."""
