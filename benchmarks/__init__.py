"""What measures this project itself, side by side with its peers. `python -m benchmarks [NAME…]` prints the table."""
