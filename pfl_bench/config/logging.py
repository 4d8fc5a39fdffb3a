"""The section ``logging`` of a configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field

from pfl_bench.config.training import Strict


class WandbOptions(Strict):
    """Settings of logging to Weights & Biases.

    Attributes:
        mode: "disabled" (wandb is not even imported), "offline" (files under the run folder, to be
            uploaded by ``wandb sync``) or "online".
        project: W&B project.
        entity: W&B user or team; None for the login's default.
        group: W&B group; None for table and row, which the seeds of a row share.
        tags: W&B tags, beside the row's table, task and setting.
    """

    mode: Literal["disabled", "offline", "online"] = "disabled"
    project: str = Field(default="pfl-bench", min_length=1)
    entity: str | None = None
    group: str | None = None
    # YAML has lists only, which strict validation of a tuple refuses.
    tags: tuple[str, ...] = Field(default=(), strict=False)


class TensorboardOptions(Strict):
    """Settings of logging for TensorBoard.

    Attributes:
        enabled: Whether event files are written, in ``tensorboard/`` of the run folder.
    """

    enabled: bool = False


class MlflowOptions(Strict):
    """Settings of logging to MLflow.

    Attributes:
        enabled: Whether it is.
        uri: Tracking store, such as http://server:5000 or sqlite:////data/mlflow.db; None for the
            file ``mlflow.db`` of the run folder.
        experiment: MLflow experiment, which is made if it does not exist.
    """

    enabled: bool = False
    uri: str | None = Field(default=None, min_length=1)
    experiment: str = Field(default="pfl-bench", min_length=1)


class LoggingOptions(Strict):
    """Trackers: places to which metrics go beside the run's folder.

    The other keys are names of your own plug-ins, with their options (``pfl_bench.runs.tracker``).

    Attributes:
        wandb: Weights & Biases.
        tensorboard: TensorBoard.
        mlflow: MLflow.
    """

    # Sections of plug-ins, which their own types check (``config.loading``).
    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    wandb: WandbOptions = WandbOptions()
    tensorboard: TensorboardOptions = TensorboardOptions()
    mlflow: MlflowOptions = MlflowOptions()
