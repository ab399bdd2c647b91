//! Checks of a whole spec: settings that contradict each other or are out of bounds. Reads no data.

use super::{DefaultField, Feature, FeatureKind, KeyRule, Pooling, Spec, bad};
use crate::error::SampleError;

impl Spec {
    /// Checks an expanded spec.
    pub(super) fn check(&self) -> Result<(), SampleError> {
        if self.feature.is_empty() {
            return Err(bad(
                "no features: add at least one [[feature]] (or see `sanderling inspect --suggest`)",
            ));
        }
        if self.feature.len() > Self::FEATURES_MAX {
            return Err(bad(format!("{} features, at most {}", self.feature.len(), Self::FEATURES_MAX)));
        }
        if let Some(negatives) = &self.negatives
            && !(negatives.keep > 0.0 && negatives.keep <= 1.0)
        {
            return Err(bad(format!("negatives.keep = {}: must be above 0 and at most 1", negatives.keep)));
        }
        self.check_label()?;
        let mut names = std::collections::HashSet::new();
        for feature in &self.feature {
            if !names.insert(feature.name.as_str()) {
                return Err(bad(format!("feature {:?} is there twice", feature.name)));
            }
            if feature.inputs().contains(&self.label.column.as_str()) {
                return Err(bad(format!("feature {:?} reads the label column", feature.name)));
            }
            feature.check().map_err(|reason| bad(format!("feature {:?}: {reason}", feature.name)))?;
        }
        let sparse = self.feature.iter().filter(|feature| feature.kind == FeatureKind::Sparse).count();
        if sparse > 0 {
            self.check_sparse()?;
        }
        if let Some(weight) = self.weight.as_ref().filter(|_| sparse > 0) {
            let column = &weight.column;
            return Err(bad(format!(
                "weight.column = {column:?}: libsvm and libffm text have no columns; leave [weight] out, or use another format"
            )));
        }
        Ok(())
    }

    fn check_label(&self) -> Result<(), SampleError> {
        let label = &self.label;
        if !label.threshold.is_finite() {
            return Err(bad(format!("label.threshold = {}: must be finite", label.threshold)));
        }
        if label.number && (!label.positive.is_empty() || label.threshold != 0.0) {
            return Err(bad(
                "label: the label of a regression is a number, and has neither positive nor threshold",
            ));
        }
        if label.number && self.negatives.is_some() {
            return Err(bad(
                "negatives: the label of a regression is a number, and no row is negative; leave it out",
            ));
        }
        if !label.positive.is_empty() && label.threshold != 0.0 {
            return Err(bad("label has both positive and threshold; texts or numbers, not both"));
        }
        if self.weight.as_ref().is_some_and(|weight| weight.column == label.column) {
            return Err(bad(format!("weight.column = {:?} is the label column", label.column)));
        }
        Ok(())
    }
}

impl Feature {
    fn check(&self) -> Result<(), String> {
        if self.column.is_some() && !self.columns.is_empty() {
            return Err("has both column and columns".to_string());
        }
        let number = self.is_number();
        match &self.default {
            Some(DefaultField::Text(text)) if number => {
                return Err(format!("default = {text:?}: a numeric feature needs a number"));
            }
            Some(DefaultField::Number(number)) if !number.is_finite() => {
                return Err("default must be finite".to_string());
            }
            Some(_) if self.kind == FeatureKind::Sparse => {
                return Err("a sparse feature has no default".to_string());
            }
            _ => {}
        }
        if number && self.columns.len() > 1 {
            return Err("a numeric feature has one column".to_string());
        }
        if number && self.key_rule() != KeyRule::Hash {
            return Err("key applies to categorical features only".to_string());
        }
        if self.kind == FeatureKind::Cross && self.columns.len() < 2 {
            return Err("a cross needs columns = [two or more]".to_string());
        }
        if self.kind == FeatureKind::Cross && self.key_rule() == KeyRule::Raw {
            return Err("a cross has no raw integer; use key = \"hash\" or {modulo = n}".to_string());
        }
        if self.key_rule() == KeyRule::Modulo(0) {
            return Err("key = {modulo = 0}: must be at least 1".to_string());
        }
        let many = matches!(self.kind, FeatureKind::Categorical | FeatureKind::Multi | FeatureKind::Cross);
        if self.pooling == Pooling::Mean && !many {
            return Err(
                "pooling = \"mean\" applies to categorical, multi and cross features only".to_string()
            );
        }
        if self.separator.is_some() && !matches!(self.kind, FeatureKind::Multi | FeatureKind::Cross) {
            return Err("separator applies to type = \"multi\" and \"cross\" only".to_string());
        }
        if self.separator.is_some_and(|separator| !separator.is_ascii()) {
            return Err("separator must be one ASCII character".to_string());
        }
        if self.kind != FeatureKind::Quantile && (self.buckets.is_some() || self.boundaries.is_some()) {
            return Err("buckets and boundaries apply to type = \"quantile\" only".to_string());
        }
        if self.buckets.is_some_and(|buckets| !(2..=Spec::BUCKETS_MAX).contains(&buckets)) {
            return Err(format!("buckets must be 2 to {}", Spec::BUCKETS_MAX));
        }
        if let Some(boundaries) = &self.boundaries
            && (boundaries.len() >= Spec::BUCKETS_MAX
                || boundaries.iter().any(|boundary| !boundary.is_finite())
                || boundaries.windows(2).any(|pair| pair[0] >= pair[1]))
        {
            return Err("boundaries must be finite and ascending".to_string());
        }
        if self.min_count == Some(0) {
            return Err("min_count must be at least 1".to_string());
        }
        if self.dim == Some(0) {
            return Err("dim must be at least 1".to_string());
        }
        Ok(())
    }
}
