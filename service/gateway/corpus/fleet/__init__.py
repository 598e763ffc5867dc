"""Several gateways over one database: who is there, and what they owe each other."""
