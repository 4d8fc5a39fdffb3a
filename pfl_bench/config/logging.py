"""The section ``logging`` of a configuration."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pfl_bench.config.training import Strict


class WandbOptions(Strict):
    """How a run is logged to Weights & Biases.

    Attributes:
        mode: "disabled" (wandb is not even imported), "offline" (files under the run folder, to be
            uploaded by ``wandb sync``) or "online".
        project: W&B project.
        entity: W&B user or team; None for the login's default.
        group: W&B group, for seeds of one row.
        tags: W&B tags.
    """

    mode: Literal["disabled", "offline", "online"] = "disabled"
    project: str = Field(default="pfl-bench", min_length=1)
    entity: str | None = None
    group: str | None = None
    # YAML has lists only, which strict validation of a tuple refuses.
    tags: tuple[str, ...] = Field(default=(), strict=False)


class LoggingOptions(Strict):
    """Where else the metrics go.

    Attributes:
        wandb: Weights & Biases.
    """

    wandb: WandbOptions = WandbOptions()
