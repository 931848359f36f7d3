"""Engines, router, generation and the intake of weights: the side that samples."""

if __name__ != "slime_rl.rollout":
    raise ImportError(f"import slime_rl.rollout, not {__name__}")
