"""Earlier prompts: kept in the KV pool, stored on disk, and continued by others."""
