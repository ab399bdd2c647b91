"""Negative items for implicit feedback: which items are drawn, and the losses over positives and negatives.

Shapes: `P` pairs of user and positive item, `n` negatives per pair.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sanderling.torch.catalogue import Catalogue
from sanderling.torch.config_sections import SamplingConfig
from sanderling.torch.ragged import Ids

# Draws of a negative that the user has seen are repeated this often; then it stays.
_REDRAWS_MAX = 20


class NegativeSampler:
    """Draws items that are not the positive one, with equal chances or by popularity."""

    def __init__(self, catalogue: Catalogue, sampling: SamplingConfig) -> None:
        """Prepare the distribution of `[sampling]`; `in_batch` needs no draws, but has the chances of its items."""
        self.catalogue, self.sampling = catalogue, sampling
        power = {"uniform": 0.0, "popularity": sampling.power, "in_batch": 1.0}[sampling.by]
        chances = catalogue.counts.astype(np.float64) ** power
        self.chances: npt.NDArray[np.float64] = chances / chances.sum()
        """Chance of each item to be drawn; for `in_batch`, to be the positive item of a pair."""
        self._sums = np.cumsum(self.chances)

    def draw(self, users: Ids, positives: Ids, rng: np.random.Generator) -> Ids:
        """Return negatives, ids [P, n], for the ids of users and positive items, both [P].

        With `exclude_seen`, items that the user has seen in training are drawn again, otherwise only the positive item.
        """
        shape = (len(users), self.sampling.per_positive)
        drawn = self._draw(shape, rng)
        for _ in range(_REDRAWS_MAX):
            wrong = drawn == positives[:, None]
            if self.sampling.exclude_seen:
                wrong |= self.catalogue.has_seen(np.broadcast_to(users[:, None], shape), drawn)
            if not (count := int(wrong.sum())):
                break
            drawn[wrong] = self._draw((count,), rng)
        return drawn

    def _draw(self, shape: tuple[int, ...], rng: np.random.Generator) -> Ids:
        if self.sampling.by == "uniform":
            return rng.integers(len(self.catalogue), size=shape)
        drawn: Ids = np.searchsorted(self._sums, rng.random(shape) * self._sums[-1], side="right")
        return np.minimum(drawn, len(self.catalogue) - 1)


def bpr(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the loss of Rendle et al. 2009, the mean of -ln sigmoid(positive - negative); [P] and [P, n]."""
    return nn.functional.softplus(negative - positive.unsqueeze(1)).mean()


def logloss(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the mean logistic loss over positives and negatives; [P] and [P, n]."""
    scores = torch.cat([positive, negative.flatten()])
    labels = torch.cat([torch.ones_like(positive), torch.zeros_like(negative).flatten()])
    return nn.functional.binary_cross_entropy_with_logits(scores, labels)


def softmax(positive: Tensor, negative: Tensor, log_chances: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return the sampled softmax loss, the mean cross-entropy of the positive among its negatives; [P] and [P, n].

    `log_chances`, of the same shapes, are subtracted from the scores (logQ correction, Bengio and Senécal 2008): items
    that are drawn often would count too much. A negative with the score -inf does not count.
    """
    if log_chances is not None:
        positive, negative = positive - log_chances[0], negative - log_chances[1]
    return -nn.functional.log_softmax(torch.cat([positive.unsqueeze(1), negative], 1), 1)[:, 0].mean()


def in_batch(scores: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """Split the scores of all users with all items of a batch, [P, P], into positives [P] and negatives [P, P - 1].

    The positive item of a pair is on the diagonal. An item (`items`, ids [P]) that is also the
    positive item of another pair is no negative there: its score becomes -inf.
    """
    count = len(items)
    positive = scores.diagonal()
    same = (items.unsqueeze(0) == items.unsqueeze(1)) & ~torch.eye(count, dtype=torch.bool, device=scores.device)
    others = scores.masked_fill(same, -torch.inf)
    # Row i without its column i.
    columns = torch.arange(count - 1, device=scores.device).unsqueeze(0).expand(count, -1)
    columns = columns + (columns >= torch.arange(count, device=scores.device).unsqueeze(1))
    return positive, others.gather(1, columns)
