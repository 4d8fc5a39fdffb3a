"""Draws comments that look like Reddit's in their numbers: skewed users, topics, common words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

# LEAF's table 1: mean and standard deviation of a user's comments; its cleaning keeps 5 to 1,000.
MEAN_COMMENTS, SD_COMMENTS = 34.07, 62.95
FEWEST, MOST = 5, 1000
FEWEST_TOKENS, MOST_TOKENS = 5, 300
TOKEN_SPREAD = 0.8
# Every second token is, with this chance, the one that its topic has after the token before it.
FOLLOWS = 0.6
# A user writes in this many subreddits, mostly in the first of them.
SUBREDDITS_A_USER = 3
FIRST_TIME = 1_512_086_400  # 1 December 2017, 0:00 UTC
SECONDS = 31 * 86_400
USERS_A_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Block:
    """The comments of some users, one after another, each user's in the order of time.

    Attributes:
        users: Numbers of the users, ascending, shape (u,).
        counts: Comments of each, shape (u,).
        lengths: Tokens of each comment, shape (m,).
        tokens: All tokens, 0 to ``num_words`` - 1, one after another.
        subreddits: Number of each comment's subreddit, shape (m,).
        created: Seconds since 1970 of each comment, shape (m,).
    """

    users: NDArray[np.int64]
    counts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    tokens: NDArray[np.int64]
    subreddits: NDArray[np.int64]
    created: NDArray[np.int64]


def count_comments(users: int, comments: int | None) -> int:
    """Comments of all users: as given, if they suffice, or LEAF's mean of 34 a user."""
    number = 34 * users if comments is None else comments
    if not FEWEST * users <= number <= MOST * users:
        raise ValueError(
            f"comments = {number} is not {FEWEST} to {MOST} for each of users = {users}: give "
            f"{FEWEST * users} to {MOST * users}"
        )
    return number


def comment_counts(num_users: int, num_comments: int) -> NDArray[np.int64]:
    """Comments of each user, ascending: 5 and a log-normal number, 1,000 at most.

    Shape (num_users,), int64; their sum is ``num_comments``, 5 to 1,000 a user.
    """
    sigma = float(np.sqrt(np.log1p((SD_COMMENTS / (MEAN_COMMENTS - FEWEST)) ** 2)))
    levels = (np.arange(num_users) + 0.5) / num_users
    known = (np.arange(min(num_users, 100_000)) + 0.5) / min(num_users, 100_000)
    normal = NormalDist()
    scores = np.interp(levels, known, [normal.inv_cdf(level) for level in known.tolist()])
    weights = np.exp(sigma * scores)
    low, high = 0.0, float(num_comments)
    for _ in range(200):
        scale = (low + high) / 2
        if _sizes(weights, scale).sum() > num_comments:
            high = scale
        else:
            low = scale
    sizes = _sizes(weights, low)
    while missing := num_comments - int(sizes.sum()):
        sizes[np.flatnonzero(sizes < MOST)[-missing:]] += 1
    return np.sort(sizes)


def _sizes(weights: NDArray[np.float64], scale: float) -> NDArray[np.int64]:
    more = np.minimum(np.floor(weights * scale), MOST - FEWEST)
    return FEWEST + more.astype(np.int64)


def draw_blocks(
    num_users: int,
    num_comments: int | None,
    num_words: int,
    num_subreddits: int,
    mean_tokens: float,
    seed: int,
) -> Iterator[Block]:
    """Draw all users' comments, block by block, each from a stream of its own.

    ``num_comments`` is as for ``count_comments``. There are ``num_words`` different tokens,
    ``mean_tokens`` a comment on average; each subreddit has a topic of its own.
    """
    rng = np.random.default_rng([seed, 0])
    counts = rng.permutation(comment_counts(num_users, count_comments(num_users, num_comments)))
    # Zipf's law: token r has a chance near 1 / (r + 3).
    shares = np.cumsum(1.0 / (np.arange(num_words) + 3.0))
    shares /= shares[-1]
    for first in range(0, num_users, USERS_A_BLOCK):
        users = np.arange(first, min(first + USERS_A_BLOCK, num_users))
        rng = np.random.default_rng([seed, 1, first])
        mine = counts[users]
        lengths = _lengths(int(mine.sum()), mean_tokens, rng)
        subreddits = _subreddits(mine, num_subreddits, rng)
        tokens = _tokens(lengths, subreddits, shares, rng)
        created = FIRST_TIME + rng.integers(0, SECONDS, len(lengths))
        created = created[np.lexsort((created, np.repeat(users, mine)))]
        yield Block(users, mine, lengths, tokens, subreddits, created)


def _lengths(number: int, mean: float, rng: np.random.Generator) -> NDArray[np.int64]:
    more = max(mean - FEWEST_TOKENS, 0.0)
    drawn = more * rng.lognormal(-(TOKEN_SPREAD**2) / 2, TOKEN_SPREAD, number)
    return np.minimum(FEWEST_TOKENS + drawn.astype(np.int64), MOST_TOKENS)


def _subreddits(
    counts: NDArray[np.int64], num_subreddits: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    ranks = num_subreddits * rng.random((len(counts), SUBREDDITS_A_USER)) ** 2
    favourites = ranks.astype(np.int64)
    chosen = rng.choice(SUBREDDITS_A_USER, int(counts.sum()), p=(0.6, 0.3, 0.1))
    return favourites[np.repeat(np.arange(len(counts)), counts), chosen]


def _tokens(
    lengths: NDArray[np.int64],
    subreddits: NDArray[np.int64],
    shares: NDArray[np.float64],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    total = int(lengths.sum())
    tokens = np.searchsorted(shares, rng.random(total, dtype=np.float32)).astype(np.int64)
    np.minimum(tokens, len(shares) - 1, out=tokens)
    starts = np.cumsum(lengths) - lengths
    place = np.arange(total) - np.repeat(starts, lengths)
    topics = np.repeat(subreddits, lengths)
    follows = np.flatnonzero((place & 1 == 1) & (rng.random(total, dtype=np.float32) < FOLLOWS))
    tokens[follows] = (tokens[follows - 1] * 31 + topics[follows] * 7 + 11) % len(shares)
    return tokens
