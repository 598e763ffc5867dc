"""What is compared: methods with parameters, and variants that exist only to be measured."""
