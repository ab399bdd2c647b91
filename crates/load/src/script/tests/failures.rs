//! Mistakes of scripts and their error texts.

use super::*;

/// Checks a script with an error, and what is said about it; what is not said.
fn check(source: &str, expected: &[&str], lacking: &mut Vec<String>) {
    let told = failure(source);
    lacking.extend(
        expected
            .iter()
            .filter(|part| !told.contains(**part))
            .map(|part| format!("{source}\nlacks {part:?}:\n{told}\n")),
    );
}

/// Error of a script at compilation, set-up, or in cycle 0 of `f`; the slot must be free afterwards.
fn failure(source: &str) -> String {
    let mut program = Program::new("mine.rn", source);
    if source.contains("param!") {
        program.set("keys=many").unwrap();
    }
    let made = Thread::new(&program, 1, &target("embedded:"), 2).and_then(|mut thread| {
        if source.contains("fn schema") {
            thread.script.schema()?;
        }
        thread.script.prepare()?;
        thread.script.function("f")?;
        Ok(thread)
    });
    let mut thread = match made {
        Ok(thread) => thread,
        Err(error) => return error.to_string(),
    };
    let results = thread.run("f", 0..3);
    assert_eq!(results.len(), 3, "{source}");
    let failure = results[0].1.clone().expect_err(source);
    assert!(results.iter().all(|(_, result)| result.is_err()), "{source}");
    failure.to_string()
}

