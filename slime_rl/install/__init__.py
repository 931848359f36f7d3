"""Installs the engines and the trainer beside slime_rl: the passes that plain dependency resolution cannot express."""
