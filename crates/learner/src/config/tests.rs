//! Tests of the configuration: what is read, and what is refused with which words.

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("c.toml"), "c").map_err(|error| error.to_string())
}

#[test]
fn configurations() {
    let head = "[data]\ntrain = \"a.csv\"\n[[feature]]\nname = \"f\"\n";
    let data = |entry: &str| format!("[data]\n{entry}\n");
    for (text, expected) in [
        (head.to_string(), Ok(())),
        ("[data]\ntrain = [\"a.svm\", \"b.svm\"]".to_string(), Ok(())),
        ("[data]\ntrain = \"a.criteo.gz\"".to_string(), Ok(())),
        ("[data]\ntrain = \"a.csv\"".to_string(), Err("no features")),
        ("[data]\ntrain = \"-\"".to_string(), Err("data.format")),
        ("[data]\ntrian = \"a.csv\"".to_string(), Err("unknown field `trian`, expected one of `train`")),
        (String::new(), Err("data.train")),
        (
            format!("[train]\nps_timeout = \"5ms\"\n{head}"),
            Err("train.ps_timeout = \"5ms\": must be 10ms to 24h"),
        ),
        (format!("[train]\nps_timeout = \"20\"\n{head}"), Err("is not a duration with a unit")),
        (format!("[train]\nps_timeout = \"2.5s\"\n{head}"), Ok(())),
        ("[data]\ntrain = \"\"".to_string(), Err("data.train: an empty path")),
        (data("train = \"a.svm\"\nvalid = [\"a.svm\", \"\"]"), Err("data.valid: an empty path")),
        (data("format = \"x\""), Err("data.format: unknown variant `x`, expected one of `")),
        (data("missing = \"NA\""), Err("data.missing: ")),
        (data("separator = 1"), Err("data.separator: ")),
        (data("on_bad_row = \"x\""), Err("data.on_bad_row: ")),
        (data("train = 1"), Err("data.train: a path")),
        (
            format!("{head}table = \"\""),
            Err("c.toml: feature \"f\": the name of its table must have 1 to 256"),
        ),
        (format!("{head}[model]\ninit_std = inf"), Err("model.init_std = inf: must be finite and 0 or more")),
        (format!("{head}[model]\ninit_std = 3e38"), Err("model.init_std = 3e38: must be at most 5e37")),
        (
            format!("{head}[model]\ntable_budget = 1"),
            Err("c.toml: model.table_budget = 1: a table without rows takes "),
        ),
        (format!("{head}[model]\ntable_budget = \"64KiB\""), Ok(())),
        (format!("{head}[optimizer]\nalpha = 0.3"), Ok(())),
        (format!("{head}[optimizer]\nalpha = inf"), Err("optimizer.alpha = inf must be")),
        (format!("{head}[optimizer]\nlr = 0.3"), Err("unknown field `lr`, expected one of `alpha`")),
        (format!("{head}[optimizer]\ntype = \"x\""), Err("unknown variant `x`, expected one of `sgd`")),
        (
            format!("{head}[train]\nschedule = \"exponential\""),
            Err("expected a table, such as { type = \"exponential\", factor = 0.9 }; its types are constant"),
        ),
        (format!("{head}[train]\nbatch_size = 0"), Err("train.batch_size")),
        (format!("{head}[train]\nbatches = 1"), Err("batches")),
        (format!("{head}[train]\nearly_stop = 1"), Err("data.valid")),
        (format!("{head}table = \"(bias)\""), Err("constant term")),
        (format!("{head}dim = 3\n[model]\ntype = \"fm\"\nrank = 3"), Err("leave dim out")),
        (format!("{head}dim = 4\n[model]\ntype = \"fm\"\nrank = 3"), Ok(())),
        (format!("{head}[train]\nwarmup_steps = 5"), Err("FTRL")),
        (format!("{head}[train]\nwarmup_steps = 5\n[optimizer]\ntype = \"sgd\""), Ok(())),
        (format!("{head}[factor_optimizer]\ntype = \"adam\""), Ok(())),
        (format!("{head}[optimizer]\ntype = \"ftrl\"\nalhpa = 1.0"), Err("alhpa")),
        (
            format!("{head}[optimizer]\ntype = \"ftrl\"\nalpha = -1.0"),
            Err("c.toml: optimizer.alpha = -1 must be"),
        ),
        (
            format!("{head}[factor_optimizer]\ntype = \"adam\"\neps = 0.0\n[model]\ntype = \"fm\""),
            Err("factor_optimizer.eps = 0 must be"),
        ),
        (format!("name = \"../x\"\n{head}"), Err("letters")),
        (
            data("train = \"-\"\nformat = \"csv\"\n[[feature]]\neach = [\"a\", \"b\"]\ntype = \"quantile\""),
            Err("feature \"a\": quantile boundaries"),
        ),
        ("[data]\ntrain = \"-\"\nformat = \"libsvm\"\n[train]\npasses = 2".to_string(), Err("only once")),
        // By what it is, not by its name.
        (
            "[data]\ntrain = \"/dev/null\"\nformat = \"libsvm\"\n[train]\npasses = 2".to_string(),
            Err("/dev/null can be read only once"),
        ),
        (
            "[data]\ntrain = \"/dev/null\"\nformat = \"libsvm\"\n[train]\nthreads = 2\nsave_every_steps = 9"
                .to_string(),
            Err("save_every_steps with several threads"),
        ),
    ] {
        match (parse(&text), expected) {
            // Every listed format is one.
            (Err(error), Err(_)) if error.contains("`train`, `valid`, `libsvm`") => {
                panic!("{text}\n{error}")
            }
            (Ok(config), Ok(())) => {
                let again = Config::parse(&config.to_toml(), Path::new("again"), "x").unwrap();
                assert_eq!(again, config, "{text}");
                let json = serde_json::to_string(&config).unwrap();
                assert_eq!(Config::from_json(&json, |_| ()).unwrap(), config, "{text}");
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{text}\n{error}"),
            (got, expected) => panic!("{text}\ngave {got:?}, expected {expected:?}"),
        }
    }
}

/// Saved models stay readable.
#[test]
fn more_is_demanded_of_what_somebody_writes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    let check = |entry: &str, feature: &str, expected: &str| {
        let text = format!("[data]\ntrain = \"a.csv\"\n{entry}\n[[feature]]\nname = \"f\"\n{feature}\n");
        std::fs::write(&path, &text).unwrap();
        let saved = Config::parse(&text, &path, "c").unwrap();
        let json = serde_json::to_string(&saved).unwrap();
        for read in [Config::read(&path, &[], |_| ()), Config::from_json(&json, |_| ())] {
            let error = read.unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    };
    check("", "type = \"quantile\"\nboundaries = []", "feature \"f\": boundaries = []");
    check("columns = []", "", "data.columns = []: name every column");
}
