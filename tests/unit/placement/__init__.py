"""Arrays onto devices, on 8 virtual CPU devices."""
