"""What to do with a topology: order, plan, batch size. Importing this package alone imports no numpy."""
