//! Replaces the models of a server, as those do that load them.

use std::sync::Arc;

use crate::catalog::{ModelTable, Models};
use crate::metrics::Metrics;

/// Replaces the models of a server.
#[derive(Clone)]
pub(crate) struct Publisher {
    pub(crate) models: Arc<ModelTable>,
    pub(crate) metrics: Arc<Metrics>,
    /// Threads that score.
    pub(crate) threads: usize,
    /// Called after each replacement.
    pub(crate) published: Arc<dyn Fn() + Send + Sync>,
}

impl Publisher {
    pub(crate) fn models(&self) -> Arc<Models> {
        self.models.current()
    }

    /// Replaces all models in one step; returns those before.
    pub(crate) fn publish(&self, models: Models) -> Arc<Models> {
        let before = self.models.replace(models);
        self.metrics.note_versions(&before, &self.models());
        (self.published)();
        before
    }
}