const TABLE: &str = "pub fn schema(ctx) { ctx.create(\"t\", #{ dim: 2 }); }
pub fn prepare(ctx) { #{ rows: ctx.table(\"t\"), keys: ctx.keys(keys::uniform(100)) } }
";

#[test]
fn errors_name_the_file_and_the_line_and_show_the_place() {
    let mut lacking = Vec::new();
    let mut check = |source: &str, expected: &[&str]| check(source, expected, &mut lacking);
    // Of the compiler.
    check("pub async fn f(ctx) { let = 3; }", &["mine.rn does not compile", "mine.rn:1:", "^"]);
    check("pub async fn f(ctx) {\n    nothing(3)\n}", &["mine.rn:2:5", "2 │     nothing(3)", "^^^^^^^"]);
    check(
        "const K = param!(\"keys\", 5);\npub async fn f(ctx) { K }",
        &["parameter keys: \"many\"", "such as", "1:11"],
    );
    check("const K = param!(keys);\npub async fn f(ctx) { K }", &["mine.rn:1:18", "^"]);
    // Of the set-up.
    check(
        "pub fn prepare(ctx) {\n    ctx.keys(keys::zipf(0, 0.9))\n}",
        &["in prepare", "mine.rn:2:5", "^", "0 keys"],
    );
    check(
        "pub fn prepare(ctx) { ctx.keys(keys::uniform(-1)) }",
        &["mine.rn:1:23", "-1 keys: there must be 1 to"],
    );
    check("pub fn prepare(ctx) { ctx.table(\"u\") }", &["in prepare", "unknown_table", "^"]);
    check(
        "pub fn schema(ctx) { ctx.create(\"t\", #{ dmi: 2 }); }",
        &["in schema", "did you mean \"dim\"", "^"],
    );
    check(
        "pub fn schema(ctx) { ctx.create(\"t\", #{ dim: 2, optimizer: \"magic\" }); }",
        &["option optimizer", "adagrad"],
    );
    check(
        "pub fn schema(ctx) { ctx.create(\"t\", #{ dim: 2, budget: \"lots\" }); }",
        &["option budget", "2GiB"],
    );
    check(
        "pub fn prepare(ctx) { ctx.keys(keys::uniform(9)).draw(3) }",
        &["in prepare", "workload functions"],
    );
    check("pub fn prepare(ctx, my) { }", &["prepare takes one argument"]);
    check("pub async fn load(ctx) { }", &["load_cycles"]);
    let much = "let all = []; for n in 0..50_000 { all.push(n); } all.len()";
    check(
        &format!("pub async fn load(ctx) {{ }}\npub fn load_cycles() {{ {much} }}"),
        &["in load_cycles", "script values", "mine.rn:2:"],
    );
    check("pub async fn g(ctx) { }", &["no `pub async fn f`", "there is g"]);
    check("pub async fn f(ctx, my, more) { }", &["3 arguments"]);
    let large = TABLE.replace("dim: 2", "dim: 65536");
    let push = "pub async fn f(ctx, my) { ctx.push(my.rows, my.keys.draw(2000), 1).await }";
    check(&format!("{large}{push}"), &["draw fewer keys", "^"]);
    // Of calls.
    let calls = [
        ("let x = 1 + \"a\";", &["script: ", "mine.rn:4:9", "^^^^^^^ Unsupported binary operation"][..]),
        ("missing.field", &["mine.rn:4:1"]),
        ("let x = [];\n    x[5]", &["mine.rn:5:5", "^^^^"]),
        ("ctx.pull(my.rows, 3).await?;", &["mine.rn:4:1", "^"]),
        ("ctx.pull(my.rows, my.keys.draw(-1)).await?;", &["-1 keys cannot be drawn", "^"]),
        ("ctx.pull(my.row, my.keys.draw(1)).await?;", &["mine.rn:4:", "row", "^"]),
        ("ctx.pul(my.rows, my.keys.draw(1)).await?;", &["mine.rn:4:1", "pul"]),
        ("ctx.push(my.rows, my.keys.draw(1), \"big\").await?;", &["grads::constant", "^"]),
        ("ctx.push(my.rows, [1, 2], 0.1).await?;", &["keys are what a source drew", "^"]),
        ("loop {}", &["1000000 instructions", "mine.rn:4:1", "^"]),
        ("fn deep(n) { deep(n + 1) + 1 }\ndeep(0)", &["script values", "recursion"]),
        ("async fn deep(n) { deep(n + 1).await + 1 }\ndeep(0).await", &["script values", "recursion"]),
        ("fn deep(n) { [1].iter().map(|x| deep(n + x)).collect::<Vec>() }\ndeep(0)", &["script values"]),
        ("panic!(\"no\")", &["mine.rn:4:1", "no", "^"]),
        ("ctx.pull(my.rows, my.keys.draw(1))", &["never awaited"]),
        ("ctx.pull(my.rows, my.keys.draw(1));", &["never awaited"]),
        (
            "let a = ctx.pull(my.rows, my.keys.draw(1));\nlet b = ctx.pull(my.rows, my.keys.draw(1));",
            &["under way already"],
        ),
        ("\"text\"", &["must return nothing"]),
        ("Ok(Ok(#{ a: 3 }))", &["must return nothing"]),
        ("Err(\"by itself\")", &["script: mine.rn: by itself"]),
        ("Err(3)", &["an Err of"]),
    ];
    for (body, expected) in calls {
        check(&format!("{TABLE}pub async fn f(ctx, my) {{\n{body}\n}}"), expected);
    }
    assert!(lacking.is_empty(), "{}", lacking.join("\n"));
}

/// Of an error with all the calls that led there, what a script should not have done stands before them.
#[test]
fn hints_stand_where_they_are_seen() {
    let deep = "fn g(n) { g(n + 1) + 1 }\npub async fn f(ctx, my) { g(0); }";
    let told = failure(deep);
    assert!(told.lines().count() > 20, "{told}");
    let first: Vec<&str> = told.lines().take(3).collect();
    assert!(first.iter().any(|line| line.contains("is there a recursion without end?")), "{told}");
}

#[test]
fn what_a_request_came_to_is_the_scripts_to_judge() {
    // The gradient is not finite: the table refuses it.
    let bad = "ctx.push(my.rows, my.keys.draw(2), 1e30)";
    let called = |body: &str| {
        let source = format!("{TABLE}pub async fn f(ctx, my) {{ {body} }}");
        let mut thread = Thread::new(&Program::new("mine.rn", source), 1, &target("embedded:"), 2).unwrap();
        thread.script.schema().unwrap();
        thread.script.prepare().unwrap();
        let results = thread.run("f", 0..6);
        let failed = thread.ended.iter().filter(|ended| ended.outcome.is_err()).count();
        (results.into_iter().next().unwrap().1, failed)
    };
    let (result, failed) = called(&format!("{bad}.await"));
    assert_eq!((result.unwrap_err().kind, failed), ("bad_gradient", 6));
    let (result, _) = called(&format!("{bad}.await?; panic!(\"not reached\")"));
    assert_eq!(result.unwrap_err().kind, "bad_gradient");
    let swallowed = format!(
        "match {bad}.await {{ Ok(n) => panic!(\"!\"), Err(e) => if e.kind() != \"bad_gradient\" {{ return Err(`${{e}}`) }} }}"
    );
    assert_eq!(called(&swallowed), (Ok(()), 6));
    let (result, _) =
        called(&format!("match {bad}.await {{ Ok(n) => (), Err(e) => return Err(`it was ${{e}}`) }}"));
    assert!(result.unwrap_err().message.contains("it was bad_gradient: "));
    assert_eq!(called("3 + 4").0, Ok(()));
    assert_eq!(called("").0, Ok(()));
    // Seven keys that have no row.
    let source = "let n = ctx.pull(my.rows, my.keys.draw(7)).await?; if n != 7 { panic!(\"n\") } Ok(n)";
    assert_eq!(called(source), (Ok(()), 0));
}

#[test]
fn only_the_first_failures_are_drawn() {
    let program = Program::new("mine.rn", "pub async fn f(ctx) {\n  1 + \"a\"\n}");
    let mut thread = Thread::new(&program, 1, &target("nowhere:"), 1).unwrap();
    thread.script.prepare().unwrap();
    let told: Vec<String> = thread.run("f", 0..20).into_iter().map(|(_, r)| r.unwrap_err().message).collect();
    assert_eq!(told.iter().filter(|told| told.contains('^')).count() as u64, FAILURES_DRAWN_MAX);
    assert!(told[19].starts_with("mine.rn:2:3: "), "{}", told[19]);
}
