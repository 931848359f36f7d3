"""The demo: a small model learns to add two numbers, from nothing, through the whole system."""
