//! Checks of a feature in a configuration that a saved model need not pass: fitting leaves `buckets` beside the
//! boundaries, finds no boundary if all numbers are equal, and takes any number of them from batch files. Reads no
//! data.

use super::{DefaultField, Feature, FeatureKind, KeyRule};
use crate::field::{Field, raw_key, with_text};

/// Checks all features of a configuration, alone and together.
///
/// # Errors
/// As [`Feature::check_written`]; also a cross that reads a multi-valued field as one value.
pub fn check_all_written(features: &[Feature]) -> Result<(), String> {
    features.iter().try_for_each(Feature::check_written)?;
    let crosses = features.iter().filter(|it| it.kind == FeatureKind::Cross && it.separator.is_none());
    for cross in crosses {
        for column in &cross.columns {
            let multi = features.iter().filter(|it| it.kind == FeatureKind::Multi);
            let mut reads =
                multi.filter(|it| it.each.contains(column) || it.inputs().contains(&column.as_str()));
            if let Some(multi) = reads.next() {
                let separator = multi.separator.unwrap_or('|');
                return Err(format!(
                    "cross of {:?}: {column:?} has several values in a field (type = \"multi\"); add separator = {:?}",
                    cross.columns,
                    separator.to_string()
                ));
            }
        }
    }
    Ok(())
}

impl Feature {
    /// Checks a feature, or a family, of a configuration before any fitting.
    ///
    /// # Errors
    /// The reason, with the feature's name: settings that contradict each other, do nothing, or fail at the first missing field.
    pub fn check_written(&self) -> Result<(), String> {
        let name = [&self.name].into_iter().chain(&self.column).chain(&self.columns).chain(&self.each);
        let name = name.into_iter().find(|name| !name.is_empty()).map_or("", String::as_str);
        let wrong = |reason: String| Err(format!("feature {name:?}: {reason}"));
        if self.kind == FeatureKind::Quantile
            && let Some(boundaries) = &self.boundaries
        {
            if boundaries.is_empty() {
                return wrong(
                    "boundaries = []: they make one bucket, which tells nothing; leave them out to have them fitted"
                        .to_string(),
                );
            }
            let made = boundaries.len() + 1;
            if let Some(buckets) = self.buckets.filter(|&buckets| buckets < made) {
                return wrong(format!(
                    "buckets = {buckets}, and its boundaries make {made}; leave out one of the two"
                ));
            }
        }
        let Some(default) = &self.default else { return Ok(()) };
        let default = match default {
            DefaultField::Text(text) => Field::Text(text.as_bytes()),
            DefaultField::Number(number) => Field::Float(*number),
        };
        if self.key_rule() == KeyRule::Raw && raw_key(default).is_none() {
            let default = with_text(default, |text| String::from_utf8_lossy(text).into_owned());
            let default = default.unwrap_or_default();
            return wrong(format!("default = {default:?}: key = \"raw\" needs a 64-bit integer"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::Spec;

    fn check(feature: &str, expected: Result<(), &str>) {
        let spec: Spec = toml::from_str(&format!("[[feature]]\n{feature}")).unwrap();
        assert_eq!(spec.feature[0].check_written(), expected.map_err(str::to_string), "{feature}");
        // A saved model still loads.
        spec.expand().unwrap();
    }

    #[test]
    fn a_cross_of_several_values_says_how_they_are_parted() {
        let check = |cross: &str| {
            let toml = format!(
                "[[feature]]\neach = [\"tags\"]\ntype = \"multi\"\nseparator = \";\"\n\
                 [[feature]]\nname = \"x\"\ntype = \"cross\"\ncolumns = [\"user\", \"tags\"]\n{cross}"
            );
            let spec: Spec = toml::from_str(&toml).unwrap();
            spec.expand().unwrap();
            super::check_all_written(&spec.feature)
        };
        let error = check("").unwrap_err();
        assert!(
            error.contains("\"tags\" has several values") && error.contains("separator = \";\""),
            "{error}"
        );
        assert_eq!(check("separator = \";\""), Ok(()));
    }

    #[test]
    fn settings_that_contradict_each_other_or_do_nothing() {
        let quantile = |rest: &str| format!("name = \"a\"\ntype = \"quantile\"\n{rest}");
        check(&quantile("buckets = 5"), Ok(()));
        check(&quantile("boundaries = [1, 5, 10]"), Ok(()));
        // As the configuration of a saved model has them.
        check(&quantile("buckets = 5\nboundaries = [1, 5, 10]"), Ok(()));
        check(
            &quantile("buckets = 3\nboundaries = [1, 5, 10]"),
            Err("feature \"a\": buckets = 3, and its boundaries make 4; leave out one of the two"),
        );
        check(
            "each = [\"b\", \"c\"]\ntype = \"quantile\"\nboundaries = []",
            Err(
                "feature \"b\": boundaries = []: they make one bucket, which tells nothing; leave them out to have them fitted",
            ),
        );
        for (default, shown) in [("\"x\"", "x"), ("0.5", "0.5"), ("\"\"", "")] {
            check(
                &format!("column = \"u\"\nkey = \"raw\"\ndefault = {default}"),
                Err(&format!("feature \"u\": default = {shown:?}: key = \"raw\" needs a 64-bit integer")),
            );
        }
        check("column = \"u\"\nkey = \"raw\"\ndefault = \"7\"", Ok(()));
        check("column = \"u\"\nkey = \"raw\"\ndefault = 7", Ok(()));
        check("column = \"u\"\ndefault = \"x\"", Ok(()));
    }
}
