"""The vocabulary of the toolkit: frozen dataclasses, Protocols and errors.

This package imports nothing else of ours. Everything that two rooms exchange is named here, so that
a task, an engine and a trainer can be written and read without one another. Whoever uses a name
imports it from here, not from the module that has it.
"""

from pfl_bench.types.client_updates import ClientStage, HasStage, HasState, Outgoing, Resizes
from pfl_bench.types.data import DataFacts, Examples, FederatedSplit, RemoteFile, SplitBy
from pfl_bench.types.errors import (
    ConfigError,
    CrewError,
    DataError,
    PluginError,
    RunFolderError,
    UserInputError,
)
from pfl_bench.types.evaluation import Metric, PersonalModels
from pfl_bench.types.layers import (
    ComputesInLanes,
    CountsFlops,
    DepartsFromRow,
    GivesProducts,
    KeepProduct,
)
from pfl_bench.types.processes import Alone, Crew, Evaluate
from pfl_bench.types.round_counts import Tally
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
    Sampler,
    SendsMore,
)

__all__ = [
    "Algorithm",
    "Alone",
    "BatchTransform",
    "ClientStage",
    "ComputesInLanes",
    "ConfigError",
    "CorrectsSteps",
    "CountsFlops",
    "Crew",
    "CrewError",
    "DataError",
    "DataFacts",
    "DepartsFromRow",
    "Engine",
    "Evaluate",
    "Examples",
    "FederatedSplit",
    "GivesExampleLosses",
    "GivesProducts",
    "HasColumns",
    "HasStage",
    "HasState",
    "KeepProduct",
    "LocalResult",
    "LocalTraining",
    "Metric",
    "Outgoing",
    "PersonalModels",
    "PluginError",
    "ReadsOnDevice",
    "RemoteFile",
    "Resizes",
    "RunFolderError",
    "Sampler",
    "SendsMore",
    "SkipsOutputs",
    "SplitBy",
    "Tally",
    "Task",
    "TransformsBatches",
    "UserInputError",
]
