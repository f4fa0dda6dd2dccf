"""The step that is compiled: the compiler's estimates of it beside published step times."""
