"""Benchmarks: each compares two things in one run and reports their ratio. Nothing here is asserted in a test."""
