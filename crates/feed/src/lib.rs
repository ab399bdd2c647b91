//! The feed queue: threads read minibatches, look their embedding rows up and pool them ahead of the trainer, and gradients
//! go back in the background. The crate knows no model, no tensor and no socket.

mod error;
pub use error::FeedError;

mod recycle;
pub use recycle::{Recycled, Recycler};

mod sampled;
pub use sampled::{Sampled, Samples};

mod pooling;
pub use pooling::FeaturePooling;

mod features;
pub use features::Feature;

mod pooled;

mod fed;
pub use fed::{PoolAt, PooledAt, WayTotal};

mod ahead;

mod server_feeder;
pub use server_feeder::{FeedTo, ServerFeeder};

mod embedding;
pub use embedding::{Embedding, EmbeddingOptions, PUSHES_MAX};

mod looked_up;
pub use looked_up::LookedUp;

mod step;

mod ticket;

mod wait;

mod pushes;
pub use pushes::Scales;

mod reader;

mod options;
pub use options::{DEPTH_MAX, QueueOptions, THREADS_MAX};

mod lookup_place;
mod minibatch;

mod line;
pub use line::Fed;

mod queue;
pub use queue::FeedQueue;

mod expected;
pub use expected::Expected;

mod source;
pub use source::{FileOptions, Source};

mod statistics;
pub use statistics::FeedStatistics;
