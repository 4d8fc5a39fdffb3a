"""Central optimizers and learning-rate schedules."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pfl_bench.config.training import OptimizerOptions, ScheduleOptions

BLOCK_ROWS = 1 << 20
# What torch's optimizers keep of each tensor; Adam and AdamW keep step and two moments.
_KEPT = {"sgd": ("momentum_buffer",), "adagrad": ("step", "sum"), "yogi": ("first", "second")}
# Of torch's optimizers, in one version or another.
_FLAGS = dict.fromkeys(
    ("maximize", "foreach", "differentiable", "fused", "capturable", "decoupled_weight_decay"),
    False,
)


class Yogi(torch.optim.Optimizer):
    """Yogi: Adam whose second moment moves by at most (1 - beta2) of the squared gradient.

    The first moment starts at zero and the second at ``initial_second_moment``; there is no bias
    correction, as in the federated use. ``eps``, the paper's tau, is added to the root of the
    second moment; ``weight_decay`` is an L2 penalty, added to the gradient.

    Source: Zaheer et al., 2018; Reddi et al., 2021, algorithm 2 (FedYogi), and its appendix for
        the start of the second moment.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-3,
        weight_decay: float = 0.0,
        initial_second_moment: float = 1e-6,
    ) -> None:
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "initial_second_moment": initial_second_moment,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take one step along the gradients."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["first"] = torch.zeros_like(parameter)
                    state["second"] = torch.full_like(parameter, group["initial_second_moment"])
                whole = (parameter, parameter.grad, state["first"], state["second"])
                # In blocks, so that squares, signs and roots take little memory.
                blocks = ((t if t.dim() else t.view(1)).split(BLOCK_ROWS) for t in whole)
                for weights, gradient, first, second in zip(*blocks, strict=True):
                    if group["weight_decay"]:
                        gradient = gradient.add(weights, alpha=group["weight_decay"])
                    square = gradient.square()
                    first.mul_(beta1).add_(gradient, alpha=1 - beta1)
                    second.addcmul_(square, torch.sign(second - square), value=-(1 - beta2))
                    weights.addcdiv_(first, second.sqrt().add_(group["eps"]), value=-group["lr"])
        return loss


class AdamEpsilonHat(torch.optim.Adam):
    """Adam whose ``eps`` is added before the bias of the second moment is corrected.

    In PyTorch's terms its eps in step t is eps / sqrt(1 - beta2^t).

    Source: Kingma and Ba 2015, section 2, last paragraph (epsilon hat); Keras' Adam.
    """

    def __init__(self, params: Iterable[Tensor], eps: float, **settings: Any) -> None:
        super().__init__(params, eps=eps, **settings)
        for group in self.param_groups:
            group["epsilon_hat"] = eps
            group["steps"] = 0

    def step(self, closure: Any = None) -> Any:
        """Take one step."""
        for group in self.param_groups:
            group["steps"] += 1
            group["eps"] = group["epsilon_hat"] / math.sqrt(
                1.0 - group["betas"][1] ** group["steps"]
            )
        return super().step(closure)


def build_optimizer(
    options: OptimizerOptions, params: Iterable[Tensor], learning_rate: float
) -> torch.optim.Optimizer:
    """Build a central optimizer over tensors of any shape whose ``grad`` the caller sets."""
    kind, settings = _kind_and_settings(options)
    return kind(params, lr=learning_rate, weight_decay=options.weight_decay, **settings)


def _kind_and_settings(
    options: OptimizerOptions,
) -> tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]:
    """Class of an optimizer, and its arguments beside rate and weight decay.

    Adam and AdamW run fused, one pass over memory a step: on 2 cores, 9 ms instead of 57 for 11
    million parameters.
    """
    betas, eps = (options.beta1, options.beta2), options.epsilon
    if options.name == "sgd":
        return torch.optim.SGD, {"momentum": options.momentum}
    if options.name == "adagrad":
        return torch.optim.Adagrad, {"eps": eps}
    if options.name == "yogi":
        start = options.initial_second_moment
        return Yogi, {"betas": betas, "eps": eps, "initial_second_moment": start}
    adam = AdamEpsilonHat if options.epsilon_hat else torch.optim.Adam
    kind = torch.optim.AdamW if options.name == "adamw" else adam
    return kind, {"betas": betas, "eps": eps, "fused": True}


def optimizer_form(options: OptimizerOptions, params: Iterable[Tensor]) -> dict[str, Any]:
    """Form of a central optimizer's state after a step, over tensors of these shapes.

    Numbers of its group are those of the options; the rate is 1.

    Read from the class's signature: torch imports its compiler for the first optimizer that is
    built, which takes longer than a small run's audit.
    """
    kept = _KEPT.get(options.name, ("step", "exp_avg", "exp_avg_sq"))
    if options.name == "sgd" and not options.momentum:
        kept = ()
    state = {
        number: {name: torch.ones(()) if name == "step" else tensor for name in kept}
        for number, tensor in enumerate(params)
    }
    kind, settings = _kind_and_settings(options)
    kind = torch.optim.Adam if options.epsilon_hat else kind
    known = {name: each.default for name, each in inspect.signature(kind).parameters.items()}
    own = {"epsilon_hat": options.epsilon, "steps": 0} if options.epsilon_hat else {}
    own |= {**settings, "lr": 1.0, "weight_decay": options.weight_decay}
    group = {**known, **own, **_FLAGS, "params": [*state]}
    return {"state": state if kept else {}, "param_groups": [group]}


def rate_factor(schedule: ScheduleOptions, step: int, total: int) -> float:
    """Fraction of the full learning rate that a step, from 1, of ``total`` uses; decays end there.

    It is above 0 for warm-up, constant and exponential; linear and cosine reach ``final_fraction``.
    """
    if step <= schedule.warmup:
        return step / schedule.warmup
    span = max(1, total - schedule.warmup)
    progress = min(1.0, (step - schedule.warmup) / span)
    end = schedule.final_fraction
    if schedule.decay == "linear":
        return 1.0 + (end - 1.0) * progress
    if schedule.decay == "cosine":
        return end + (1.0 - end) * (1.0 + math.cos(math.pi * progress)) / 2.0
    if schedule.decay == "exponential":
        return float(end**progress)
    if schedule.decay == "step":
        passed = (step - schedule.warmup - 1) // schedule.step_every
        return float(schedule.step_factor**passed)
    return 1.0


def set_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of all parameter groups."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


@dataclass(frozen=True)
class RateSchedule:
    """A schedule over ``total`` steps: from a step, from 1, to the fraction of the full rate."""

    options: ScheduleOptions
    total: int

    @classmethod
    def of(cls, options: ScheduleOptions, total: int) -> RateSchedule | None:
        """The schedule that options ask for; None if they ask for the full rate in each step."""
        return None if options == ScheduleOptions() else cls(options, total)

    def __call__(self, step: int) -> float:
        """The fraction, as ``rate_factor`` has it."""
        return rate_factor(self.options, step, self.total)
