"""The Megatron side: model, packing, loss, optimiser, checkpoints and the export of weights."""

if __name__ != "slime_rl.trainer":
    raise ImportError(f"import slime_rl.trainer, not {__name__}")
