"""The sections of a configuration that say how a model is trained, one a trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from privacy.sampling_scheme import SamplingScheme, scheme_named, scheme_names

if TYPE_CHECKING:
    SchemeName = str
else:
    SchemeName = Literal[scheme_names()]

T = TypeVar("T")
PositiveInt = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Workers = Annotated[int, Field(ge=0, le=64)]


def first_twice(values: Sequence[T]) -> T | None:
    """The first value that stands there twice."""
    return next((value for value in values if values.count(value) > 1), None)


def _distinct(values: list[T]) -> list[T]:
    if (twice := first_twice(values)) is not None:
        raise ValueError(f"'{twice}' stands twice; give it once")
    return values


Distinct = Annotated[list[T], AfterValidator(_distinct)]
"""A list in which nothing stands twice."""


class Strict(BaseModel):
    """Base of all sections: no unknown keys, no coercion, immutable."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class NoOptions(Strict):
    """Options of a plug-in that has none."""


class OptimizerOptions(Strict):
    """A central optimizer (the literature's server optimizer) and its constants.

    Attributes:
        name: "sgd", "adam" and "adamw" (both with correction of bias, which algorithm 2 of Reddi et
            al. 2021 does without), "adagrad" or "yogi" (without).
        momentum: For sgd.
        beta1: For adam, adamw, yogi.
        beta2: For adam, adamw, yogi.
        epsilon: Added to the denominator by all but sgd.
        epsilon_hat: For adam: epsilon is the one that Kingma and Ba (2015, section 2) call epsilon
            hat, as in Keras: added before the second moment's bias is corrected. Steps where it
            rules are then smaller at first, in round t by sqrt(1 - beta2^t).
        initial_second_moment: For yogi: where its second moment starts. FedScale's code has epsilon
            there.
        weight_decay: L2 penalty (adamw: decoupled).
    """

    name: Literal["sgd", "adam", "adamw", "adagrad", "yogi"] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    epsilon: PositiveFloat = 1e-8
    epsilon_hat: bool = False
    initial_second_moment: Annotated[float, Field(ge=0)] = 1e-6
    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _settings_are_of_the_optimizer(self) -> OptimizerOptions:
        for key, name in (("epsilon_hat", "adam"), ("initial_second_moment", "yogi")):
            is_given = getattr(self, key) != type(self).model_fields[key].default
            if is_given and self.name != name:
                raise ValueError(f"{key} is for {name} alone, not for {self.name}; remove it")
        return self


class ScheduleOptions(Strict):
    """Schedule of a learning rate over rounds (central training: over optimizer steps).

    Attributes:
        warmup: Linear warm-up over so many rounds, from rate/warmup to the full rate.
        decay: Shape after the warm-up.
        final_fraction: Fraction of the rate that linear, cosine and exponential decay end at.
        step_every: For "step": multiply by ``step_factor`` every so many rounds.
        step_factor: See ``step_every``.
    """

    warmup: Annotated[int, Field(ge=0)] = 0
    decay: Literal["constant", "linear", "cosine", "exponential", "step"] = "constant"
    final_fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    step_every: PositiveInt = 100
    step_factor: PositiveFloat = 0.1

    @model_validator(mode="after")
    def _exponential_needs_an_end(self) -> ScheduleOptions:
        if self.decay == "exponential" and self.final_fraction == 0:
            raise ValueError("exponential decay needs final_fraction > 0, such as 0.01")
        return self


def _check_one_clipping(prefix: str, by_weight: float | None, whole: float | None) -> None:
    if by_weight is not None and whole is not None:
        raise ValueError(
            f"{prefix}gradient_clip_norm ({by_weight:g}) bounds each weight tensor's gradient and "
            f"{prefix}gradient_clip_global_norm ({whole:g}) the whole gradient; give one of them"
        )


