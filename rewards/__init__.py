"""Reward functions, and what runs them."""

if __name__ != "slime_rl.rewards":
    raise ImportError(f"import slime_rl.rewards, not {__name__}")
