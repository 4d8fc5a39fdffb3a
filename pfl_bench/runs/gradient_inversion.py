"""Gradient inversion: what the update of one client shows of its images.

Guarantee: none; this is an attack. The attacker knows the central model of round 1, one client's
update, how many examples it has, their labels, and the range of the pixels. Images are sought whose
gradient at the central model points where the negative update does: least 1 - cosine, plus a total
variation, by Adam on the signs of the gradient. An update of several local steps is taken for one
gradient, which makes the attack weaker with every step.

Three updates are inverted: the bare one; the clipped one; and the clipped one with the noise of a
whole round, which is what is left to an attacker who knows all other clients' updates. Clipping
does not turn an update, so it hides little from an attack by cosine. Where clients add noise
themselves, their report takes the place of the last two.

Source: Geiping, Bauermeister, Dröge, Moeller 2020, "Inverting gradients: how easy is it to break
privacy in federated learning?", equation 4 and section 4 (cosine, total variation, signed Adam,
known labels). That an update of several steps is taken for one gradient is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pfl_bench.federated.parts import FederatedParts, build_engine
from pfl_bench.federated.privacy_session import make_federated_plan
from pfl_bench.rng import Purpose, seed_torch, stream
from pfl_bench.types import ConfigError, FederatedSplit, Participants
from privacy.aggregate import Aggregate

STEPS = 1200
_RATE = 0.05
_TOTAL_VARIATION = 1e-3
# More examples are mixed in one update beyond any use, and fill a picture.
MOST_EXAMPLES = 16


@dataclass(frozen=True)
class Inversion:
    """One reconstruction: images, shape (n, C, H, W), in the order of the originals they fit.

    ``mse`` is the mean squared error to these, ``psnr`` the peak signal-to-noise ratio in dB, the
    peak being the range of the pixels.
    """

    images: Tensor
    mse: float
    psnr: float


@dataclass(frozen=True)
class Inverted:
    """Subject and result of an attack on a user of the training split.

    The originals, shape (n, C, H, W), are as the model takes them; ``pixel_range`` has the smallest
    and largest value of a pixel; reconstructions are found by what they were made from: "bare
    update", ...
    """

    user: int
    originals: Tensor
    pixel_range: tuple[float, float]
    found: dict[str, Inversion]


def invert_update(
    parts: FederatedParts, user: int | None = None, steps: int | None = None
) -> Inverted:
    """Attack one client's update of round 1.

    ``user`` is an index in the training split, None for the user with the fewest examples; the
    search takes ``steps``, at least 1, None for ``STEPS``. ConfigError if the inputs are no images,
    or there is no such user.
    """
    user = _chosen(parts.split, user)
    seed = parts.resolved.config.seed
    offsets = parts.split.offsets
    examples = parts.split.read_range(int(offsets[user]), int(offsets[user + 1]))
    device = parts.model.device
    inputs = parts.forward.prepare(examples.inputs.to(device), None)
    shape = _image_shape(inputs)
    sample = parts.split.read_range(0, min(256, parts.split.num_examples)).inputs.to(device)
    seen = parts.forward.prepare(sample, None)
    pixels = float(seen.min()), float(seen.max())
    targets = examples.targets.to(device)
    central = parts.model.vector.clone()
    found = {}
    for name, update in _updates(parts, user).items():
        parts.model.vector.copy_(central)
        gradient = _gradient_of(parts, targets)
        seed_torch(seed, Purpose.SHADOW, torch.device("cpu"))
        start = torch.randn(inputs.shape).to(device) * 0.2 + 0.5 * sum(pixels)
        images = search(gradient, -update, start, shape, pixels, steps or STEPS)
        found[name] = _compare(images, inputs.reshape(len(inputs), *shape), pixels)
    return Inverted(user, inputs.reshape(len(inputs), *shape).cpu(), pixels, found)


def _chosen(split: FederatedSplit, user: int | None) -> int:
    counts = np.diff(split.offsets)
    if user is None:
        candidates = np.flatnonzero(counts > 0)
        return int(candidates[np.argmin(counts[candidates])])
    if not 0 <= user < split.num_users or not 1 <= counts[user] <= MOST_EXAMPLES:
        what = f"has {counts[user]} examples" if 0 <= user < split.num_users else "is no user"
        raise ConfigError(
            f"--user {user}: {what}; name a training user, 0 to {split.num_users - 1}, with 1 to "
            f"{MOST_EXAMPLES} examples, or leave it out"
        )
    return user


def _image_shape(inputs: Tensor) -> tuple[int, int, int]:
    """Channels, height and width of inputs that are images, or squares of pixels in a row."""
    shape = tuple(inputs.shape[1:])
    side = math.isqrt(shape[0]) if len(shape) == 1 else 0
    if inputs.is_floating_point():
        if len(shape) == 3 and shape[0] in (1, 3):
            return shape[0], shape[1], shape[2]
        if len(shape) == 2:
            return 1, shape[0], shape[1]
        if side * side == math.prod(shape):
            return 1, side, side
    raise ConfigError(
        f"--kind gradient: inputs of shape {shape} and type {inputs.dtype} are no images; choose a "
        "row whose task has images, such as digits, femnist or cifar10"
    )


def _updates(parts: FederatedParts, user: int) -> dict[str, Tensor]:
    """The client's update of round 1: bare, clipped, and noised, shape (P,) each."""
    engine = build_engine(parts, lambda text: None)
    central = parts.model.vector.clone()
    (result,) = engine.train(np.array([user]), 1, central)
    bare = result.update.clone()
    plan = make_federated_plan(parts, Participants())
    if plan is None:
        return {"bare update": bare}
    mechanism, seed = plan.mechanism, parts.resolved.config.seed
    aggregate = Aggregate.zeros(len(bare), bare.device, parts.options.cohort_size)
    client = stream(seed, Purpose.CLIENT_NOISE, 1, user)
    mechanism.accumulate(aggregate, bare, 1.0, client)
    if mechanism.description.randomizes_clients:
        return {"bare update": bare, "the client's report": aggregate.total.float()}
    release = mechanism.release(aggregate, stream(seed, Purpose.NOISE, 1))
    noised = release.mean_update.to(bare.device) * parts.options.cohort_size
    return {
        "bare update": bare,
        "clipped": aggregate.total.float().clone(),
        "clipped and noised": noised.float(),
    }


