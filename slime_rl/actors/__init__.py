"""The Ray actors: engines, trainer ranks and rollout workers, each a thin shell around its part."""
