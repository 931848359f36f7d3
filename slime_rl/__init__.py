"""Post-trains language models with reinforcement learning: Megatron trains, SGLang samples, Redis holds the data."""

__version__ = "0.1.0"
