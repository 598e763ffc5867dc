"""What is compared: methods, their parameters, and variants that exist only to be measured."""
