"""Writes a scenario's model as a class of its own: explicit layers, and a forward."""

from collections.abc import Iterator
from typing import Any

from conformance.scenarios import layers

_ACTIVATIONS = {"tanh": "torch.tanh", "gelu": "nn.functional.gelu", "relu": "torch.relu"}
_CASTS = {"float64": "double", "float32": "float", "bfloat16": "bfloat16", "float16": "half"}
_OWN: dict[type[Any], tuple[str, ...]] = {
    layers.Conv: (
        "class SpreadConv2d(nn.Conv2d):  # 2 by 2, of values that are spread out",
        "    def forward(self, x):",
        "        return super().forward(x[:, :, None, None] * x.new_tensor([[0.5, 1.0], [1.5, 2.0]])).flatten(1)",
    ),
    layers.Embedding: (
        "class AddedEmbedding(nn.Embedding):  # adds the row that the first value selects",
        "    def forward(self, x):",
        "        return x + 1.5 * super().forward((8 * x[:, 0]).floor().long() % self.num_embeddings)",
    ),
    layers.SmoothNorm: (
        "class SmoothNorm(nn.RMSNorm):",
        "    def forward(self, x):",
        "        return self.weight * x * (x.square().mean(-1, keepdim=True) + 1).rsqrt()",
    ),
    layers.Residual: (
        "class ResidualLinear(nn.Linear):",
        "    def forward(self, x):",
        "        return x + super().forward(x)",
    ),
}
_EXPLICIT = (layers.Linear, layers.Norm, layers.Again, layers.TokenEmbedding, *_OWN)
_WHEN = {  # when a model's branch is used; NOW holds the rank, the step and the micro-batch
    "used_on_rank_0": 'NOW["rank"] == 0',
    "used_on_rank_1": 'NOW["rank"] == 1',
    "used_in_even_steps": 'NOW["step"] % 2 == 0',
    "used_in_odd_steps": 'NOW["step"] % 2 == 1',
    "used_in_turn": '(NOW["rank"] + NOW["step"]) % 2 == 0',
    "used_in_first_micro_batch": 'NOW["micro"] == 0',
}
_NUMBERS = {"one_each": '[NOW["rank"] % 2]', "order_by_rank": '((1, 0) if NOW["rank"] % 2 else (0, 1))'}


def model_lines(spec: Any) -> Iterator[str]:
    """Yield the lines of a class `Model(rank)`, whose parameters are those of `WEIGHTS[rank]`.

    Args:
        spec: a `ModelSpec`, or something that reads one.
    """
    for kind, lines in _OWN.items():
        if any(isinstance(layer, kind) for layer in spec.layers):
            yield from lines
    if has_places(spec):
        yield 'NOW = {"rank": 0, "step": 0, "micro": 0}  # what the model computes for'
    yield "class Model(nn.Module):"
    yield "    def __init__(self, rank):"
    yield "        super().__init__()"
    yield from (f"        {line}" for line in _made(spec))
    yield "        self.load_state_dict(WEIGHTS[rank], strict=False)"
    yield f"    def forward(self, x{', gain' * (spec.keyword or spec.positional)}):"
    yield from (f"        {line}" for line in _forward(spec))


def is_explicit(spec: Any) -> bool:
    """Whether a class of a few lines can have all layers of a model."""
    return all(isinstance(layer, _EXPLICIT) for layer in spec.layers)


def has_places(spec: Any) -> bool:
    """Whether what the model computes depends on the rank, the step or the micro-batch."""
    return spec.branch in {*_WHEN, *_NUMBERS}


def _call(layer: Any, width: int) -> str:
    """Return the call that makes a layer."""
    if not isinstance(layer, layers.Conv):
        return layers.layer_as_code(layer, width)
    order = ".to(memory_format=torch.channels_last)" if layer.channels_last else ""
    return f"SpreadConv2d({width}, {layer.outputs}, 2){order}"


def _made(spec: Any) -> Iterator[str]:
    """Yield the statements that make the parameters."""
    code = [_call(layer, width) for layer, width in zip(spec.layers, spec.widths, strict=False)]
    cast = f".{_CASTS[spec.dtype]}()"
    if spec.mixed:
        dtypes = (layers.dtype_of(layer) or spec.dtype for layer in spec.layers)
        code, cast = [f"{made}.{_CASTS[dtype]}()" for made, dtype in zip(code, dtypes, strict=True)], ""
    yield f"self.layers = nn.ModuleList([{', '.join(code)}]){cast}"
    for index, layer in enumerate(spec.layers):
        if isinstance(layer, layers.Again):
            yield f"self.layers[{index}] = self.layers[{layer.layer}]"
    if spec.scale:
        yield f"self.scale = nn.Parameter(torch.ones((), dtype=torch.{spec.dtype}))"
    if branches := [shape for name, shape in spec.shapes.items() if name.startswith("branches.")]:
        linear = f"nn.Linear({spec.inputs}, {spec.widths[-1]}, bias=False)"
        yield f"self.branches = nn.ModuleList([{', '.join([linear] * len(branches))}]).{_CASTS[spec.dtype]}()"
    if spec.transposed is not None:
        shape = spec.shapes[f"layers.{spec.transposed}.weight"]
        empty = f"torch.empty({shape[::-1]}, dtype=torch.{spec.dtype})"
        yield f"self.layers[{spec.transposed}].weight = nn.Parameter({empty}.t())  # not contiguous"
    if spec.tied is not None:
        yield f"self.layers[{spec.tied[1]}].weight = self.layers[{spec.tied[0]}].weight"
    yield from (f'self.get_parameter("{name}").requires_grad_(False)' for name in spec.frozen)


def _forward(spec: Any) -> Iterator[str]:
    hidden = "h" if has_places(spec) or spec.mixed else "x"
    call = f"checkpoint(layer, {{}}, use_reentrant={spec.reentrant})" if spec.recomputed else "layer({})"
    if spec.reentrant:
        yield "x = x.clone().requires_grad_()  # reentrant checkpoints need it"
    taken = f"{hidden}.to(next(layer.parameters()).dtype)" if spec.mixed else hidden
    if hidden != "x" and len(spec.layers) > 1:
        yield "h = x"
    if len(spec.layers) > 1:
        yield "for layer in self.layers[:-1]:"
        yield f"    {hidden} = {_ACTIVATIONS[spec.activation]}({call.format(taken)})"
    taken = taken if len(spec.layers) > 1 else taken.replace("h", "x", 1)
    last = f"{call.format(taken).replace('layer', 'self.layers[-1]')}{'.to(x.dtype)' * spec.mixed}"
    if has_places(spec):
        yield f"{hidden} = {last}"
        last = hidden
    if spec.branch in _WHEN:
        yield f"if {_WHEN[spec.branch]}:"
        yield "    h = h + self.branches[0](x)"
    if spec.branch in _NUMBERS:
        yield f"for number in {_NUMBERS[spec.branch]}:"
        yield "    h = h + (number + 1) * self.branches[number](x)"
    gain = " * gain" if spec.keyword or spec.positional else ""
    yield f"return {last}{gain}{' * self.scale' if spec.scale else ''}"
