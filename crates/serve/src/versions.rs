//! `/v2/repository`: the versions of all models, and requests that change them, as clients of Triton write them.

use serde::Deserialize;

use crate::catalog::LIVE;
use crate::error::{Kind, ServeError, quoted};
use crate::folder::is_alias;
use crate::repository::{Change, State};
use crate::service::Service;
use crate::work::Answer;

/// The body of `load` and `unload`; clients send none, or one without parameters.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Body {
    parameters: Parameters,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Parameters {
    /// Version that the alias gets.
    version: Option<Version>,
    alias: Option<String>,
    /// Triton's clients send it; there are no dependents.
    #[serde(rename = "unload_dependents")]
    _unload_dependents: bool,
}

/// A version, which clients write as a number or as a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Version {
    Number(u64),
    Text(String),
}

impl Parameters {
    fn parse(body: &[u8]) -> Result<Parameters, ServeError> {
        if body.is_empty() {
            return Ok(Parameters::default());
        }
        let body = serde_json::from_slice::<Body>(body);
        let body = body.map_err(|error| ServeError::invalid(format!("the body: {error}")))?;
        if let Some(alias) = body.parameters.alias.as_deref().filter(|alias| !is_alias(alias)) {
            return Err(ServeError::invalid(format!(
                "{} is no alias: letters, digits, '-', '_' and '.', and no number",
                quoted(alias)
            )));
        }
        Ok(body.parameters)
    }

    fn version(&self) -> Result<Option<u64>, ServeError> {
        match &self.version {
            None => Ok(None),
            Some(Version::Number(number)) => Ok(Some(*number)),
            Some(Version::Text(text)) => {
                let number =
                    text.parse().map_err(|_| ServeError::invalid("version: a whole number is expected"));
                number.map(Some)
            }
        }
    }
}

/// `load`: has an alias (`live`) name a version, or does what the folder says now.
pub(crate) fn load_change(body: &[u8]) -> Result<Change, ServeError> {
    let parameters = Parameters::parse(body)?;
    let version = parameters.version()?;
    match (version, parameters.alias) {
        (Some(version), alias) => {
            Ok(Change::Point { alias: alias.unwrap_or_else(|| LIVE.to_owned()), version })
        }
        (None, None) => Ok(Change::Follow),
        (None, Some(alias)) => {
            Err(ServeError::invalid(format!("alias {}: give its version, too", quoted(&alias))))
        }
    }
}

/// `unload`: removes an alias, or a model that is not in the folder any more.
pub(crate) fn unload_change(body: &[u8]) -> Result<Change, ServeError> {
    let parameters = Parameters::parse(body)?;
    match (parameters.version()?, parameters.alias) {
        (Some(_), _) => {
            Err(ServeError::invalid("a version is dropped when no alias names it; give an alias"))
        }
        (None, Some(alias)) => Ok(Change::Remove { alias }),
        (None, None) => Ok(Change::Forget),
    }
}

/// Makes a change, and answers when it is in effect.
pub(crate) async fn change(service: &Service, name: String, change: Change) -> Result<Answer, ServeError> {
    let Some(repository) = service.repository.get() else {
        let text = "this server has one model; start it with --models DIR to change versions";
        return Err(ServeError::invalid(text));
    };
    repository.change(name.clone(), change).await?;
    let models = service.models.current();
    let versions: Vec<String> = models.versions(&name).map(|version| version.to_string()).collect();
    let aliases = models.aliases().filter(|(model, ..)| *model == name);
    let aliases: serde_json::Map<_, _> =
        aliases.map(|(_, alias, version)| (alias.to_owned(), version.to_string().into())).collect();
    Answer::json(&serde_json::json!({ "name": name, "versions": versions, "aliases": aliases }))
}

/// Lists all versions with their state, also those that are not loaded.
pub(crate) fn index(service: &Service) -> Result<Answer, ServeError> {
    let models = service.models.current();
    let mut states = service.repository.get().map(crate::repository::Repository::index).unwrap_or_default();
    for model in models.iter() {
        states.insert((model.name.clone(), model.version), State::Ready);
    }
    let entries = states.iter().map(|((name, version), state)| {
        let (state, reason) = match state {
            State::Ready => ("READY", ""),
            State::Loading => ("LOADING", ""),
            State::Unavailable(reason) => ("UNAVAILABLE", &**reason),
        };
        serde_json::json!({ "name": name, "version": version.to_string(), "state": state, "reason": reason })
    });
    Answer::json(&entries.collect::<Vec<_>>())
}

/// The refusal of changes at a server that other machines reach without a token.
pub(crate) fn refused() -> ServeError {
    let text = "other machines reach this server without a token, so it takes no changes; start it with --token-file";
    ServeError::new(Kind::Forbidden, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_ask_for_a_change() {
        let point = |alias: &str, version| Some(Change::Point { alias: alias.to_owned(), version });
        let remove = |alias: &str| Some(Change::Remove { alias: alias.to_owned() });
        for (body, load, unload) in [
            ("", Some(Change::Follow), Some(Change::Forget)),
            ("{}", Some(Change::Follow), Some(Change::Forget)),
            (r#"{"parameters":{}}"#, Some(Change::Follow), Some(Change::Forget)),
            (r#"{"parameters":{"unload_dependents":false}}"#, Some(Change::Follow), Some(Change::Forget)),
            (r#"{"parameters":{"version":12}}"#, point("live", 12), None),
            (r#"{"parameters":{"version":"12","alias":"shadow"}}"#, point("shadow", 12), None),
            (r#"{"parameters":{"alias":"shadow"}}"#, None, remove("shadow")),
            (r#"{"parameters":{"version":"live"}}"#, None, None),
            (r#"{"parameters":{"alias":"../x","version":1}}"#, None, None),
            (r#"{"parameters":{"alias":"12","version":1}}"#, None, None),
            (r#"{"parameters":{"config":"{}"}}"#, None, None),
            ("[", None, None),
        ] {
            assert_eq!(load_change(body.as_bytes()).ok(), load, "{body}");
            assert_eq!(unload_change(body.as_bytes()).ok(), unload, "{body}");
        }
    }
}
