"""Bugs in how accuracy is computed over all ranks."""

from bug import Bug

_EVALUATION = "evaluation"
BUGS = [
    Bug(_EVALUATION, "dist.all_reduce(counts)", "pass", "global_accuracy", "never reduced"),
    Bug(
        _EVALUATION,
        "float(counts[0] / counts[1])",
        "100 * float(counts[0] / counts[1])",
        "global_accuracy",
        "a percentage",
    ),
    Bug(_EVALUATION, "len(y)])", "len(y)])\n            dist.all_reduce(counts)", "global_accuracy", ""),
    Bug(
        _EVALUATION,
        "    dist.all_reduce(counts)",
        "    counts /= counts[1].clone()\n    dist.all_reduce(counts)",
        "weighted_by_samples",
        "the mean of the ranks' accuracies",
    ),
    Bug(
        _EVALUATION,
        ".sum(), len(y)]",
        ".double().mean(), 1]",
        "weighted_by_samples",
        "the mean of the batches' accuracies",
    ),
    Bug(
        _EVALUATION,
        "dist.all_reduce(counts)",
        "dist.all_reduce(counts, async_op=True)",
        "results_are_waited_for",
        "Nobody waited at all for all_reduce",
    ),
    Bug(_EVALUATION, "    counts = torch", "    [*batches][0]\n    counts = torch", "ranks_with_fewer_batches", ""),
    Bug(_EVALUATION, "model.eval()", "pass", "evaluates", "in training mode"),
    Bug(_EVALUATION, "module.training = training", "pass", "modes_stay", "in evaluation mode afterwards"),
    Bug(_EVALUATION, "model.eval()", "model.training = False", "evaluates", "reaches every module"),
    Bug(
        _EVALUATION,
        "module.training = training",
        "model.training = modes[model]",
        "modes_stay",
        "`dropout` was in",
    ),
    Bug(_EVALUATION, "module.training = training", "module.train()", "modes_stay", "in training mode afterwards"),
    Bug(
        _EVALUATION,
        "module.training = training",
        "module.training = modes[model]",
        "modes_stay",
        "a frozen norm",
    ),
    Bug(_EVALUATION, "torch.no_grad()", "torch.enable_grad()", "evaluates", "torch.no_grad()"),
    Bug(
        _EVALUATION,
        "    with torch.no_grad():",
        "    torch.set_grad_enabled(False)\n    if True:",
        "arguments_stay",
        "turned on before, and are turned off",
    ),
    Bug(
        _EVALUATION,
        "    dist.all_reduce(counts)",
        "    torch.set_grad_enabled(True)\n    dist.all_reduce(counts)",
        "arguments_stay",
        "turned off before, and are turned on",
    ),
    Bug(
        _EVALUATION,
        "dtype=torch.float64",
        "dtype=next(model.parameters()).dtype",
        "counts_exactly",
        "The model is in bfloat16",
    ),
    Bug(
        _EVALUATION,
        "for x, y in batches:",
        "for x, y in (batches[i] for i in range(len(batches))):",
        "results_are_waited_for",
        "not subscriptable",
    ),
    Bug(
        _EVALUATION,
        "def evaluate(model, batches):\n"
        "    modes = {module: module.training for module in model.modules()}\n"
        "    model.eval()\n"
        "    counts = torch.zeros(2, dtype=torch.float64)\n",
        "def evaluate(model, batches, counts=torch.zeros(2, dtype=torch.float64)):\n"
        "    modes = {module: module.training for module in model.modules()}\n"
        "    model.eval()\n",
        "counts_anew",
        "begin with zero in each call",
    ),
    Bug(
        _EVALUATION,
        "    with torch.no_grad():",
        "    model.requires_grad_(False)\n    if True:",
        "arguments_stay",
        "which parameters require gradients",
    ),
    Bug(
        _EVALUATION,
        "    model.eval()",
        "    model.eval()\n    model.zero_grad()",
        "arguments_stay",
        "a gradient that was there",
    ),
    Bug(
        _EVALUATION,
        "(model(x).argmax(1) == y).sum()",
        "(model(x).softmax(1)[range(len(y)), y] > 0.5).sum()",
        "global_accuracy",
        "samples are right",
    ),
    Bug(
        _EVALUATION,
        "    model.eval()\n",
        "    model.eval()\n    torch.manual_seed(0)\n",
        "global_generators_stay",
        "Seed nothing in evaluation",
    ),
    Bug(
        _EVALUATION,
        "    model.eval()\n",
        "    model.eval()\n    model.float().double()\n",
        "arguments_stay",
        "a parameter's numbers",
    ),
    Bug(
        _EVALUATION,
        "    dist.all_reduce(counts)\n",
        "    dist.broadcast(counts, 0)\n",
        "global_accuracy",
        "rank 0's samples alone",
    ),
]
