"""``pfl-bench attack``: attacks on the users of a row, from its released models."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pfl_bench.cli import run_many
from pfl_bench.cli.arguments import check_belongs
from pfl_bench.cli.main import EXIT_DONE, EXIT_FAILED
from pfl_bench.cli.speech import say, write
from pfl_bench.config.row_files import locate_row
from pfl_bench.files import check_run_folder
from pfl_bench.runs.links import refuse_links
from pfl_bench.types import ConfigError
from privacy.statement.statement import round_down, round_up, small

_WIDTH = 110
_SHADOWS, _CONFIDENCE = 16, 0.99


def main(arguments: argparse.Namespace) -> int:
    """Attack a row; 1 if more is shown than the claim allows, or a shadow run failed."""
    source, out = _source(arguments)
    if arguments.out is None:
        refuse_links([out])
    refuse_links([*out.glob("*"), *out.glob("shadows/*")])
    has_shadows, has_confidence = arguments.shadows is not None, arguments.confidence is not None
    if arguments.kind == "gradient":
        owner = "the other kinds (--kind lira)"
        check_belongs(owner, shadows=has_shadows, confidence=has_confidence)
        return _invert(source, out, arguments)
    check_belongs("--kind gradient", user=arguments.user is not None)
    shadows = arguments.shadows if has_shadows else _SHADOWS
    confidence = arguments.confidence if has_confidence else _CONFIDENCE
    if not 0.5 <= confidence < 1.0:
        raise ConfigError(
            f"--confidence {confidence:g}: is not in [0.5, 1); give {_CONFIDENCE}, at which a "
            "claim that is true is refuted in 1 % of attacks at most"
        )
    from pfl_bench.report.pictures import roc_picture
    from pfl_bench.runs.membership import attack, check_kind
    from pfl_bench.runs.shadows import shadow_plans

    check_kind(arguments.kind, shadows)
    row, plans = shadow_plans(source, arguments.overrides, shadows, out / "shadows")
    say(f"{row.config.name}: {len(plans)} shadow runs in {out / 'shadows'}; finished ones stay")
    batch = run_many.run_all(plans, arguments, out)
    if None in batch.summaries:
        return batch.exit_code()
    found = attack(arguments.kind, row, plans, out, confidence)
    roc_picture(found).save(out / arguments.kind)
    write("\n".join(_lines(found)))
    write(f"figure: {out / arguments.kind}.svg; numbers: {out / 'attack.json'}")
    return EXIT_FAILED if found["verdict"]["refuted"] else EXIT_DONE


def _source(arguments: argparse.Namespace) -> tuple[Path, Path]:
    run_folder = Path(arguments.target)
    if run_folder.is_dir():
        check_run_folder(run_folder)
        return run_folder / "config.yaml", Path(arguments.out or run_folder / "attack")
    source = locate_row(arguments.target)
    return source, Path(
        arguments.out or Path("runs") / run_many.short_name(source).with_suffix("") / "attack"
    )


def _invert(source: Path, out: Path, arguments: argparse.Namespace) -> int:
    """``--kind gradient``: invert one client's update of round 1, and print how near that comes."""
    from pfl_bench.config.loading import load_config

    resolved = load_config(source, arguments.overrides)
    if resolved.config.federated is None:
        raise ConfigError(
            f"{source}: clients send updates in federated training alone, and this row is of the "
            f"setting '{resolved.config.setting}'; choose a row with the section federated"
        )
    from pfl_bench.federated.parts import FederatedParts, build_run
    from pfl_bench.files import write_json
    from pfl_bench.report.pictures import save_picture
    from pfl_bench.runs.gradient_inversion import invert_update, to_json_dict

    inverted = invert_update(FederatedParts.of(build_run(resolved)), arguments.user)
    out.mkdir(parents=True, exist_ok=True)
    save_picture(inverted, out / "gradient.png")
    write_json(out / "gradient.json", to_json_dict(inverted))
    write(f"Inversion of the update of user {inverted.user}: {len(inverted.originals)} examples")
    for name, one in inverted.found.items():
        write(f"  from {name:24} PSNR {one.psnr:6.2f} dB  MSE {one.mse:.5f}")
    write(f"picture: {out / 'gradient.png'}; numbers: {out / 'gradient.json'}")
    return EXIT_DONE


def _lines(found: Mapping[str, Any]) -> Iterator[str]:
    trials, claim, verdict = found["trials"], found["claim"], found["verdict"]
    yield (
        f"Attack {found['kind']} on {found['users']} users of {found['shadows']} shadow runs: "
        f"{trials['in']} in, {trials['out']} out"
    )
    yield f"  area under the ROC curve  {found['auc']:.4f}  (0.5 is chance)"
    for one in found["rates"]:
        most = f"; the claim allows {one['allowed']:.4f}" if "allowed" in one else ""
        yield (
            f"  true positive rate at {one['false_positive_rate']:.1%} false positives  "
            f"{one['true_positive_rate']:.4f}  [{one['low']:.4f}, {one['high']:.4f}]{most}"
        )
    if claim["epsilon"] is not None:
        epsilon, delta = round_up(claim["epsilon"], 4), small(claim["delta"])
        yield f"  stated epsilon (actual)  {epsilon} at delta {delta}"
    guesses = sum(verdict["guesses"].values())
    text = (
        f"  guesses: {verdict['num_correct']} of {guesses} right, about {verdict['num_users']} "
        f"users: epsilon is at least {round_down(verdict['epsilon'], 4)} by any mechanism, at "
        f"{verdict['confidence']:.0%}, corrected for {verdict['num_tests']} tests"
    )
    yield from textwrap.wrap(text, _WIDTH, subsequent_indent="    ")
    if verdict["wealth"] is not None:
        yield (
            f"  bets against the claim: wealth {verdict['wealth']:.4g} at most; a true claim lets "
            f"it reach {verdict['wealth_limit']:.4g} once in as many attacks"
        )
    if verdict["refuted"] is None:
        yield f"NO VERDICT: {claim['none']}"
    elif verdict["refuted"]:
        yield "FAILED: the guesses are above what the claim allows"
    else:
        yield "PASSED: no test is above what the claim allows"
