//! Inference over named tensors, by whatever protocol they came: one tensor per column in, scores out.

use sanderling_sample::Field;

use crate::error::{ServeError, quoted};
use crate::models::ServedModel;
use crate::scored::Scorer;
use crate::scores::{Found, Scores, Scoring};
use crate::tensor::{Tensor, Values};
use crate::work::Asked;

/// The output with one score per row.
pub(crate) const SCORE: &str = "score";
/// The output with what each feature adds to the logit, by row and feature; only on request.
pub(crate) const CONTRIBUTIONS: &str = "contributions";
/// After a column's name: the input with the number of its values in each row.
pub(crate) const LENGTHS: &str = ":lengths";

/// A request for scores.
#[derive(Debug)]
pub struct InferRequest<'a> {
    /// Text that the client finds in the answer.
    pub(crate) id: String,
    pub(crate) inputs: Vec<Tensor<'a>>,
    /// None: the scores.
    pub(crate) outputs: Vec<WantedOutput>,
    /// Whether outputs without a choice of their own are bytes.
    pub(crate) is_binary: bool,
}

/// An output that the client asks for.
#[derive(Debug)]
pub(crate) struct WantedOutput {
    pub(crate) name: String,
    pub(crate) is_binary: Option<bool>,
}

/// One output: 32-bit floats.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) name: &'static str,
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
    pub(crate) is_binary: bool,
}

impl Output {
    /// The values as little-endian bytes.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }
}

/// The values of a column.
enum Source<'a> {
    Absent,
    /// One value per row.
    Single(&'a Values<'a>),
    /// An equal number of values in each row.
    Lists(&'a Values<'a>, usize),
    /// Values of row i lie between the ends i and i + 1.
    Ragged(&'a Values<'a>, Vec<usize>),
}

/// Scores the rows of a request; [`outputs_of`] makes the outputs of what is found.
pub(crate) fn infer(
    model: &ServedModel,
    request: &InferRequest<'_>,
    asked: &Asked,
) -> Result<Found, ServeError> {
    let wanted = asked.wanted(wants_contributions(&request.outputs)?);
    let (sources, rows) = sources(model, &request.inputs)?;
    if rows > asked.batch_max {
        return Err(ServeError::too_many(rows, "rows", asked.batch_max));
    }
    let work = |scorer: &mut Scorer| {
        let mut scoring = Scoring::new(model, scorer, rows, wanted, &asked.times)?;
        for row in 0..rows {
            add(&mut scoring, &sources, row)?;
        }
        scoring.finish()
    };
    asked.times.encoding(|| model.with_scorer(work))
}

/// The outputs that a request asks for.
pub(crate) fn outputs_of(
    model: &ServedModel,
    found: &Scores,
    wanted: &[WantedOutput],
    is_binary: bool,
    asked: &Asked,
) -> Vec<Output> {
    let rows = found.scores.len();
    asked.note_scores(&found.scores);
    let scores = || Output { name: SCORE, shape: vec![rows], values: found.scores.clone(), is_binary: false };
    let contributions = || {
        let parts = found.explained.as_ref().map_or(&[][..], |explained| &explained.contributions);
        let values = parts.iter().map(|part| *part as f32).collect();
        Output { name: CONTRIBUTIONS, shape: vec![rows, model.features().count()], values, is_binary: false }
    };
    if wanted.is_empty() {
        return vec![Output { is_binary, ..scores() }];
    }
    let output = |wanted: &WantedOutput| {
        let output = if wanted.name == SCORE { scores() } else { contributions() };
        Output { is_binary: wanted.is_binary.unwrap_or(is_binary), ..output }
    };
    wanted.iter().map(output).collect()
}

fn wants_contributions(outputs: &[WantedOutput]) -> Result<bool, ServeError> {
    if let Some(output) = outputs.iter().find(|output| ![SCORE, CONTRIBUTIONS].contains(&&*output.name)) {
        let name = quoted(&output.name);
        return Err(ServeError::invalid(format!("no output {name}; there are {SCORE}, {CONTRIBUTIONS}")));
    }
    if outputs.len() > 2 {
        return Err(ServeError::invalid("an output is asked for twice"));
    }
    Ok(outputs.iter().any(|output| output.name == CONTRIBUTIONS))
}

