//! The example measures every transport, here with few frames: it runs, answers every request, and refuses what it does
//! not know.

#[path = "../examples/echo.rs"]
mod echo;

fn check(arguments: &str, refused: Option<&str>) {
    let result = echo::measure(arguments.split_whitespace().map(str::to_owned));
    match (result, refused) {
        (Ok(()), None) => {}
        (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{arguments}: {error}"),
        (other, _) => panic!("{arguments}: {other:?}"),
    }
}

#[test]
fn it_runs_tiny() {
    check("", None);
    check("--read --frames 50 --in-flight 2 --request-bytes 0 --reply-bytes 0", None);
    check("--transports pigeon", Some("unknown transport pigeon"));
    check("--frames", Some("--frames needs a value"));
    check("--fast", Some("unknown argument --fast"));
}
