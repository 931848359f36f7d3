"""The data buffer in Redis: slots, groups and steps, where nothing is lost and nothing trained twice."""

if __name__ != "slime_rl.buffer":
    raise ImportError(f"import slime_rl.buffer, not {__name__}")