/// Where the values of each column are, and the number of rows.
fn sources<'a>(
    model: &ServedModel,
    inputs: &'a [Tensor<'a>],
) -> Result<(Vec<Source<'a>>, usize), ServeError> {
    let named = |name: &str| inputs.iter().find(|input| input.name == name);
    for (at, input) in inputs.iter().enumerate() {
        let is_lengths = || input.name.strip_suffix(LENGTHS).is_some_and(|name| named(name).is_some());
        if model.column(&input.name).is_none() && !is_lengths() {
            return Err(model.unknown_column(&format!("input {}", quoted(&input.name)), &input.name));
        }
        if inputs[..at].iter().any(|other| other.name == input.name) {
            return Err(ServeError::invalid(format!("input {} is there twice", quoted(&input.name))));
        }
    }
    let mut rows = None;
    let mut check_rows = |name: &str, found: usize| match *rows.get_or_insert(found) {
        expected if expected == found => Ok(()),
        expected => {
            let name = quoted(name);
            Err(ServeError::invalid(format!("input {name} has {found} rows, others have {expected}")))
        }
    };
    let mut sources = Vec::with_capacity(model.columns.len());
    for column in &model.columns {
        let Some(input) = named(&column.name) else {
            if !column.is_optional {
                return Err(ServeError::invalid(format!("no input {}", quoted(&column.name))));
            }
            sources.push(Source::Absent);
            continue;
        };
        if let Some(lengths) = named(&format!("{}{LENGTHS}", column.name)) {
            check_rows(&lengths.name, lengths.rows)?;
            sources.push(Source::Ragged(&input.values, ends(lengths, input.values.len())?));
            continue;
        }
        check_rows(&input.name, input.rows)?;
        sources.push(match input.width {
            // In a column of lists it may be a text with separators, as in a file.
            1 => Source::Single(&input.values),
            width if column.takes_list => Source::Lists(&input.values, width),
            width => {
                let name = quoted(&column.name);
                let text = format!("input {name}: {width} values per row of a column that takes one");
                return Err(ServeError::invalid(text));
            }
        });
    }
    // A model of optional columns alone has no rows to score.
    Ok((sources, rows.unwrap_or_default()))
}

/// The places where the values of each row begin, and the end of the last.
fn ends(lengths: &Tensor<'_>, values: usize) -> Result<Vec<usize>, ServeError> {
    let wrong = |text: String| ServeError::invalid(format!("input {}: {text}", quoted(&lengths.name)));
    if lengths.width != 1 {
        return Err(wrong("one length per row is expected".to_owned()));
    }
    let numbers: Vec<usize> = match &lengths.values {
        Values::Ints(lengths) => lengths.iter().map_while(|length| usize::try_from(*length).ok()).collect(),
        Values::Unsigned(lengths) => {
            lengths.iter().map_while(|length| usize::try_from(*length).ok()).collect()
        }
        _ => return Err(wrong("lengths are integers".to_owned())),
    };
    let mut ends = Vec::with_capacity(numbers.len() + 1);
    ends.push(0_usize);
    for length in &numbers {
        let last = ends[ends.len() - 1];
        ends.push(last.checked_add(*length).filter(|end| *end <= values).unwrap_or(usize::MAX));
        if ends[ends.len() - 1] == usize::MAX {
            break;
        }
    }
    if ends.len() != lengths.rows + 1 || ends[ends.len() - 1] != values {
        return Err(wrong(format!("the lengths do not add up to the {values} values")));
    }
    Ok(ends)
}

fn add(scoring: &mut Scoring<'_>, sources: &[Source<'_>], row: usize) -> Result<(), ServeError> {
    let mut lists: Vec<Vec<Field<'_>>> = Vec::new();
    for source in sources {
        let (values, span) = match source {
            Source::Absent | Source::Single(_) => continue,
            Source::Lists(values, width) => (values, row * width..(row + 1) * width),
            Source::Ragged(values, ends) => (values, ends[row]..ends[row + 1]),
        };
        lists.push(span.map(|at| values.field(at)).collect());
    }
    let (mut lists, mut fields) = (lists.iter(), Vec::with_capacity(sources.len()));
    for source in sources {
        fields.push(match source {
            Source::Absent => Field::Missing,
            Source::Single(values) => values.field(row),
            Source::Lists(..) | Source::Ragged(..) => Field::List(lists.next().map_or(&[], Vec::as_slice)),
        });
    }
    scoring.add(row, &fields)
}

/// The inputs that a model takes, for its metadata: name, datatype and shape.
pub(crate) fn inputs(model: &ServedModel) -> impl Iterator<Item = (&str, &'static str, Vec<i64>)> {
    let columns = model.columns.iter().filter(|column| !column.is_optional);
    columns.map(|column| {
        let shape = if column.takes_list { vec![-1, -1] } else { vec![-1] };
        (column.name.as_str(), if column.is_number { "FP64" } else { "BYTES" }, shape)
    })
}

/// The outputs of a model, for its metadata.
pub(crate) fn outputs(model: &ServedModel) -> impl Iterator<Item = (&'static str, &'static str, Vec<i64>)> {
    let features = model.features().count();
    let contributions = model.model.explains().then(|| (CONTRIBUTIONS, "FP32", vec![-1, features as i64]));
    [(SCORE, "FP32", vec![-1])].into_iter().chain(contributions)
}

/// Extensions of the protocol that the server knows.
pub(crate) const EXTENSIONS: [&str; 1] = ["binary_tensor_data"];
/// The platform of all models, for their metadata.
pub(crate) const PLATFORM: &str = "sanderling";
