"""A suite that compiles a model on ranks, twice."""

from pathlib import Path


def compiled(device: str, cache: Path) -> str:
    """Return a suite whose second test compiles on ranks that have compiled before; `cache` is empty at first."""
    return f"""
        pids = []

        @pytest.mark.parametrize("width", [4, 8])
        @distributed(device="{device}")
        def test_trains(ddp, width):
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = {str(cache)!r}
            pids.append(os.getpid())
            assert len(set(pids)) == 1
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU()).to(ddp.device)
            x = torch.full((3, width), ddp.rank + 1.0, device=ddp.device)
            expected = torch.autograd.grad(model(x).square().mean(), model[0].weight)[0]
            dist.all_reduce(expected)
            trained = torch.compile(torch.nn.parallel.DistributedDataParallel(model))
            trained(x).square().mean().backward()
            torch.testing.assert_close(model[0].weight.grad, expected / ddp.world_size)
    """
