"""The tier shared by several processes: Redis or Valkey."""
