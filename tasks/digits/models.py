"""Models of the digits task: softmax regression and one hidden layer."""

from tasks.common.dense import Options, build

__all__ = ["Options", "build"]
