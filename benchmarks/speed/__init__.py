"""How near to the physical limits each part comes."""
