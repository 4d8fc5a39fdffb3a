"""Models of the task: those of all tasks on images."""

from tasks.common.images.models import Options, build

__all__ = ["Options", "build"]
