"""`make soak`: a real agent under mixed load for half an hour, workers killed at random, and what it cost."""