def _gradient_of(parts: FederatedParts, targets: Tensor) -> Callable[[Tensor], Tensor]:
    """The flat gradient, shape (P,), of the loss at the model's parameters, of given inputs."""
    forward, parameters = parts.forward, parts.model.parameters

    def gradient(inputs: Tensor) -> Tensor:
        outputs = forward.apply(forward.module, inputs)
        loss = forward.mean_loss(outputs, targets)
        pieces = torch.autograd.grad(loss, parameters, create_graph=True)
        return torch.cat([piece.reshape(-1) for piece in pieces])

    forward.module.eval()
    return gradient


def search(
    gradient: Callable[[Tensor], Tensor],
    wanted: Tensor,
    start: Tensor,
    shape: tuple[int, int, int],
    pixels: tuple[float, float],
    steps: int,
) -> Tensor:
    """Seek inputs whose gradient points along ``wanted``, shape (P,), beginning at ``start``.

    ``gradient`` gives, of inputs of the shape of ``start``, (n, ...), shape (P,), differentiable;
    ``shape`` has channels, height and width of an image, ``pixels`` their smallest and largest
    value. The rate of Adam falls to a thousandth over its steps. Gives shape (n, C, H, W), with
    pixels in their range.
    """
    images = start.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([images], lr=_RATE * (pixels[1] - pixels[0]))
    decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 10.0 ** (-3.0 * step / steps))
    length = torch.linalg.vector_norm(wanted).clamp_min(1e-30)
    for _ in range(steps):
        found = gradient(images)
        cosine = torch.dot(found, wanted) / (torch.linalg.vector_norm(found) * length + 1e-30)
        pictures = images.reshape(len(images), *shape)
        across = (pictures[..., 1:] - pictures[..., :-1]).abs().mean()
        down = (pictures[..., 1:, :] - pictures[..., :-1, :]).abs().mean()
        loss = 1.0 - cosine + _TOTAL_VARIATION * (across + down)
        (moved,) = torch.autograd.grad(loss, [images])
        images.grad = moved.sign()
        optimizer.step()
        decay.step()
        with torch.no_grad():
            images.clamp_(*pixels)
    return images.detach().reshape(len(images), *shape)


def _compare(images: Tensor, originals: Tensor, pixels: tuple[float, float]) -> Inversion:
    """Put reconstructions in the order of their originals, and measure the error."""
    from scipy.optimize import linear_sum_assignment

    errors = torch.cdist(originals.flatten(1), images.flatten(1)).square().cpu().numpy()
    _, places = linear_sum_assignment(errors)
    ordered = images[torch.from_numpy(places).to(images.device)]
    mse = float((ordered - originals).square().mean())
    psnr = 10.0 * math.log10((pixels[1] - pixels[0]) ** 2 / max(mse, 1e-12))
    return Inversion(ordered.cpu(), mse, psnr)


def to_json_dict(inverted: Inverted) -> Mapping[str, object]:
    """Content of ``gradient.json``."""
    return {
        "user": inverted.user,
        "examples": len(inverted.originals),
        "pixel_range": list(inverted.pixel_range),
        "found": {name: {"mse": one.mse, "psnr": one.psnr} for name, one in inverted.found.items()},
    }
