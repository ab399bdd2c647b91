"""Golden rows of every optimizer, computed with float64 numpy from the papers' formulas.

Writes `optimizers.txt` beside itself: per case a line of settings, then per push the gradient, and after every fourth
the weights and state. Knows nothing of the Rust code. Run: python3 crates/store/tests/all/golden/make.py
"""

import pathlib

import numpy as np

DIM, PUSHES = 5, 40


def sgd(s, w, state, g, t, scale):
    return w - s["lr"] * scale * (g + s["l2"] * w), state


def adagrad(s, w, state, g, t, scale):
    g = g + s["l2"] * w
    a = state[0] + g**2
    return w - s["lr"] * scale * g / (np.sqrt(a) + s["eps"]), [a]


def adam(s, w, state, g, t, scale):
    g = g + s["l2"] * w
    m = s["beta1"] * state[0] + (1 - s["beta1"]) * g
    v = s["beta2"] * state[1] + (1 - s["beta2"]) * g**2
    m_hat, v_hat = m / (1 - s["beta1"] ** t), v / (1 - s["beta2"] ** t)
    return w - s["lr"] * scale * m_hat / (np.sqrt(v_hat) + s["eps"]), [m, v]


def momentum(s, w, state, g, t, scale):
    v = s["momentum"] * state[0] + g + s["l2"] * w
    return w - s["lr"] * scale * v, [v]


def row_adagrad(s, w, state, g, t, scale):
    g = g + s["l2"] * w
    a = state[0] + np.mean(g**2)
    return w - s["lr"] * scale * g / (np.sqrt(a) + s["eps"]), [a]


def adamw(s, w, state, g, t, scale):
    lr = s["lr"] * scale
    m = s["beta1"] * state[0] + (1 - s["beta1"]) * g
    v = s["beta2"] * state[1] + (1 - s["beta2"]) * g**2
    m_hat, v_hat = m / (1 - s["beta1"] ** t), v / (1 - s["beta2"] ** t)
    return (1 - lr * s["decay"]) * w - lr * m_hat / (np.sqrt(v_hat) + s["eps"]), [m, v]


def ftrl(s, w, state, g, t, scale):
    z, n = state
    alpha = s["alpha"]  # schedules do not act on FTRL
    sigma = (np.sqrt(n + g**2) - np.sqrt(n)) / alpha
    z, n = z + g - sigma * w, n + g**2
    slope = (s["beta"] + np.sqrt(n)) / alpha + s["l2"]
    return np.where(np.abs(z) <= s["l1"], 0.0, -(z - np.sign(z) * s["l1"]) / slope), [z, n]


CASES = [
    (sgd, 0, dict(lr=0.1, l2=0.0)),
    (sgd, 0, dict(lr=0.05, l2=0.1)),
    (adagrad, 1, dict(lr=0.1, eps=1e-10, initial=0.0, l2=0.0)),
    (adagrad, 1, dict(lr=0.5, eps=1e-3, initial=0.1, l2=0.01)),
    (adam, 2, dict(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-8, l2=0.0)),
    (adam, 2, dict(lr=0.02, beta1=0.5, beta2=0.9, eps=1e-3, l2=0.05)),
    (ftrl, 2, dict(alpha=0.1, beta=1.0, l1=0.0, l2=0.0)),
    (ftrl, 2, dict(alpha=0.05, beta=0.5, l1=0.8, l2=2.0)),
    (ftrl, 2, dict(alpha=1.0, beta=0.0, l1=0.1, l2=0.0)),
    (momentum, 1, dict(lr=0.01, momentum=0.9, l2=0.0)),
    (momentum, 1, dict(lr=0.05, momentum=0.5, l2=0.1)),
    (adamw, 2, dict(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-8, decay=0.01)),
    (adamw, 2, dict(lr=0.02, beta1=0.5, beta2=0.9, eps=1e-3, decay=0.5)),
    (row_adagrad, 1, dict(lr=0.1, eps=1e-10, initial=0.0, l2=0.0)),
    (row_adagrad, 1, dict(lr=0.5, eps=1e-3, initial=0.1, l2=0.01)),
]


def line(word, *arrays):
    values = np.concatenate(arrays)
    return " ".join([word] + [f"{float(x):.10g}" for x in values])


def main():
    rng = np.random.default_rng(2013)
    lines = [
        "# By make.py (float64 numpy). case: settings as given to the optimizer; push: learning-rate factor, gradient;",
        "# row: weights, then state, after the push above it.",
    ]
    for update, slots, settings in CASES:
        exact = {name: float(np.float32(value)) for name, value in settings.items()}
        lines.append(f"case {update.__name__} " + " ".join(f"{k}={v!r}" for k, v in settings.items()))
        w = np.zeros(DIM)
        # Row-wise Adagrad has one value per row.
        state = [np.full(1 if update is row_adagrad else DIM, exact.get("initial", 0.0)) for _ in range(slots)]
        for t in range(1, PUSHES + 1):
            # As float32, so that both sides start from the same numbers; the scales make |z| cross l1 both ways.
            g = rng.normal(size=DIM) * np.array([1.0, 0.1, 0.01, 3.0, 1.0]) + np.array([0, 0.05, 0, 0.5, -1.0])
            g = g.astype(np.float32).astype(np.float64)
            scale = 1.0 if t <= PUSHES // 2 else 0.5
            w, state = update(exact, w, state, g, t, scale)
            lines.append(line("push", [scale], g))
            if t % 4 == 0:
                lines.append(line("row", w, *(np.atleast_1d(value) for value in state)))
    pathlib.Path(__file__).with_name("optimizers.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