class FederatedOptions(Strict):
    """Federated training, private or not.

    Attributes:
        num_rounds: Central steps.
        cohort_size: Expected users a round.
        sampling: "poisson" (which every accountant knows), "cyclic_poisson" (groups of users take
            turns), "fixed_size" without replacement, "truncated_poisson" (no more users than the
            cohort and four of its square roots; accountant pld), or "full". With the section
            ``systems`` devices and ``selection`` decide instead; a private run must declare it:
            "selected".
        separation: Groups of "cyclic_poisson": no user is in two rounds less than so many apart.
            With the section ``systems``: nobody who was in a round is selected sooner.
        max_participations: Rounds that a user may be in, of a run with the section ``systems``;
            null for no limit.
        weighting: Clients count alike ("uniform", required under DP) or by their examples.
        local_epochs: Passes over a client's examples.
        local_steps: Stop a client after so many steps; null for no limit.
        local_batch_size: Examples a local step.
        local_batches: "per_epoch" starts each epoch with a new batch, so its last one may be
            smaller; "across_epochs" fills batches over the ends of epochs, as TensorFlow's
            ``repeat(epochs).batch(size)`` does: small clients take fewer, fuller steps.
        local_learning_rate: Rate of local SGD.
        local_schedule: How the local rate moves over rounds; all steps of a round have one rate.
        local_momentum: Momentum of local SGD; each client begins without any in each round.
        local_weight_decay: L2 penalty of local SGD, added to gradients after clipping, as
            torch.optim.SGD does (order of a step: ``pfl_bench.types.LocalTraining``).
        local_gradient_clip_norm: Bound of the L2 norm of each weight tensor's gradient in a local
            step (Keras calls it clipnorm); null for none. No part of privacy.
        local_gradient_clip_global_norm: Bound of the L2 norm of the whole gradient in a local step,
            all weight tensors together; null for none. Instead of the one before; no part of
            privacy either.
        algorithm: Plug-in name and options, such as {name: fedprox, proximal_weight: 0.1}.
        central_optimizer: Optimizer of the central step.
        central_learning_rate: Rate of the central step (the literature's server rate).
        central_schedule: How the central rate moves over rounds.
        engine: The name of an engine, or "auto": what was measured to be the fastest
            (``pfl_bench.federated.autotune``).
        engine_lanes: Clients that the vectorized engine trains at once; null for a number by the
            size of the model and the device (``pfl_bench.client.batched.auto_slots``). Above 1, the
            last bits of results depend on it and on ``workers``.
        data_workers: Threads that read clients ahead of training; 0 reads in line.
        workers: Processes on this machine over which clients are partitioned; "auto" is the number
            that is expected to end the run first. On GPUs use torchrun. Results are the same bits
            whatever the number (but see ``engine_lanes``).
        aggregation: Plug-in name and options of what the centre makes of clients' updates, such as
            {name: krum}; of runs without privacy, whose mechanism does that otherwise.
        compression: Plug-in name and options of how clients compress updates; null for not at all.
        selection: Plug-in name and options of who takes part, such as {name: oort}; needs the
            section ``systems``, and takes the place of ``sampling``. null is {name: available} with
            that section, and nothing without it.
        shadow: Number of a shadow run: a fair coin of (seed, this number) keeps each training user
            or leaves the user out of every round, whom the sampler draws and the accountant counts
            all the same. ``pfl-bench attack`` sets it; null for all users.
    """

    num_rounds: PositiveInt
    cohort_size: PositiveInt
    sampling: SchemeName = "poisson"
    separation: PositiveInt = 1
    weighting: Literal["uniform", "examples"] = "uniform"
    local_epochs: PositiveInt = 1
    local_steps: PositiveInt | None = None
    local_batch_size: PositiveInt
    local_batches: Literal["per_epoch", "across_epochs"] = "per_epoch"
    local_learning_rate: PositiveFloat
    local_schedule: ScheduleOptions = ScheduleOptions()
    local_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    local_weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    local_gradient_clip_norm: PositiveFloat | None = None
    local_gradient_clip_global_norm: PositiveFloat | None = None
    algorithm: dict[str, Any] = Field(default_factory=lambda: {"name": "fedavg"})
    central_optimizer: OptimizerOptions = OptimizerOptions()
    central_learning_rate: PositiveFloat = 1.0
    central_schedule: ScheduleOptions = ScheduleOptions()
    engine: str = "auto"
    engine_lanes: Annotated[int, Field(ge=1, le=65_536)] | None = None
    data_workers: Workers = 0
    workers: Annotated[int, Field(ge=1, le=64)] | Literal["auto"] = "auto"
    aggregation: dict[str, Any] = Field(default_factory=lambda: {"name": "mean"})
    compression: dict[str, Any] | None = None
    selection: dict[str, Any] | None = None
    max_participations: PositiveInt | None = None
    shadow: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one_gradient_clipping(self) -> FederatedOptions:
        _check_one_clipping(
            "local_", self.local_gradient_clip_norm, self.local_gradient_clip_global_norm
        )
        return self

    @property
    def scheme(self) -> SamplingScheme:
        """The sampling scheme; its numbers are checked when the users are known."""
        return scheme_named(self.sampling, self.separation, self.max_participations)

    @model_validator(mode="after")
    def _groups_of_cyclic_sampling(self) -> FederatedOptions:
        scheme = self.scheme
        if scheme.of_examples:
            raise ValueError(
                f"sampling is '{self.sampling}', which cuts the batches of central training "
                "(central.sampling); set it to poisson or fixed_size"
            )
        if scheme.is_drawn and scheme.keeps_distance and self.separation == 1:
            raise ValueError(
                f"sampling is '{self.sampling}', which draws from separation groups in turn: set "
                "separation to 2 or more, or sampling to poisson, which is what one group comes to"
            )
        return self


