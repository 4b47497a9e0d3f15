"""What all rooms share: errors, units, clock, randomness, processes and files."""
