//! The optimizers' arithmetic on slices: weights, state and gradient of one block of one row. Knows nothing of
//! tables, keys or locks.
//!
//! All state is `f32`, one value per coordinate and slot, slot after slot: Adagrad [a], Adam [m, v], FTRL [z, n].

use crate::Optimizer;

/// An optimizer, as a row's layout holds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kernel(Optimizer);

/// An optimizer with the learning rate of one push multiplied in and what is constant over the push computed.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    Sgd { lr: f32, l2: f32 },
    Adagrad { lr: f32, eps: f32, l2: f32 },
    Adam { lr: f32, beta1: f32, beta2: f32, eps: f32, l2: f32 },
    Ftrl(FtrlStep),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct FtrlStep {
    alpha_inverse: f32,
    beta: f32,
    l1: f32,
    l2: f32,
}

impl Kernel {
    pub(crate) fn new(optimizer: Optimizer) -> Kernel {
        Kernel(optimizer)
    }

    /// State values per coordinate.
    pub(crate) fn slots(self) -> usize {
        match self.0 {
            Optimizer::Sgd { .. } => 0,
            Optimizer::Adagrad { .. } => 1,
            Optimizer::Adam { .. } | Optimizer::Ftrl { .. } => 2,
        }
    }

    /// State of a row that has just been created with these weights.
    pub(crate) fn init_state(self, weights: &[f32], state: &mut [f32]) {
        match self.0 {
            Optimizer::Sgd { .. } => {}
            Optimizer::Adagrad { initial, .. } => state.fill(initial),
            Optimizer::Adam { .. } => state.fill(0.0),
            Optimizer::Ftrl { alpha, beta, l1, l2 } => {
                let (z, n) = state.split_at_mut(weights.len());
                n.fill(0.0);
                // The inverse of the closed form at n = 0, so that it yields the first weight.
                let slope = beta / alpha + l2;
                for (z, &w) in z.iter_mut().zip(weights) {
                    *z = if w == 0.0 { 0.0 } else { -(w * slope + l1.copysign(w)) };
                }
            }
        }
    }

    pub(crate) fn step(self, lr_scale: f32) -> Step {
        match self.0 {
            Optimizer::Sgd { lr, l2 } => Step::Sgd { lr: lr * lr_scale, l2 },
            Optimizer::Adagrad { lr, eps, l2, .. } => Step::Adagrad { lr: lr * lr_scale, eps, l2 },
            Optimizer::Adam { lr, beta1, beta2, eps, l2 } => {
                Step::Adam { lr: lr * lr_scale, beta1, beta2, eps, l2 }
            }
            Optimizer::Ftrl { alpha, beta, l1, l2 } => {
                // No schedule: the rate is in the weight itself (w follows from z, n and alpha), and a smaller alpha
                // would shrink what was learned. FTRL lowers its rate per coordinate by itself.
                Step::Ftrl(FtrlStep { alpha_inverse: 1.0 / alpha, beta, l1, l2 })
            }
        }
    }
}

impl FtrlStep {
    /// One coordinate: new (w, z, n). `sigma * w` uses the weight that the gradient was taken at, as in the paper.
    #[inline(always)]
    pub(crate) fn update(self, w: f32, z: f32, n: f32, g: f32) -> (f32, f32, f32) {
        let n_new = n + g * g;
        let root = n_new.sqrt();
        let sigma = (root - n.sqrt()) * self.alpha_inverse;
        let z_new = z + (g - sigma * w);
        let shrunk = z_new - self.l1.copysign(z_new);
        let slope = (self.beta + root) * self.alpha_inverse + self.l2;
        let w_new = if z_new.abs() <= self.l1 { 0.0 } else { -shrunk / slope };
        (w_new, z_new, n_new)
    }
}

impl Step {
    /// Updates one block of a row. `version` is the row's number of updates, this one included.
    #[inline(always)]
    pub(crate) fn update(self, version: u32, weights: &mut [f32], state: &mut [f32], gradient: &[f32]) {
        match self {
            Step::Sgd { lr, l2 } => {
                for (w, &g) in weights.iter_mut().zip(gradient) {
                    *w -= lr * (g + l2 * *w);
                }
            }
            Step::Adagrad { lr, eps, l2 } => {
                for ((w, a), &g) in weights.iter_mut().zip(state).zip(gradient) {
                    let g = g + l2 * *w;
                    *a += g * g;
                    *w -= lr * g / (a.sqrt() + eps);
                }
            }
            Step::Adam { lr, beta1, beta2, eps, l2 } => {
                // In f64: 1 - beta2 loses half of an f32's digits.
                let pushes = i32::try_from(version).unwrap_or(i32::MAX);
                let correct1 = (1.0 / (1.0 - f64::from(beta1).powi(pushes))) as f32;
                let correct2 = (1.0 / (1.0 - f64::from(beta2).powi(pushes))) as f32;
                let (m, v) = state.split_at_mut(weights.len());
                for (((w, m), v), &g) in weights.iter_mut().zip(m).zip(v).zip(gradient) {
                    let g = g + l2 * *w;
                    *m = beta1 * *m + (1.0 - beta1) * g;
                    *v = beta2 * *v + (1.0 - beta2) * (g * g);
                    *w -= lr * (*m * correct1) / ((*v * correct2).sqrt() + eps);
                }
            }
            Step::Ftrl(step) => {
                let (z, n) = state.split_at_mut(weights.len());
                for (((w, z), n), &g) in weights.iter_mut().zip(z).zip(n).zip(gradient) {
                    (*w, *z, *n) = step.update(*w, *z, *n, g);
                }
            }
        }
    }
}
