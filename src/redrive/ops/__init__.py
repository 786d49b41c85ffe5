"""What an operator can do and see."""
