"""Stands in for the sgl_kernel wheel, which holds CUDA kernels only.

Without AMX, SGLang's CPU engine computes everything in plain torch and only imports names from here. What must stay
undefined is `torch.ops.sgl_kernel.convert_weight_packed`: its presence tells SGLang that the processor has AMX.
"""

__version__ = "0.4.10"


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, *_unused):
    """Write each request's new cache slots into its row of `req_to_token`, in order."""
    taken = 0
    starts, ends = start_offset.tolist(), end_offset.tolist()
    for row, start, end in zip(req_pool_indices.tolist(), starts, ends, strict=True):
        slots = out_cache_loc[taken : taken + end - start]
        req_to_token[row, start:end] = slots.to(req_to_token.dtype)
        taken += end - start


def __getattr__(name):
    if not name.endswith("_cpu"):
        raise AttributeError(name)

    def missing(*_args, **_kwargs):
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in on the CPU")

    return missing
