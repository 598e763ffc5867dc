"""The shared tier: Redis or Valkey."""
