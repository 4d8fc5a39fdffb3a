"""Flower's simulation as a side of a benchmark: a ``ServerApp`` and its ``ClientApp`` on Ray.

The server drives the rounds of Flower's own ``FedAvg`` (private: in its wrapper for fixed clipping
at the server) as ``Strategy.start`` does, without evaluation. A client of the cohort is a message
to that user's virtual node. This module is imported in processes of their own, by the server and
by Ray's actors.
"""

from __future__ import annotations

import functools
import os
import tempfile
from pathlib import Path
from typing import IO, Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from torch import Tensor, nn

from benchmarks.materials import AnyMaterial, read_material
from benchmarks.remote import serve
from benchmarks.workload import flat

client_app = ClientApp()


@functools.cache
def _of_actor(path: str) -> tuple[AnyMaterial, nn.Module]:
    """Parts that an actor builds once; what it reads it keeps."""
    material = read_material(Path(path))
    torch.set_num_threads(material.job.threads)
    return material, material.module()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client from the arrays of the message."""
    told = message.content["config"]
    material, module = _of_actor(told["job"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    material.train(module, told["user"], told["server-round"])
    content = {
        "arrays": ArrayRecord(module.state_dict()),
        # All clients weigh the same, as on the other sides.
        "metrics": MetricRecord({"num-examples": 1}),
    }
    return Message(content=RecordDict(content), reply_to=message)


class _Cohorts(FedAvg):
    """Federated averaging over the users of the other sides' rounds."""

    def __init__(self, path: Path, material: AnyMaterial) -> None:
        super().__init__(fraction_evaluate=0.0)
        self._path, self._clients = str(path), material.clients

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        nodes = sorted(grid.get_node_ids())
        messages = []
        for user in self._clients.users_of_round(server_round):
            told = {"server-round": server_round, "user": user, "job": self._path}
            record = RecordDict(
                {self.arrayrecord_key: arrays, self.configrecord_key: ConfigRecord(told)}
            )
            messages.append(Message(record, message_type="train", dst_node_id=nodes[user]))
        return messages


class FlowerSide:
    """The server's part.

    Args:
        grid: To the virtual nodes.
        path: The job's file, which the actors read too.
        material: What is trained.
    """

    def __init__(self, grid: Grid, path: Path, material: AnyMaterial) -> None:
        self._grid, self._material = grid, material
        self._module = material.module()
        self._arrays = ArrayRecord(self._module.state_dict())
        self._strategy: Any = _Cohorts(path, material)
        self._private: Any = None
        if material.job.private:
            clip_norm, noise = material.job.noise
            self._private = DifferentialPrivacyServerSideFixedClipping(
                self._strategy, noise, clip_norm, material.job.cohort_size
            )
            self._strategy = self._private

    def prepare(self, index: int) -> None:
        """Nothing: no actor can be told ahead which clients it will get."""

    def round(self, index: int) -> None:
        cohort = len(self._material.clients.users_of_round(index))
        if self._private is not None:
            # It wants replies of exactly as many; a Poisson cohort's size changes.
            self._private.num_sampled_clients = cohort
        messages = self._strategy.configure_train(index, self._arrays, ConfigRecord(), self._grid)
        replies = list(self._grid.send_and_receive(messages))
        failed = [reply for reply in replies if reply.has_error()]
        if failed or len(replies) != cohort:
            raise RuntimeError(f"{len(replies)} replies of {cohort}, errors: {failed[:1]}")
        arrays, _ = self._strategy.aggregate_train(index, replies)
        if arrays is None:
            raise RuntimeError("Flower aggregated nothing")
        self._arrays = arrays

    def vector(self) -> Tensor:
        self._module.load_state_dict(self._arrays.to_torch_state_dict())
        return flat(self._module)


def run(path: Path, output: IO[str]) -> None:
    """Start Ray and the simulation, and serve rounds until the parent closes the pipe.

    Args:
        path: The job's file.
        output: For answers.
    """
    import ray
    from flwr.simulation import run_simulation

    material = read_material(path)
    job = material.job
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(FlowerSide(grid, path, material), output)

    # Ray's sockets need a path shorter than the benchmark's folder may have.
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        os.environ["FLWR_HOME"] = folder
        ray.init(
            num_cpus=job.processes * job.threads,
            include_dashboard=False,
            log_to_driver=False,
            _temp_dir=folder,
        )
        run_simulation(
            server_app,
            client_app,
            num_supernodes=material.num_users,
            backend_config={"client_resources": {"num_cpus": job.threads, "num_gpus": 0.0}},
        )
