"""The central step: learning rate of a round, and the optimizers from their definitions.

With g the gradient of the round (minus the mean update, unless the algorithm says otherwise), x the
parameters, eta the rate, d the weight decay, t the number of the step, and v, u and s of shape (P,)
kept from step to step:

| optimizer | step |
|---|---|
| sgd | v = m v + g + d x; x -= eta v |
| adagrad | h = g + d x; s += h^2; x -= eta h / (sqrt(s) + e) |
| adam | h = g + d x; u = b1 u + (1 - b1) h; s = b2 s + (1 - b2) h^2; x -= eta u' / (sqrt(s') + e) |
| adamw | the same of h = g, after x -= eta d x |
| yogi | as adam, but s -= (1 - b2) sign(s - h^2) h^2 from s_0, and no bias correction |

u' = u / (1 - b1^t) and s' = s / (1 - b2^t) are without bias; with ``epsilon_hat`` e stands beside
sqrt(s), and is divided by sqrt(1 - b2^t) here.

Source: Reddi et al. 2021, algorithm 2; Kingma and Ba 2015; Loshchilov and Hutter 2019 (adamw);
Zaheer et al. 2018 (yogi).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def rate(full: float, schedule: Any, number: int, total: int) -> float:
    """Learning rate of a round: warm-up from full / warmup, then a decay that ends in round total.

    ``schedule`` is a ``pfl_bench.config.training.ScheduleOptions``, of which fields are read.
    """
    warmup, end = int(schedule.warmup), float(schedule.final_fraction)
    if number <= warmup:
        return full * number / warmup
    part = min(1.0, (number - warmup) / max(1, total - warmup))
    factors = {
        "constant": 1.0,
        "linear": 1.0 - (1.0 - end) * part,
        "cosine": end + (1.0 - end) * (1.0 + math.cos(math.pi * part)) / 2.0,
        "exponential": end**part,
        "step": schedule.step_factor ** ((number - warmup - 1) // schedule.step_every),
    }
    return full * float(factors[schedule.decay])


class Optimizer:
    """A central optimizer, of ``pfl_bench.config.training.OptimizerOptions`` and P.

    ``first`` is v or u, ``second`` s, ``steps`` t; ``eta`` is that of the last step.
    """

    def __init__(self, options: Any, length: int) -> None:
        self.options, self.steps, self.eta = options, 0, 0.0
        self.first, self.second = torch.zeros(2, length, dtype=torch.float64)
        if options.name == "yogi":
            self.second += options.initial_second_moment

    def step(self, central: Tensor, gradient: Tensor, eta: float) -> Tensor:
        """The parameters after a step, shape (P,), float64, of those before and the gradient."""
        o, x, g = self.options, central.double(), gradient.double()
        self.steps, self.eta = self.steps + 1, eta
        if o.name == "adamw":
            x = x - eta * o.weight_decay * x
        else:
            g = g + o.weight_decay * x
        if o.name == "sgd":
            self.first = o.momentum * self.first + g
            return x.sub(self.first, alpha=eta)
        if o.name == "adagrad":
            self.second = self.second + g**2
            return x.sub(g / (self.second.sqrt() + o.epsilon), alpha=eta)
        self.first = o.beta1 * self.first + (1.0 - o.beta1) * g
        if o.name == "yogi":
            sign = torch.sign(self.second - g**2)
            self.second = self.second - (1.0 - o.beta2) * sign * g**2
            return x.sub(self.first / (self.second.sqrt() + o.epsilon), alpha=eta)
        self.second = o.beta2 * self.second + (1.0 - o.beta2) * g**2
        bias = 1.0 - o.beta2**self.steps
        epsilon = o.epsilon / math.sqrt(bias) if o.epsilon_hat else o.epsilon
        first = self.first / (1.0 - o.beta1**self.steps)
        return x.sub(first / ((self.second / bias).sqrt() + epsilon), alpha=eta)
