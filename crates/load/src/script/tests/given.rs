//! Options of scripts: parameters, and weights of functions.

use super::*;

#[test]
fn parameters_are_read_as_their_defaults_are() {
    let source = "const A = param!(\"keys\", 10_000, \"how many\"); const B = param!(\"theta\", 0.99);
        const C = param!(\"deep\", true); const D = param!(\"dtype\", \"f32\"); const E = param!(\"low\", 5);
        pub async fn f(ctx) { Err(`${A} ${B} ${C} ${D} ${E}`) }";
    let told = |given: &[&str]| {
        let mut program = Program::new("mine.rn", source);
        for given in given {
            program.set(given).unwrap();
        }
        let mut thread = Thread::new(&program, 1, &target("nowhere:"), 1)?;
        thread.script.prepare()?;
        let (_, result) = thread.run("f", [0]).remove(0);
        Ok::<_, ScriptError>(result.unwrap_err().message.trim_start_matches("mine.rn: ").to_owned())
    };
    assert_eq!(told(&[]).unwrap(), "10000 0.99 true f32 5");
    assert_eq!(
        told(&["keys=1e8", "theta=.5", "deep=false", "dtype=bf16", "low=-3"]).unwrap(),
        "100000000 0.5 false bf16 -3"
    );
    assert_eq!(told(&["keys=64KiB", "theta=-1"]).unwrap(), "65536 -1.0 true f32 5");
    let unknown = told(&["kyes=3"]).unwrap_err().to_string();
    assert!(unknown.contains("did you mean \"keys\"?") && unknown.contains("theta=0.99"), "{unknown}");
    assert!(told(&["keys=1.5"]).unwrap_err().to_string().contains("whole number"));
    assert!(told(&["deep=maybe"]).unwrap_err().to_string().contains("true or false"));
    assert!(Program::new("x", "").set("keys").is_err());
    let about = Program::new("mine.rn", source).describe().unwrap();
    assert_eq!((about.params.len(), about.params[0].help.as_str()), (5, "how many"));
    let int = |text: &str| Param::Int(0).same_type(text).ok();
    for (text, value) in
        [("10M", 10_000_000), ("1_000", 1000), ("-2k", -2000), ("9007199254740993", 9_007_199_254_740_993)]
    {
        assert_eq!(int(text), Some(Param::Int(value)), "{text}");
    }
    for text in ["", "inf", "1e30", "nan", "KiB", "1x", "0.5k5"] {
        assert_eq!(int(text), None, "{text}");
    }
}

#[test]
fn a_mix_calls_each_function_as_often_as_it_says() {
    let known: Vec<String> = ["pull", "push", "none"].map(str::to_owned).to_vec();
    let mix = Mix::parse("pull:90, none:0, push:10", &known).unwrap();
    let picked = |seed| (0..100_000).map(|cycle| mix.pick(&Seeds::new(seed), cycle)).collect::<Vec<_>>();
    let counts = picked(1).iter().fold([0_u32; 3], |mut counts, at| {
        counts[*at] += 1;
        counts
    });
    // Five standard deviations of a binomial share.
    assert!((f64::from(counts[0]) - 90_000.0).abs() < 475.0 && counts[1] == 0, "{counts:?}");
    assert_eq!(picked(1), picked(1));
    assert_ne!(picked(1), picked(2));
    for (text, expected) in [
        ("", "1 to 64"),
        ("pul:3", "did you mean \"pull\"?"),
        ("pull:x", "is no number"),
        ("pull:1,pull:2", "twice"),
        ("pull:-1", "0 or more"),
        ("pull:nan", "0 or more"),
        ("pull:0,push:0", "all weights are 0"),
    ] {
        let error = Mix::parse(text, &known).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
    assert_eq!(Mix::parse("push", &known).unwrap().pick(&Seeds::new(1), 77), 0);
    let about = |weights: &str| {
        let source = format!(
            "{weights} pub async fn b() {{}} pub async fn a() {{}} async fn c() {{}} pub fn d() {{}}"
        );
        Program::new("mine.rn", source).describe()
    };
    let parts = |weights| about(weights).unwrap().mix.unwrap().parts().to_vec();
    assert_eq!(parts(""), [("b".to_owned(), 1.0), ("a".to_owned(), 1.0)]);
    assert_eq!(
        parts("pub fn weights() { #{ a: 2.5, b: 97 } }"),
        [("b".to_owned(), 97.0), ("a".to_owned(), 2.5)]
    );
    assert!(
        about("pub fn weights() { #{ c: 1 } }").unwrap_err().to_string().contains("there is no function c")
    );
}
