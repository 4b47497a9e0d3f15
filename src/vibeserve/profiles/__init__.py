"""What a run did, as tables: store, query, bounds, investigations, comparison."""
