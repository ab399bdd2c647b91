//! Checks that a hub encodes its rows as a configuration says, as far as it says anything. Knows no hub.

use std::collections::BTreeMap;

use sanderling_sample::Spec;
use sanderling_sample::spec::{Feature, FeatureKind, KeyRule, Label, Negatives, Weight};

use crate::error::FeedError;

/// A configuration's requirements on rows that come from a hub; missing entries accept the hub's.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// The label.
    pub label: Option<Label>,
    /// Row weights.
    pub weight: Option<Weight>,
    /// Down-sampling of negatives.
    pub negatives: Option<Negatives>,
    /// The features; none: the hub's.
    pub feature: Vec<Feature>,
}

impl Expected {
    /// The spec of the rows: the hub's, with the configuration's tables, widths and pooling of features, which no key depends on.
    /// The error names what differs, and how it is here and there.
    pub(crate) fn check(&self, hub: &str, served: &Spec) -> Result<Spec, FeedError> {
        let differs = |what: String, here: String, there: String| FeedError::HubSpec {
            hub: hub.to_owned(),
            what,
            here,
            there,
        };
        if let Some(label) = self.label.as_ref().filter(|&label| *label != served.label) {
            return Err(differs("label".to_owned(), json(label), json(&served.label)));
        }
        if self.weight.is_some() && self.weight != served.weight {
            return Err(differs("weight".to_owned(), json(&self.weight), json(&served.weight)));
        }
        if self.negatives.is_some() && self.negatives != served.negatives {
            return Err(differs("negatives".to_owned(), json(&self.negatives), json(&served.negatives)));
        }
        let mut spec = served.clone();
        if self.feature.is_empty() {
            return Ok(spec);
        }
        let here = Spec { feature: self.feature.clone(), ..Spec::default() }.expand()?.feature;
        let names = |features: &[Feature]| {
            features.iter().map(|feature| feature.name.as_str()).collect::<Vec<_>>().join(", ")
        };
        if names(&here) != names(&served.feature) {
            return Err(differs("the names of features".to_owned(), names(&here), names(&served.feature)));
        }
        for (one, other) in here.into_iter().zip(&mut spec.feature) {
            let (ours, theirs) = (rules(&one), rules(other));
            for (rule, there) in theirs {
                let here = ours.get(rule).cloned().unwrap_or_default();
                // Boundaries that the configuration does not have, the hub has fitted.
                if here != there && !(rule == "boundaries" && one.boundaries.is_none()) {
                    return Err(differs(format!("{rule} of feature {:?}", one.name), here, there));
                }
            }
            other.table.clone_from(&one.table);
            other.dim = one.dim;
        }
        Ok(spec)
    }
}

/// All that the keys and values of a feature depend on, defaults filled in.
fn rules(feature: &Feature) -> BTreeMap<&'static str, String> {
    let quantile = feature.kind == FeatureKind::Quantile;
    // The keys of numbers, of buckets and of what is missing are hashes, too.
    let hashed = feature.key_rule() != KeyRule::Raw;
    BTreeMap::from([
        ("columns", feature.inputs().join(", ")),
        ("type", json(&feature.kind)),
        ("separator", feature.separator.unwrap_or('|').to_string()),
        ("key", json(&feature.key_rule())),
        ("salt", if hashed { feature.salt().to_owned() } else { String::new() }),
        ("pooling", json(&feature.pooling)),
        ("default", json(&feature.default)),
        (
            "buckets",
            if quantile { json(&feature.buckets.unwrap_or(Spec::BUCKETS_DEFAULT)) } else { String::new() },
        ),
        ("boundaries", json(&feature.boundaries)),
    ])
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn features(text: &str) -> Vec<Feature> {
        toml::from_str::<Spec>(text).expect("a spec").feature
    }

    #[test]
    fn what_differs_is_named() {
        let hub = "[[feature]]\neach = [\"a\", \"b\"]\n[[feature]]\nname = \"q\"\ntype = \"quantile\"\nbuckets = 2\nboundaries = [1.5]";
        let served = Spec { feature: features(hub), ..Spec::default() }.expand().expect("fine");
        let fitted = "[[feature]]\nname = \"a\"\n[[feature]]\nname = \"b\"\n[[feature]]\nname = \"q\"\ntype = \"quantile\"\nbuckets = 2";
        for (here, expected) in [
            ("", None),
            (fitted, None),
            (&fitted.replace("name = \"b\"", "name = \"b\"\ntable = \"t\"\nsalt = \"b\""), None),
            (&fitted.replace("name = \"b\"", "name = \"b\"\ntable = \"t\""), Some("salt of feature \"b\"")),
            (&fitted.replace("\"b\"", "\"c\""), Some("the names of features")),
            (&fitted.replace("\"b\"", "\"b\"\nkey = \"raw\""), Some("key of feature \"b\"")),
            (&fitted.replace("= 2", "= 3"), Some("buckets of feature \"q\"")),
            (&format!("{fitted}\nboundaries = [1.0]"), Some("boundaries of feature \"q\"")),
            (&format!("{fitted}\ntable = \"t\"\nsalt = \"q\""), None),
            (&format!("{fitted}\ntable = \"t\""), Some("salt of feature \"q\"")),
        ] {
            let expecting = Expected { feature: features(here), ..Expected::default() };
            match (expecting.check("h:1", &served), expected) {
                (Ok(spec), None) => assert_eq!(spec.feature[2].boundaries, Some(vec![1.5]), "{here}"),
                (Err(FeedError::HubSpec { hub, what, .. }), Some(expected)) => {
                    assert_eq!((hub.as_str(), what.as_str()), ("h:1", expected), "{here}");
                }
                (found, expected) => panic!("{here}: {found:?} is not {expected:?}"),
            }
        }
        let label = Label { column: "click".to_owned(), ..Label::default() };
        let error = Expected { label: Some(label), ..Expected::default() }.check("h:1", &served);
        assert!(error.expect_err("another label").to_string().contains("\"click\""));
    }
}
