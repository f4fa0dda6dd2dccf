"""The doctor: gathers what is here, then judges it, in plain words with a way to mend it."""
