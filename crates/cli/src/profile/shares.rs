//! From stacks to shares: of functions, and of parts of the work. Knows no file and nothing of how stacks are taken.

use std::collections::HashMap;

use super::Stack;
use super::parts::{self, PARTS};
use crate::output;

/// A longer name is cut in the table; the flame graph has all of it.
const NAME_CHARS_MAX: usize = 110;

/// Samples in which something ran itself, and in which it was anywhere on the stack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Shares {
    flat: u64,
    cumulative: u64,
}

/// The shares of functions, the largest first.
fn of_functions(stacks: &[Stack]) -> Vec<(&str, Shares)> {
    let mut all: HashMap<&str, Shares> = HashMap::new();
    for stack in stacks {
        if let Some(function) = stack.functions.last() {
            all.entry(function).or_default().flat += stack.samples;
        }
        let mut seen: Vec<&str> = stack.functions.iter().map(|function| &function[..]).collect();
        seen.sort_unstable();
        seen.dedup();
        for function in seen {
            all.entry(function).or_default().cumulative += stack.samples;
        }
    }
    let mut all: Vec<(&str, Shares)> = all.into_iter().collect();
    all.sort_unstable_by(|(a, of_a), (b, of_b)| {
        (of_b.flat, of_b.cumulative).cmp(&(of_a.flat, of_a.cumulative)).then(a.cmp(b))
    });
    all
}

/// The shares of the parts. A sample is flat that part's whose function is the innermost: copying, allocating and the
/// kernel's work belong to whoever asked for them.
fn of_parts(stacks: &[Stack]) -> [Shares; PARTS.len()] {
    let mut all = [Shares::default(); PARTS.len()];
    for stack in stacks {
        let found: Vec<usize> = stack.functions.iter().filter_map(|function| parts::part(function)).collect();
        let innermost = found.last().copied().unwrap_or(parts::OTHER);
        all[innermost].flat += stack.samples;
        for (part, shares) in all.iter_mut().enumerate() {
            if part == innermost || found.contains(&part) {
                shares.cumulative += stack.samples;
            }
        }
    }
    all
}

fn samples(stacks: &[Stack]) -> u64 {
    stacks.iter().map(|stack| stack.samples).sum()
}

fn percent(samples: u64, of: u64) -> String {
    format!("{:.1} %", 100.0 * samples as f64 / of.max(1) as f64)
}

/// The table of a profile.
pub(super) fn text(stacks: &[Stack], of: &str, samples_per_s: u32, functions_max: usize) -> String {
    let all = samples(stacks);
    let mut text = format!(
        "CPU profile of {of}: {} samples of all threads of the process, {samples_per_s} a second of processor time, \
         so {:.2} s\n\n",
        output::count(all),
        all as f64 / f64::from(samples_per_s)
    );
    let of_parts = of_parts(stacks);
    let rows: Vec<Vec<String>> = PARTS
        .iter()
        .zip(&of_parts)
        .map(|(part, shares)| {
            let [flat, cumulative] = [shares.flat, shares.cumulative].map(|samples| percent(samples, all));
            vec![part.name.to_owned(), flat, cumulative, part.about.to_owned()]
        })
        .collect();
    text += &output::columns(&["part", "flat", "cumulative", ""], &rows, &[0, 3]);
    text += "\n\nFlat: a function of the part ran, or what it called outside of this program's own crates (copying, \
             allocation, the kernel).\nCumulative: a function of the part was on the stack.\n\n";
    let functions = of_functions(stacks);
    let mut rows: Vec<Vec<String>> = functions
        .iter()
        .take(functions_max)
        .map(|(function, shares)| {
            vec![percent(shares.flat, all), percent(shares.cumulative, all), short(function)]
        })
        .collect();
    if functions.len() > functions_max {
        let rest = &functions[functions_max..];
        let flat = rest.iter().map(|(_, shares)| shares.flat).sum();
        rows.push(vec![percent(flat, all), String::new(), format!("({} other functions)", rest.len())]);
    }
    text += &output::columns(&["flat", "cumulative", "function"], &rows, &[2]);
    text.push('\n');
    text
}

/// Cost of messages to servers as text.
pub(super) fn rpc(stacks: &[Stack]) -> String {
    let (all, shares) = (samples(stacks), of_parts(stacks)[parts::RPC]);
    let count = output::count(all);
    format!(
        "rpc {} flat, {} cumulative, of {count} samples",
        percent(shares.flat, all),
        percent(shares.cumulative, all)
    )
}

fn short(name: &str) -> String {
    match name.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}...", &name[..end]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(functions: &[&str], samples: u64) -> Stack {
        let functions = functions.iter().map(ToString::to_string).collect();
        Stack { thread: "worker".to_owned(), functions, samples }
    }

    #[test]
    fn flat_is_who_ran_and_cumulative_who_was_there() {
        let stacks = [
            stack(&["main", "sanderling_learner::a", "sanderling_store::pull", "memcpy"], 3),
            stack(&["main", "sanderling_learner::a", "sanderling_learner::a"], 4),
            stack(&["main", "sanderling_learner::a", "sanderling_client::connection_set::send", "send"], 1),
            stack(&["main"], 2),
        ];
        let found = of_functions(&stacks);
        let of = |flat, cumulative| Shares { flat, cumulative };
        let expected = [
            ("sanderling_learner::a", of(4, 8)),
            ("memcpy", of(3, 3)),
            ("main", of(2, 10)),
            ("send", of(1, 1)),
            ("sanderling_store::pull", of(0, 3)),
            ("sanderling_client::connection_set::send", of(0, 1)),
        ];
        assert_eq!(found, expected);
        // rpc, parse, table, compute, other
        assert_eq!(of_parts(&stacks), [of(1, 1), of(0, 0), of(3, 3), of(4, 8), of(2, 2)]);
        assert_eq!(rpc(&stacks), "rpc 10.0 % flat, 10.0 % cumulative, of 10 samples");
        let expected = "\
 flat  cumulative  function
40.0 %      80.0 %  sanderling_learner::a
30.0 %      30.0 %  memcpy
30.0 %              (4 other functions)
";
        let text = text(&stacks, "r", 10, 2);
        assert!(text.ends_with(expected.split_once('\n').map_or("", |(_, rows)| rows)), "{text}");
        assert!(
            text.starts_with("CPU profile of r: 10 samples of all threads of the process, 10 a second"),
            "{text}"
        );
    }

    #[test]
    fn nothing_sampled_is_no_division_by_zero() {
        assert!(text(&[], "r", 199, 40).contains("0 samples"));
        assert_eq!(rpc(&[]), "rpc 0.0 % flat, 0.0 % cumulative, of 0 samples");
    }
}
