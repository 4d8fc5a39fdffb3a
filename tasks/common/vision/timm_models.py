"""Networks of the package timm, from scratch, for images of any size that they take."""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from pfl_bench.types import ConfigError, DataFacts, did_you_mean
from tasks.common.vision.normalization import use_group_norm


def timm_model(architecture: str, facts: DataFacts) -> nn.Module:
    """Build a network by timm's name, with GroupNorm instead of BatchNorm; nothing is downloaded.

    ConfigError without timm, for a name that it does not have, and for images it cannot take.
    """
    try:
        import timm
    except ImportError:
        raise ConfigError(
            "model.name: timm: the package timm is not installed; install the extra: "
            "pip install 'pfl-bench[timm]'"
        ) from None
    if not timm.is_model(architecture):
        hint = did_you_mean(architecture, timm.list_models(), ".")
        raise ConfigError(
            f"model.architecture: timm has no network '{architecture}'{hint} "
            "`timm.list_models()` names all of them, such as resnet18"
        )
    channels, side, _ = facts.input_shape
    has_one_size = timm.get_pretrained_cfg(architecture).fixed_input_size
    settings = {"img_size": side} if has_one_size else {}
    try:
        module = timm.create_model(
            architecture, num_classes=facts.num_classes, in_chans=channels, **settings
        )
        use_group_norm(module)
        with torch.no_grad():
            module.eval()(torch.zeros(1, channels, side, side))
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"model.architecture: {architecture} does not take images of {channels} x {side} x "
            f"{side}: {reason}; take another network"
        ) from None
    return cast("nn.Module", module.train())
