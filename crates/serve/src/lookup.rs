//! Rows of tables by key, or by the text of a feature, which becomes the key as in training.

mod json;
pub(crate) use json::{answer_body, answer_query, weights_of};
