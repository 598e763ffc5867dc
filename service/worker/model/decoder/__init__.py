"""What every decoder is made of: the base class, and parts that several families have."""
