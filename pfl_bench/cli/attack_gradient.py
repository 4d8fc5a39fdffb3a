"""``pfl-bench attack --kind gradient``: what the update of one client shows of its images."""

from __future__ import annotations

import argparse
from pathlib import Path

from pfl_bench.cli.main import EXIT_DONE
from pfl_bench.config.loading import load_config
from pfl_bench.types import ConfigError


def invert(source: Path, out: Path, arguments: argparse.Namespace) -> int:
    """Invert one client's update of round 1, and print how near the reconstructions are."""
    resolved = load_config(source, arguments.overrides)
    if resolved.config.federated is None:
        raise ConfigError(
            f"{source}: clients send updates in federated training alone, and this row is of the "
            f"setting '{resolved.config.setting}'; choose a row with the section federated"
        )
    from pfl_bench.federated.parts import FederatedParts, build_run
    from pfl_bench.files import write_json
    from pfl_bench.report.inversion_picture import save_picture
    from pfl_bench.runs.gradient_inversion import invert_update, to_json_dict

    inverted = invert_update(FederatedParts.of(build_run(resolved)), arguments.user)
    out.mkdir(parents=True, exist_ok=True)
    save_picture(inverted, out / "gradient.png")
    write_json(out / "gradient.json", to_json_dict(inverted))
    print(f"Inversion of the update of user {inverted.user}: {len(inverted.originals)} examples")
    for name, one in inverted.found.items():
        print(f"  from {name:24} PSNR {one.psnr:6.2f} dB  MSE {one.mse:.5f}")
    print(f"picture: {out / 'gradient.png'}; numbers: {out / 'gradient.json'}")
    return EXIT_DONE
