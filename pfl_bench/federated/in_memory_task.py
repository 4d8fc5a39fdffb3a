"""A task of one's own objects: users with their examples, and a callable that makes a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pfl_bench.client.forward import is_mean_of_singles
from pfl_bench.client.model_checks import mixing_layer
from pfl_bench.data.code_digest import code_digest
from pfl_bench.data.held_task import HeldTask
from pfl_bench.data.in_memory import read_splits
from pfl_bench.plugins import METRIC, available
from pfl_bench.types import DataFacts, UserInputError

# Loss, metrics of its outputs, and whether targets are classes.
_LOSSES = {
    "cross_entropy": (functional.cross_entropy, "classification", True),
    "binary_cross_entropy": (functional.binary_cross_entropy_with_logits, "multilabel", False),
}
_PROBED = 4


def in_memory_task(
    name: str,
    train: Mapping[Any, Any],
    val: Mapping[Any, Any] | None = None,
    test: Mapping[Any, Any] | None = None,
    *,
    model: Callable[[], nn.Module],
    loss: str | Callable[[Tensor, Tensor], Tensor] = "cross_entropy",
    metrics: Sequence[str] = (),
) -> HeldTask:
    """Make a task of objects in memory, for ``load_row(..., task=task)``.

    Examples are copied. Floats become float32, whole numbers int64. The seed of a private run's
    noise takes in a digest of users and examples, and one of the code of model and loss: bytecode,
    constants, and what of their modules they name (``pfl_bench.data.code_digest``).

    Args:
        name: What statements and summaries call it.
        train: By user, a pair (inputs, targets) of arrays or tensors of shapes (n, ...), or a
            map-style Dataset of such pairs, which is read once.
        val: Likewise; users of its own, or users of ``train`` with further examples.
        test: Likewise.
        model: A class or function that makes the model, without arguments.
        loss: "cross_entropy" (outputs (n, K), targets (n,), whole numbers below K),
            "binary_cross_entropy" (of logits; outputs and targets (n, K)), or a function of outputs
            and targets that gives the plain mean over examples.
        metrics: Names of metric families; none for those of the loss, which must be a named one.

    Raises:
        UserInputError: Data, model or loss do not fit; the message says where, and how to mend it.
    """
    if not isinstance(name, str) or not name.strip():
        raise UserInputError(f"name: {name!r:.60} is no text; give the task a name")
    if not callable(model) or isinstance(model, nn.Module):
        given = "a built module" if isinstance(model, nn.Module) else f"a {type(model).__name__}"
        raise UserInputError(
            f"model: {given} is nothing that makes a module; give its class or a function without "
            "arguments, such as lambda: Net(10)"
        )
    named = _LOSSES.get(loss) if isinstance(loss, str) else None
    if named is None and not callable(loss):
        raise UserInputError(
            f"loss: {loss!r:.60} is none of {', '.join(_LOSSES)}, nor a function of outputs and "
            "targets"
        )
    function: Any = loss if named is None else named[0]
    families = _families(metrics, None if named is None else named[1])
    integers = None if named is None else named[2]
    splits, split_by, content = read_splits({"train": train, "val": val, "test": test}, integers)
    first = splits["train"].read_range(0, min(_PROBED, splits["train"].num_examples))
    module, classes = _probe(model, function, named is not None, first.inputs, first.targets)
    for split in splits.values():
        if integers:
            split.check_classes(classes, f"the model has {classes} outputs")
        targets = split.read_range(0, split.num_examples).targets
        if integers is False and not 0 <= float(targets.min()) <= float(targets.max()) <= 1:
            user = split.first_user((targets < 0) | (targets > 1))
            raise UserInputError(f"{split.name}, user {user!r}, targets: must be from 0 to 1")
    layers = [[type(part), _settings(part)] for part in module.modules()]
    users = splits["train"].num_users
    facts = DataFacts(
        source=f"in-memory task '{name}': {users} users, given as objects in Python",
        variant="in-memory",
        checksum=content,
        num_classes=classes,
        input_shape=tuple(first.inputs.shape[1:]),
        split_by=split_by,
    )
    return HeldTask(
        name, splits, facts, families, function, model,
        getattr(model, "__qualname__", type(model).__name__),
        code_digest(model, function, families, layers),
    )  # fmt: skip


def _families(metrics: Sequence[str], default: str | None) -> tuple[str, ...]:
    known = available(METRIC)
    is_list = isinstance(metrics, list | tuple)
    if not is_list or any(metric not in known for metric in metrics):
        raise UserInputError(
            f"metrics: {metrics!r:.80}; give a list of {', '.join(known)}; a family of a plug-in "
            "is named by the row: load_row(..., plugins=[...], evaluation__metrics=[...])"
        )
    if not metrics and default is None:
        raise UserInputError(
            f"metrics: none, and a loss of one's own names none; give a list of {', '.join(known)}"
        )
    return tuple(metrics) or (str(default),)


def _probe(
    model: Callable[[], Any], loss: Any, is_named: bool, inputs: Tensor, targets: Tensor
) -> tuple[nn.Module, int]:
    """Make the model, and see what it makes of some examples: it, and its number of outputs."""
    with torch.random.fork_rng(devices=[]):
        try:
            module = model()
        except TypeError as error:
            raise UserInputError(
                f"model: cannot be made without arguments ({error}); give a function that needs "
                "none, such as lambda: Net(10)"
            ) from None
        if not isinstance(module, nn.Module):
            raise UserInputError(
                f"model: makes a {type(module).__name__}; make a torch.nn.Module that maps a batch "
                "of inputs to outputs"
            )
        batch = f"a batch of inputs {inputs.dtype} {list(inputs.shape)}"
        try:
            with torch.no_grad():
                outputs = module.eval()(inputs)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UserInputError(
                f"model: fails on {batch} ({str(error).splitlines()[0]}); make it take such a "
                "batch, or give inputs of the shape and type (floats become float32, whole numbers "
                "int64) that it takes"
            ) from None
        fits = isinstance(outputs, Tensor) and outputs.ndim > 0 and len(outputs) == len(inputs)
        if is_named and fits:
            like = outputs.shape[:1] if loss is functional.cross_entropy else outputs.shape
            fits = outputs.ndim == 2 and targets.shape == like
        if not fits:
            got = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
            raise UserInputError(
                f"model: makes outputs {got} of {batch} and targets {list(targets.shape)}; "
                "cross_entropy takes outputs [n, classes] and targets [n], binary_cross_entropy "
                "both [n, labels], a loss of one's own a tensor with a row for each example"
            )
        # A copy: what a model keeps of its last batch would hold the graph.
        if not copy.deepcopy(module)(inputs).requires_grad:
            raise UserInputError(
                "model: its outputs have no gradient by a parameter, so that nothing would be "
                "trained; take no detach(), no_grad() or argmax on the way, and leave a parameter "
                "that is not frozen"
            )
        if not is_named:
            _check_loss(loss, outputs, targets)
        mixing = mixing_layer(module, inputs, training=False) if len(inputs) > 1 else None
    if mixing is not None:
        raise UserInputError(
            f"model: layer {mixing} gives an example other outputs in a batch than alone, so "
            "metrics would depend on how batches are cut; use GroupNorm or LayerNorm, or keep the "
            "examples of a batch apart"
        )
    return module, int(outputs.shape[-1]) if outputs.ndim > 1 else 1


def _check_loss(loss: Any, outputs: Tensor, targets: Tensor) -> None:
    outputs.requires_grad_()
    value = loss(outputs, targets)
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise UserInputError(f"loss: gives {got}; give one number, the mean over the examples")
    if not value.requires_grad:
        raise UserInputError(
            "loss: has no gradient by the outputs; take no detach(), item() or argmax on the way"
        )
    if not is_mean_of_singles(loss, outputs, targets):
        raise UserInputError(
            "loss: of a batch is not the mean of its examples' losses; give the plain mean"
        )


def _settings(part: nn.Module) -> dict[str, Any]:
    """Plain attributes of a layer, such as a rate of dropout."""
    plain = (bool, int, float, str, tuple, type(None))
    return {key: value for key, value in sorted(vars(part).items()) if isinstance(value, plain)}
