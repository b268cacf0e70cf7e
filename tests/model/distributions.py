"""Homogeneity test of two samples of token ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

RARE = 5  # expected draws below which ids are counted together
LEVEL = 1e-3  # chance of telling samples of one distribution apart


def same_distribution(one: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two samples of equal size may come from one distribution.

    Source: the chi-square test of homogeneity, its quantile by Wilson and Hilferty (1931).
    """
    ids = sorted({*one, *other})
    tallies = Counter(one), Counter(other)
    counts = np.array([[tally[i] for i in ids] for tally in tallies], float)
    common = counts.sum(0) >= 2 * RARE
    pooled = np.concatenate((counts[:, common], counts[:, ~common].sum(1, keepdims=True)), axis=1)
    pooled = pooled[:, pooled.sum(0) > 0]
    degrees = pooled.shape[1] - 1
    if degrees == 0:
        return True
    expected = pooled.sum(0, keepdims=True) / 2
    statistic = float(((pooled - expected) ** 2 / expected).sum())
    z = float(torch.special.ndtri(torch.tensor(1 - LEVEL, dtype=torch.float64)))
    limit = degrees * (1 - 2 / (9 * degrees) + z * (2 / (9 * degrees)) ** 0.5) ** 3
    return statistic <= limit
