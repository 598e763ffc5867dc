"""What is done to a running service. An action gets the world and the episode's random numbers."""
