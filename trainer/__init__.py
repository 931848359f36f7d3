"""The Megatron side: model, packing, loss, optimiser, checkpoints and the export of weights.

Importing it puts the hook in place that lets megatron run without CUDA; it loads neither torch nor megatron.
"""

if __name__ != "slime_rl.trainer":
    raise ImportError(f"import slime_rl.trainer, not {__name__}")

from slime_rl.trainer import megatron_cpu

megatron_cpu.install()
