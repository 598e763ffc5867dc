"""Quality of the answers of fusion and eviction methods, on tasks with known answers."""
