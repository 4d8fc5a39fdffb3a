"""The vocabulary of the toolkit: frozen dataclasses, base classes, Protocols and errors.

This package imports nothing else of ours. Everything that two packages exchange is named here, so
that a task, an engine and a trainer can be written and read without one another. Whoever uses a
name imports it from here, not from the module that has it.
"""

from pfl_bench.types.algorithms import Algorithm as Algorithm
from pfl_bench.types.algorithms import ClientUpload as ClientUpload
from pfl_bench.types.algorithms import UpdateTransform as UpdateTransform
from pfl_bench.types.data import DataFacts as DataFacts
from pfl_bench.types.data import Examples as Examples
from pfl_bench.types.data import FederatedSplit as FederatedSplit
from pfl_bench.types.data import HubDataset as HubDataset
from pfl_bench.types.data import Progress as Progress
from pfl_bench.types.data import RemoteFile as RemoteFile
from pfl_bench.types.data import SplitAround as SplitAround
from pfl_bench.types.data import SplitBy as SplitBy
from pfl_bench.types.errors import ConfigError as ConfigError
from pfl_bench.types.errors import DataError as DataError
from pfl_bench.types.errors import PluginError as PluginError
from pfl_bench.types.errors import RunFolderError as RunFolderError
from pfl_bench.types.errors import StoppedError as StoppedError
from pfl_bench.types.errors import UserInputError as UserInputError
from pfl_bench.types.errors import WorkerError as WorkerError
from pfl_bench.types.errors import did_you_mean as did_you_mean
from pfl_bench.types.errors import is_of_user as is_of_user
from pfl_bench.types.errors import is_out_of_memory as is_out_of_memory
from pfl_bench.types.errors import place_of as place_of
from pfl_bench.types.errors import returned as returned
from pfl_bench.types.evaluation import Metric as Metric
from pfl_bench.types.evaluation import OwnModels as OwnModels
from pfl_bench.types.evaluation import PersonalModels as PersonalModels
from pfl_bench.types.layers import ComputesInSlots as ComputesInSlots
from pfl_bench.types.layers import CountsFlops as CountsFlops
from pfl_bench.types.layers import DepartsFromRow as DepartsFromRow
from pfl_bench.types.layers import GivesFactoredGradients as GivesFactoredGradients
from pfl_bench.types.layers import KeepFactors as KeepFactors
from pfl_bench.types.layers import NormalizesByStatistics as NormalizesByStatistics
from pfl_bench.types.processes import Evaluate as Evaluate
from pfl_bench.types.processes import SingleProcess as SingleProcess
from pfl_bench.types.processes import WorkerGroup as WorkerGroup
from pfl_bench.types.processes import importing_nothing_here as importing_nothing_here
from pfl_bench.types.results import ExpectedResult as ExpectedResult
from pfl_bench.types.results import RunSummary as RunSummary
from pfl_bench.types.results import as_float as as_float
from pfl_bench.types.results import describe_choice as describe_choice
from pfl_bench.types.results import step_unit as step_unit
from pfl_bench.types.signals import ended_by_signal as ended_by_signal
from pfl_bench.types.state import Stateful as Stateful
from pfl_bench.types.tasks import BatchTransform as BatchTransform
from pfl_bench.types.tasks import GivesExampleLosses as GivesExampleLosses
from pfl_bench.types.tasks import HasColumns as HasColumns
from pfl_bench.types.tasks import ReadsAlike as ReadsAlike
from pfl_bench.types.tasks import ReadsOnDevice as ReadsOnDevice
from pfl_bench.types.tasks import SkipsOutputs as SkipsOutputs
from pfl_bench.types.tasks import Task as Task
from pfl_bench.types.tasks import TaskAround as TaskAround
from pfl_bench.types.tasks import TransformsBatches as TransformsBatches
from pfl_bench.types.trainer import ExpectedWork as ExpectedWork
from pfl_bench.types.trainer import PrivateSeed as PrivateSeed
from pfl_bench.types.trainer import Trainer as Trainer
from pfl_bench.types.training import Engine as Engine
from pfl_bench.types.training import LocalResult as LocalResult
from pfl_bench.types.training import LocalTraining as LocalTraining
from pfl_bench.types.training import Participants as Participants
from pfl_bench.types.training import RoundStatistics as RoundStatistics