class CentralOptions(Strict):
    """Central training on the pooled training split.

    Attributes:
        num_epochs: Passes over the pooled examples (example-level DP: expected passes).
        batch_size: Examples a step (example-level DP with sampling poisson: expected).
        sampling: How example-level DP draws batches. "poisson" draws each example independently in
            each step. "shuffled" cuts batches from an order that each epoch draws anew, and drops
            what is left over: it is accounted as what it is, one full participation an epoch.
        learning_rate: Rate of the optimizer.
        optimizer: Optimizer and its constants.
        schedule: How the rate moves over steps.
        gradient_clip_norm: Bound of the L2 norm of each weight tensor's gradient (Keras calls it
            clipnorm); null for none. Not for example-level DP, which clips by example.
        gradient_clip_global_norm: Bound of the L2 norm of the whole gradient, all weight tensors
            together; null for none. Instead of the one before; not for example-level DP either.
        physical_batch_size: Under DP, gradients of at most so many examples are in memory.
        data_workers: Threads that read batches ahead of training; 0 reads in line.
    """

    num_epochs: PositiveInt
    batch_size: PositiveInt
    sampling: Literal["poisson", "shuffled"] = "poisson"
    learning_rate: PositiveFloat
    optimizer: OptimizerOptions = OptimizerOptions()
    schedule: ScheduleOptions = ScheduleOptions()
    gradient_clip_norm: PositiveFloat | None = None
    gradient_clip_global_norm: PositiveFloat | None = None
    physical_batch_size: PositiveInt = 256
    data_workers: Workers = 0

    @model_validator(mode="after")
    def _one_gradient_clipping(self) -> CentralOptions:
        _check_one_clipping("", self.gradient_clip_norm, self.gradient_clip_global_norm)
        return self


class LocalOptions(Strict):
    """Local models: each client trains on its own examples alone, and nothing leaves it.

    Needs data that are split inside each user: a client picks its rate by its own validation
    examples, and is tested on its own test examples.

    Attributes:
        num_epochs: Passes over a client's examples.
        batch_size: Examples a step.
        learning_rates: Grid that each client searches; the one that does best on its own ``val``
            examples is taken (ties to the earlier in the list). A client without val examples
            judges by its training examples.
        select_by: What is best: the lowest "loss", or the highest "accuracy", of which a few val
            examples give many ties, that go to the lower loss.
        choose_epoch: Whether a client also picks, in the same way, after which of the epochs it
            stops; else it trains all of them.
        clients_per_round: Clients that are trained in a round, the step between checkpoints.
        num_clients: Train and evaluate so many clients only, drawn by the seed; null for all.
    """

    num_epochs: PositiveInt
    batch_size: PositiveInt
    learning_rates: Annotated[Distinct[PositiveFloat], Field(min_length=1)]
    select_by: Literal["loss", "accuracy"] = "loss"
    choose_epoch: bool = False
    clients_per_round: PositiveInt = 100
    num_clients: PositiveInt | None = None


class MultitaskOptions(Strict):
    """Mocha: federated multi-task learning of linear models, one a client, that are related.

    Minimises, over the clients' models W = [w_1 ... w_m], the sum of all examples' losses plus
    ``regularization / 2 * tr(W Omega^-1 W^T)``, where the relationship matrix Omega (m x m) has
    trace 1. Unrelated clients (Omega = I / m) each have a ridge of ``regularization * m / 2``.

    Attributes:
        num_rounds: Rounds of local dual steps and one central update of the models.
        local_epochs: Passes of a client's dual coordinate ascent in a round.
        loss: Loss of each of the one-against-rest problems.
        relationship: "learned" updates the relationship matrix of the clients as in multi-task
            relationship learning, "mean" keeps clients near their mean, "independent" unrelated.
        relationship_every: Rounds between two updates of a learned relationship.
        smoothing: For "learned": added to each eigenvalue of W^T W, as a fraction of their mean,
            so that Omega stays positive definite; larger ones leave clients freer of one another.
        mean_ridge: For "mean": weight of ||W||^2 beside the squared distances from the mean.
        regularization: The paper's lambda, above 0.
        participation: Probability that a client takes part in a round.
        num_clients: Train and evaluate so many clients only, drawn by the seed; null for all.
    """

    num_rounds: PositiveInt
    local_epochs: PositiveInt = 1
    loss: Literal["hinge", "logistic"] = "hinge"
    relationship: Literal["learned", "mean", "independent"] = "learned"
    relationship_every: PositiveInt = 1
    smoothing: PositiveFloat = 1e-3
    mean_ridge: PositiveFloat = 0.1
    regularization: PositiveFloat
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    num_clients: PositiveInt | None = None
