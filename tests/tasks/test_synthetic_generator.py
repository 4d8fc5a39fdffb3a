from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import kstest

from tasks.synthetic.generator import Pool, Recipe, generate, task_sizes

LEAF_SEED = 931231
SMALL = Recipe(
    num_tasks=40,
    cluster_probabilities=[0.5, 0.3, 0.2],
    num_features=12,
    num_classes=4,
    side_dimension=3,
    seed=LEAF_SEED,
    style="code",
)


def test_leaf_s_seed_gives_leaf_s_sizes() -> None:
    """Golden: LEAF's generator with its default seed, 1,000 tasks."""
    sizes = task_sizes(1000, LEAF_SEED)
    assert sizes.sum() == 107_553
    assert sizes.mean() == pytest.approx(107.553)
    assert sizes.std() == pytest.approx(213.216, abs=5e-4)
    assert sizes.min() >= 5
    assert sizes.max() == 1000


Drawn = tuple[NDArray[np.float64], NDArray[np.int64], int]


def leaf_draws(recipe: Recipe, axis: int) -> list[Drawn]:
    """What LEAF's generator draws, with numpy's own multivariate normal, from its description.

    Seed, sizes, seed again; then the mixing tensor (features with the intercept first, classes,
    sides), per cluster a level and a centre; and per task its cluster, a level, a mean, the
    features, the task's side information, the noise of the labels.
    """
    rng = np.random.RandomState(recipe.seed)
    sizes = [min(int(size) + 5, 1000) for size in rng.lognormal(3, 2, recipe.num_tasks)]
    rng = np.random.RandomState(recipe.seed)
    features, clusters = recipe.num_features, len(recipe.cluster_probabilities)
    mixing = rng.normal(0.0, 1.0, (features + 1, recipe.num_classes, clusters))
    centres = [rng.normal(rng.normal(0, 1.0), 1.0, clusters) for _ in range(clusters)]
    covariance = np.diag(np.arange(1, features + 1) ** -1.2)
    drawn = []
    for size in sizes:
        cluster = rng.choice(range(clusters), p=recipe.cluster_probabilities)
        mean = rng.normal(rng.normal(0, 1.0), 1.0, features)
        x = rng.multivariate_normal(mean, covariance, size)
        side = rng.normal(centres[cluster], 0.1, clusters)
        padded = np.hstack([np.ones((size, 1)), x])
        scores = padded @ (mixing @ side) + rng.normal(0.0, 0.1, (size, recipe.num_classes))
        weights = np.exp(scores)
        drawn.append((x, np.argmax(weights / weights.sum(axis, keepdims=True), axis=1), cluster))
    return drawn


@pytest.mark.parametrize(("style", "axis"), [("code", 1), ("first_code", 0)])
@pytest.mark.parametrize("probabilities", [[1.0], [0.5, 0.3, 0.2]])
def test_the_code_s_styles_draw_what_leaf_s_generator_draws(
    style: str, axis: int, probabilities: list[float]
) -> None:
    recipe = SMALL.model_copy(
        update={
            "style": style,
            "cluster_probabilities": probabilities,
            "side_dimension": len(probabilities),
        }
    )
    pool = generate(recipe)
    expected = leaf_draws(recipe, axis)
    np.testing.assert_allclose(pool.inputs, np.concatenate([x for x, _, _ in expected]), atol=1e-5)
    assert pool.targets.tolist() == np.concatenate([y for _, y, _ in expected]).tolist()
    assert pool.clusters is not None
    assert pool.clusters.tolist() == [cluster for _, _, cluster in expected]


def test_the_two_code_styles_differ_in_their_labels_alone() -> None:
    code, first = generate(SMALL), generate(SMALL.model_copy(update={"style": "first_code"}))
    assert (code.inputs == first.inputs).all()
    assert (code.targets != first.targets).mean() > 0.2


@pytest.fixture(scope="module")
def paper() -> Pool:
    return generate(
        Recipe(
            num_tasks=2000,
            cluster_probabilities=[0.75, 0.25],
            num_features=60,
            num_classes=5,
            side_dimension=2,
            seed=7,
            style="paper",
        )
    )


def test_the_paper_s_tasks_are_those_of_the_appendix(paper: Pool) -> None:
    assert paper.names[:2] == ["0", "1"]
    assert (np.diff(paper.offsets) == task_sizes(2000, 7)).all()
    assert paper.clusters is not None
    assert np.mean(paper.clusters == 1) == pytest.approx(0.25, abs=0.04)
    large = np.flatnonzero(np.diff(paper.offsets) >= 300)
    own = [paper.inputs[paper.offsets[t] : paper.offsets[t + 1]] for t in large]
    spread = np.mean([x.var(axis=0, ddof=1) for x in own], axis=0)
    np.testing.assert_allclose(spread, np.arange(1, 61) ** -1.2, rtol=0.05)
    # The means of a task are normal around a level of its own, which is standard normal.
    means = np.array([x.mean(axis=0) for x in own])
    levels = means.mean(axis=1)
    within = (means - levels[:, None]) / np.sqrt(1 - 1 / 60)
    assert kstest(within[:, 30:].ravel()[::7], "norm").pvalue > 0.01
    assert levels.std() == pytest.approx(np.sqrt(1 + 1 / 60), rel=0.1)


def test_the_paper_s_labels_are_those_of_the_appendix() -> None:
    """Step by step from the streams: u_t has the variance 1, the noise 0.1 (not the sd)."""
    recipe = Recipe(
        num_tasks=30,
        cluster_probabilities=[0.6, 0.4],
        num_features=10,
        num_classes=4,
        side_dimension=3,
        seed=11,
        style="paper",
    )
    pool = generate(recipe)

    def stream(*key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(11, spawn_key=key))

    world = stream(0)
    levels = world.normal(size=(2, 1))
    centres = levels + world.normal(size=(2, 3))
    mixing = world.normal(size=(11, 4, 3))
    for task in range(30):
        own = slice(pool.offsets[task], pool.offsets[task + 1])
        rng = stream(1, task)
        cluster = rng.choice(2, p=[0.6, 0.4])
        model = mixing @ (centres[cluster] + rng.normal(size=3))
        mean = rng.normal() + rng.normal(size=10)
        count = own.stop - own.start
        x = mean + np.arange(1, 11) ** -0.6 * rng.normal(size=(count, 10))
        scores = np.hstack([np.ones((count, 1)), x]) @ model
        noisy = scores + 0.1**0.5 * rng.normal(size=(count, 4))
        np.testing.assert_allclose(pool.inputs[own], x, atol=1e-5)
        assert pool.targets[own].tolist() == noisy.argmax(axis=1).tolist()


@pytest.mark.parametrize("style", ["paper", "code", "first_code"])
def test_a_task_does_not_depend_on_how_many_others_there_are(style: str) -> None:
    recipe = SMALL.model_copy(update={"style": style})
    few, many = generate(recipe.model_copy(update={"num_tasks": 10})), generate(recipe)
    count = few.offsets[-1]
    assert (few.offsets == many.offsets[:11]).all()
    assert (few.inputs == many.inputs[:count]).all()
    assert (few.targets == many.targets[:count]).all()
    other = generate(recipe.model_copy(update={"seed": 1}))
    assert other.inputs.shape != many.inputs.shape
