"""The vocabulary of the toolkit: frozen dataclasses, base classes, Protocols and errors.

This package imports nothing else of ours. Everything that two packages exchange is named here, so
that a task, an engine and a trainer can be written and read without one another. Whoever uses a
name imports it from here, not from the module that has it.
"""

from pfl_bench.types.algorithms import Algorithm, ClientUpload, UpdateTransform
from pfl_bench.types.data import (
    DataFacts,
    Examples,
    FederatedSplit,
    HubDataset,
    RemoteFile,
    SplitBy,
)
from pfl_bench.types.errors import (
    ConfigError,
    DataError,
    PluginError,
    RunFolderError,
    StoppedError,
    UserInputError,
    WorkerError,
    did_you_mean,
)
from pfl_bench.types.evaluation import Metric, OwnModels, PersonalModels
from pfl_bench.types.layers import (
    ComputesInSlots,
    CountsFlops,
    DepartsFromRow,
    GivesFactoredGradients,
    KeepFactors,
    NormalizesByStatistics,
)
from pfl_bench.types.processes import Evaluate, SingleProcess, WorkerGroup
from pfl_bench.types.results import ExpectedResult, RunSummary, as_float
from pfl_bench.types.round_counts import RoundStatistics
from pfl_bench.types.state import Stateful
from pfl_bench.types.tasks import (
    BatchTransform,
    GivesExampleLosses,
    HasColumns,
    ReadsOnDevice,
    SkipsOutputs,
    Task,
    TaskAround,
    TransformsBatches,
)
from pfl_bench.types.trainer import PrivateSeed, Trainer
from pfl_bench.types.training import Engine, LocalResult, LocalTraining, Participants

__all__ = [
    "Algorithm",
    "BatchTransform",
    "ClientUpload",
    "ComputesInSlots",
    "ConfigError",
    "CountsFlops",
    "DataError",
    "DataFacts",
    "DepartsFromRow",
    "Engine",
    "Evaluate",
    "Examples",
    "ExpectedResult",
    "FederatedSplit",
    "GivesExampleLosses",
    "GivesFactoredGradients",
    "HasColumns",
    "HubDataset",
    "KeepFactors",
    "LocalResult",
    "LocalTraining",
    "Metric",
    "NormalizesByStatistics",
    "OwnModels",
    "Participants",
    "PersonalModels",
    "PluginError",
    "PrivateSeed",
    "ReadsOnDevice",
    "RemoteFile",
    "RoundStatistics",
    "RunFolderError",
    "RunSummary",
    "SingleProcess",
    "SkipsOutputs",
    "SplitBy",
    "Stateful",
    "StoppedError",
    "Task",
    "TaskAround",
    "Trainer",
    "TransformsBatches",
    "UpdateTransform",
    "UserInputError",
    "WorkerError",
    "WorkerGroup",
    "as_float",
    "did_you_mean",
]
