//! Parameters of a script: what `-P name=value` may say, and how a script asks for it with `param!`. Knows neither tables
//! nor requests.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use rune::ast;
use rune::compile;
use rune::macros::{MacroContext, TokenStream, quote};
use rune::parse::Parser;
use rune::runtime::Value;

/// The value of a parameter, of the type of its default.
#[derive(Debug, Clone, PartialEq)]
pub enum Param {
    /// `10_000_000`, given as `10000000`, `10M`, `1e7` or `64KiB`.
    Int(i64),
    /// `0.99`, given as `.99` too.
    Float(f64),
    /// `true` or `false`.
    Bool(bool),
    /// Anything.
    Text(String),
}

impl fmt::Display for Param {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Param::Int(value) => value.fmt(f),
            Param::Float(value) => write!(f, "{value:?}"),
            Param::Bool(value) => value.fmt(f),
            Param::Text(value) => value.fmt(f),
        }
    }
}

impl Param {
    /// Reads a value of the type that `self` has; the error says what would do.
    pub fn same_type(&self, text: &str) -> Result<Param, String> {
        let text = text.trim();
        let fail = |wanted: &str| Err(format!("{text:?} is not {wanted}"));
        match self {
            Param::Int(_) => match number(text) {
                // Above 2^53 an f64 no longer tells neighbours apart; plain digits are read as they are.
                _ if text.replace('_', "").parse::<i64>().is_ok() => {
                    Ok(Param::Int(text.replace('_', "").parse().unwrap_or_default()))
                }
                Some(value) if value.fract() == 0.0 && value.abs() <= 9.0e15 => Ok(Param::Int(value as i64)),
                _ => fail("a whole number such as 1000, 10M, 1e8 or 64KiB"),
            },
            Param::Float(_) => match number(text) {
                Some(value) => Ok(Param::Float(value)),
                None => fail("a number such as 0.99, .5 or 1e-3"),
            },
            Param::Bool(_) => match text {
                "true" | "yes" | "1" => Ok(Param::Bool(true)),
                "false" | "no" | "0" => Ok(Param::Bool(false)),
                _ => fail("true or false"),
            },
            Param::Text(_) => Ok(Param::Text(text.to_owned())),
        }
    }
}

const SUFFIXES: [(&str, f64); 12] = [
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
    ("GiB", 1073741824.0),
    ("TiB", 1099511627776.0),
    ("k", 1e3),
    ("K", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
];

/// A finite number, be it with `_` between digits, an exponent, or one suffix of size.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.replace('_', "");
    let longest = SUFFIXES.iter().filter(|(suffix, _)| text.ends_with(suffix)).max_by_key(|(s, _)| s.len());
    let (digits, times) =
        longest.map_or((text.as_str(), 1.0), |(s, times)| (&text[..text.len() - s.len()], *times));
    // `inf` and `nan` are numbers to Rust.
    let first = digits.trim_start_matches(['+', '-']).chars().next()?;
    let value = digits.parse::<f64>().ok()? * times;
    (value.is_finite() && (first.is_ascii_digit() || first == '.')).then_some(value)
}

/// A parameter that a script has.
#[derive(Debug, Clone, PartialEq)]
pub struct Declared {
    /// Its name on the command line.
    pub name: String,
    /// Its value if nothing is said.
    pub default: Param,
    /// Its value in this run.
    pub value: Param,
    /// Help text from the script; may be empty.
    pub help: String,
}

/// Given parameters, and the parameters that the script asked for during compilation.
#[derive(Debug, Default)]
pub(super) struct Params {
    pub(super) given: BTreeMap<String, String>,
    pub(super) declared: Vec<Declared>,
}

/// The `param!` of one compilation. The lock is taken by one thread only, and not once scripts run.
pub(super) fn declare(
    params: &Arc<Mutex<Params>>,
    cx: &mut MacroContext<'_, '_, '_>,
    stream: &TokenStream,
) -> compile::Result<TokenStream> {
    let span = cx.macro_span();
    let mut parser = Parser::from_token_stream(stream, cx.input_span());
    let name = parser.parse::<ast::LitStr>()?;
    let name = cx.resolve(name)?.to_string();
    parser.parse::<ast::Comma>()?;
    let default = parser.parse::<ast::Expr>()?;
    let help = match parser.parse::<Option<ast::Comma>>()? {
        Some(_) if !parser.is_eof()? => {
            let help = parser.parse::<ast::LitStr>()?;
            cx.resolve(help)?.to_string()
        }
        _ => String::new(),
    };
    parser.eof()?;
    let default = cx.eval(&default)?;
    let Some(default) = from_value(&default) else {
        return Err(compile::Error::msg(span, "a parameter's default is a number, true, false or a text"));
    };
    let mut params = params.lock().unwrap_or_else(PoisonError::into_inner);
    let value = match params.given.get(&name) {
        None => default.clone(),
        Some(text) => match default.same_type(text) {
            Ok(value) => value,
            Err(reason) => return Err(compile::Error::msg(span, format!("parameter {name}: {reason}"))),
        },
    };
    let declared = Declared { name: name.clone(), default, value: value.clone(), help };
    match params.declared.iter().find(|other| other.name == declared.name) {
        Some(other) if *other != declared => {
            return Err(compile::Error::msg(
                span,
                format!("parameter {name} is declared twice, differently"),
            ));
        }
        Some(_) => {}
        None => params.declared.push(declared),
    }
    let stream = match value {
        // A literal has no sign.
        Param::Int(i64::MIN) => {
            return Err(compile::Error::msg(span, format!("parameter {name} is too small")));
        }
        Param::Int(value) => {
            let lit = cx.lit(value.abs())?;
            if value < 0 { quote!(- #lit).into_token_stream(cx) } else { quote!(#lit).into_token_stream(cx) }
        }
        Param::Float(value) => {
            let lit = cx.lit(value.abs())?;
            if value < 0.0 {
                quote!(- #lit).into_token_stream(cx)
            } else {
                quote!(#lit).into_token_stream(cx)
            }
        }
        Param::Bool(true) => quote!(true).into_token_stream(cx),
        Param::Bool(false) => quote!(false).into_token_stream(cx),
        Param::Text(value) => {
            let lit = cx.lit(value.as_str())?;
            quote!(#lit).into_token_stream(cx)
        }
    };
    Ok(stream?)
}

fn from_value(value: &Value) -> Option<Param> {
    if let Ok(value) = rune::from_value::<bool>(value.clone()) {
        return Some(Param::Bool(value));
    }
    if let Ok(value) = rune::from_value::<i64>(value.clone()) {
        return Some(Param::Int(value));
    }
    if let Ok(value) = rune::from_value::<f64>(value.clone()) {
        return Some(Param::Float(value));
    }
    value.borrow_string_ref().ok().map(|text| Param::Text(text.to_string()))
}

/// The name among `known` that was probably meant, if one is near.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let best = known.into_iter().map(|other| (distance(name, other), other)).min()?;
    (best.0 <= 1 + name.len().div_ceil(4)).then_some(best.1)
}

/// `, did you mean "x"?` or nothing.
pub(super) fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map_or(String::new(), |other| format!("; did you mean {other:?}?"))
}

/// Levenshtein's distance in bytes.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let changed = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}
