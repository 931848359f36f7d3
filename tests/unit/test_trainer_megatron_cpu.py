"""The rewriting of CUDA devices, on snippets as megatron has them."""

import pytest
import torch

from slime_rl.trainer.cpu_device import CPU_DEVICE
from slime_rl.trainer.megatron_cpu import STAND_IN, on_cpu


def run(source):
    names = {"torch": torch, STAND_IN: CPU_DEVICE}
    exec(on_cpu(source, "snippet.py"), names)
    return names


def test_device_literals_become_the_cpu():
    assert run('x = torch.zeros(2, device="cuda")')["x"].device.type == "cpu"
    assert run("x = torch.zeros(2, device=torch.cuda.current_device())")["x"].device.type == "cpu"


def test_tensor_type_names_match_cpu_tensors():
    assert run('same = torch.zeros(1).type() == "torch.cuda.FloatTensor"')["same"]
    assert run('same = torch.zeros(1).bfloat16().type() in ["torch.cuda.HalfTensor", "torch.cuda.BFloat16Tensor"]')[
        "same"
    ]


def test_moves_to_the_device_stay():
    assert run("x = torch.ones(1).cuda(non_blocking=True)")["x"].item() == 1.0
    assert run("x = torch.ones(1).pin_memory()")["x"].item() == 1.0
    assert not run("x = torch.empty(1, pin_memory=True)")["x"].is_pinned()


def test_names_imported_from_torch_cuda_are_the_stand_ins():
    found = run("from torch.cuda import _lazy_call, device as device_ctx_manager\nwith device_ctx_manager(0):\n  x = 1")
    assert found["_lazy_call"] is CPU_DEVICE._lazy_call


def test_streams_and_events_are_always_done():
    found = run(
        "s = torch.cuda.Stream()\n"
        "s.wait_stream(torch.cuda.current_stream())\n"
        "with torch.cuda.stream(s):\n"
        "  e = s.record_event()\n"
        "torch.cuda.synchronize()\n"
        "ready, same = e.query(), s == torch.cuda.default_stream()"
    )
    assert found["ready"]
    assert found["same"]


def test_the_generator_of_the_device_is_the_generator_of_the_cpu():
    run("torch.cuda.manual_seed(5)")
    first = torch.rand(1)
    state = run("torch.cuda.manual_seed(5)\nstate = torch.cuda.get_rng_state()")["state"]
    run("torch.rand(9)")
    CPU_DEVICE.set_rng_state(state)
    assert torch.equal(torch.rand(1), first)


def test_longer_text_with_cuda_in_it_is_left_alone():
    assert run('text = "cuda graphs need cuda"')["text"] == "cuda graphs need cuda"


def test_what_is_not_listed_is_the_real_torch_cuda():
    assert run("found = torch.cuda.is_available()")["found"] == torch.cuda.is_available()


def test_line_numbers_stay_right():
    with pytest.raises(ValueError, match="here") as caught:
        run('\n\nx = torch.zeros(1, device="cuda")\nraise ValueError("here")')
    assert caught.traceback[-1].lineno + 1 == 4
