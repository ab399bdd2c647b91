"""Row optimizers in float64 numpy, written from the papers' equations, one small class each.

They are the reference for `sanderling.Table` and share no code with it. A row is a vector; `step` gets the summed
gradient of one push.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


class Row(Protocol):
    """Weights of one key and what its optimizer remembers."""

    weights: Vector

    def step(self, grad: Vector, scale: float) -> None:
        """Apply a gradient; `scale` multiplies the learning rate."""


class Sgd:
    """Plain stochastic gradient descent, `w -= lr * (g + l2 * w)`."""

    def __init__(self, weights: Vector, lr: float, l2: float = 0.0) -> None:
        self.weights, self.lr, self.l2 = weights.copy(), lr, l2

    def step(self, grad: Vector, scale: float) -> None:
        self.weights -= self.lr * scale * (grad + self.l2 * self.weights)


class Adagrad:
    """Duchi, Hazan and Singer 2011, diagonal version."""

    def __init__(self, weights: Vector, lr: float, eps: float = 1e-10, initial: float = 0.0, l2: float = 0.0) -> None:
        self.weights, self.lr, self.eps, self.l2 = weights.copy(), lr, eps, l2
        self.sum_of_squares = np.full_like(weights, initial)

    def step(self, grad: Vector, scale: float) -> None:
        grad = grad + self.l2 * self.weights
        self.sum_of_squares += grad**2
        self.weights -= self.lr * scale * grad / (np.sqrt(self.sum_of_squares) + self.eps)


class Adam:
    """Kingma and Ba 2015, algorithm 1, with the row's own number of steps as `t`."""

    def __init__(
        self,
        weights: Vector,
        lr: float,
        beta1: float = 0.9,
        beta2: float = 0.999,
        eps: float = 1e-8,
        l2: float = 0.0,
    ) -> None:
        self.weights, self.lr, self.beta1, self.beta2, self.eps, self.l2 = weights.copy(), lr, beta1, beta2, eps, l2
        self.first, self.second = np.zeros_like(weights), np.zeros_like(weights)
        self.steps = 0

    def step(self, grad: Vector, scale: float) -> None:
        grad = grad + self.l2 * self.weights
        self.steps += 1
        self.first = self.beta1 * self.first + (1 - self.beta1) * grad
        self.second = self.beta2 * self.second + (1 - self.beta2) * grad**2
        first = self.first / (1 - self.beta1**self.steps)
        second = self.second / (1 - self.beta2**self.steps)
        self.weights -= self.lr * scale * first / (np.sqrt(second) + self.eps)


class Ftrl:
    """McMahan et al. 2013, algorithm 1, per coordinate; `z` starts where it yields the first weights."""

    def __init__(self, weights: Vector, alpha: float, beta: float = 1.0, l1: float = 0.0, l2: float = 0.0) -> None:
        self.weights, self.alpha, self.beta, self.l1, self.l2 = weights.copy(), alpha, beta, l1, l2
        self.squares = np.zeros_like(weights)
        self.z = -weights * (beta / alpha + l2) - np.sign(weights) * l1

    def step(self, grad: Vector, scale: float) -> None:
        assert scale == 1.0, "a schedule for FTRL is not in the paper"
        sigma = (np.sqrt(self.squares + grad**2) - np.sqrt(self.squares)) / self.alpha
        self.z += grad - sigma * self.weights
        self.squares += grad**2
        rate = (self.beta + np.sqrt(self.squares)) / self.alpha + self.l2
        self.weights = np.where(np.abs(self.z) <= self.l1, 0.0, -(self.z - np.sign(self.z) * self.l1) / rate)
