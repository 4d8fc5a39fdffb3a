"""The vocabulary of the toolkit: frozen dataclasses, Protocols and errors.

This package imports nothing else of ours. Everything that two packages exchange is named here, so
that a task, an engine and a trainer can be written and read without one another. Whoever uses a
name imports it from here, not from the module that has it.
"""

from pfl_bench.types.client_updates import (
    ClientUpload,
    HasState,
    HasUpdateTransform,
    Resizes,
    UpdateTransform,
)
from pfl_bench.types.data import DataFacts, Examples, FederatedSplit, RemoteFile, SplitBy
from pfl_bench.types.errors import (
    ConfigError,
    DataError,
    PluginError,
    RunFolderError,
    UserInputError,
    WorkerError,
)
from pfl_bench.types.evaluation import Metric, PersonalModels
from pfl_bench.types.layers import (
    ComputesInSlots,
    CountsFlops,
    DepartsFromRow,
    GivesFactoredGradients,
    KeepFactors,
)
from pfl_bench.types.processes import Evaluate, SingleProcess, WorkerGroup
from pfl_bench.types.round_counts import RoundStatistics
from pfl_bench.types.tasks import (
    BatchTransform,
    GivesExampleLosses,
    HasColumns,
    ReadsOnDevice,
    SkipsOutputs,
    Task,
    TransformsBatches,
)
from pfl_bench.types.training import (
    Algorithm,
    CorrectsSteps,
    Engine,
    LocalResult,
    LocalTraining,
    SendsMore,
)

__all__ = [
    "Algorithm",
    "BatchTransform",
    "ClientUpload",
    "ComputesInSlots",
    "ConfigError",
    "CorrectsSteps",
    "CountsFlops",
    "DataError",
    "DataFacts",
    "DepartsFromRow",
    "Engine",
    "Evaluate",
    "Examples",
    "FederatedSplit",
    "GivesExampleLosses",
    "GivesFactoredGradients",
    "HasColumns",
    "HasState",
    "HasUpdateTransform",
    "KeepFactors",
    "LocalResult",
    "LocalTraining",
    "Metric",
    "PersonalModels",
    "PluginError",
    "ReadsOnDevice",
    "RemoteFile",
    "Resizes",
    "RoundStatistics",
    "RunFolderError",
    "SendsMore",
    "SingleProcess",
    "SkipsOutputs",
    "SplitBy",
    "Task",
    "TransformsBatches",
    "UpdateTransform",
    "UserInputError",
    "WorkerError",
    "WorkerGroup",
]
