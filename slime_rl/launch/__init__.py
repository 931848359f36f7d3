"""Starts a run: checks it, brings up its processes, drives it, and ends them."""
