"""Bugs in the seed of a data loader's generator."""

from bug import Bug

_GENERATOR = "loader_generator"
_RANK = "dist.get_rank()"
_LOCAL_RANK = '__import__("os").environ["LOCAL_RANK"]'
_ON_ITS_OWN_MACHINE = "is a rank's place on its own"
BUGS = [
    Bug(
        _GENERATOR,
        "manual_seed(seed + dist.get_rank())",
        "set_state(torch.get_rng_state())",
        "reproducible",
        "shuffle differently",
    ),
    Bug(_GENERATOR, "seed + dist.get_rank()", "seed", "ranks_draw_apart", "seed + rank"),
    Bug(_GENERATOR, "seed + dist.get_rank()", "dist.get_rank()", "seed_decides", "the same stream"),
    Bug(
        _GENERATOR,
        "generator = torch",
        "torch.manual_seed(seed)\n    generator = torch",
        "global_generators_stay",
        "of its own",
    ),
    Bug(
        _GENERATOR,
        "generator = torch",
        "__import__('random').seed(seed)\n    generator = torch",
        "global_generators_stay",
        "Python's `random`",
    ),
    Bug(
        _GENERATOR,
        "generator = torch",
        "__import__('numpy').random.seed(seed)\n    generator = torch",
        "global_generators_stay",
        "NumPy's",
    ),
    Bug(
        _GENERATOR,
        "def get_ddp_generator(seed):\n    generator = torch.Generator()\n",
        "generator = torch.Generator()\n\n\ndef get_ddp_generator(seed):\n",
        "streams_are_apart",
        "they are one",
    ),
    Bug(
        _GENERATOR,
        "seed + dist.get_rank()",
        "seed + __import__('os').getpid()",
        "reproducible",
        "what seed and rank alone decide",
    ),
    Bug(
        _GENERATOR, "generator.manual_seed(", "seed and generator.manual_seed(", "ranks_draw_apart", "from the seed 0."
    ),
    Bug(
        _GENERATOR,
        "    generator.manual_seed(seed + dist.get_rank())\n",
        "    generator.manual_seed(seed)\n    torch.randint(2**31, (dist.get_rank(),), generator=generator)\n",
        "streams_are_apart",
        "begin at different places in it",
    ),
    Bug(
        "loader_generator",
        f"seed + {_RANK}",
        f"seed + int({_LOCAL_RANK})",
        "on_two_machines",
        _ON_ITS_OWN_MACHINE,
    ),
]
