"""Grading is on CPUs, also where there are GPUs: a verdict is the same on every machine."""

import subprocess
import sys

TAKES_A_GPU_WHERE_IT_FINDS_ONE = """
    import os

    import torch
    import torch.distributed as dist
    from torch import nn

    class Averages(nn.Module):
        def __init__(self, module):
            super().__init__()
            assert not torch.cuda.is_available()
            assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
            self.module = module
            for tensor in (*module.parameters(), *module.buffers()):
                dist.broadcast(tensor.data, 0)

        def forward(self, *args, **kwargs):
            return self.module(*args, **kwargs)

    def get_naive_ddp(module):
        return Averages(module)

    def naive_ddp_on_after_backward(ddp_model, optimizer):
        for p in ddp_model.parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size() + 1
"""


def test_gpus_are_hidden_from_submissions_and_from_scripts(grade_path, submit, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    (graded,) = grade_path(
        submit(TAKES_A_GPU_WHERE_IT_FINDS_ONE), components=["naive_ddp"], core=True, examples=2
    ).components
    failed = next(check for check in graded.checks if check.status == "failed")
    assert failed.id == "trains[one_rank]", failed.message
    script = subprocess.run([sys.executable, failed.script], capture_output=True, text=True, check=False)
    assert script.returncode == 1, script.stderr
    assert "gradient of layers.0.weight" in script.stderr
