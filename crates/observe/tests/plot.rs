//! Charts as text: well-formed, free of ids and of anything outside, and never a panic, whatever the numbers.

use proptest::prelude::*;
use sanderling_observe::plot::{
    Bar, CalibrationPoint, Figure, LineChart, Look, Series, bars, calibration, roc, standalone,
};

const LOOKS: [Look; 4] = [Look::Line, Look::Dashed, Look::Dots, Look::Crosses];

fn series(name: &str, points: &[(f64, f64)], look: Look) -> Series {
    Series { name: name.into(), points: points.to_vec(), look, color: 0 }
}

fn chart(title: &str, points: &[(f64, f64)], log: bool) -> LineChart {
    let mut drawn: Vec<Series> = LOOKS.map(|look| series(title, points, look)).into();
    drawn.push(series("other", &[], Look::Line));
    LineChart {
        title: title.into(),
        x_label: "step".into(),
        y_label: title.into(),
        x_log: log,
        x_room: !log,
        x_ends: points.first().filter(|_| points.len() == 3).map(|&(x, y)| (x, y)),
        y_log: log,
        y_from_zero: points.len().is_multiple_of(2),
        series: drawn,
        x_marks: vec![1.0, f64::NAN],
        y_marks: vec![(3.0, title.into()), (f64::NAN, title.into())],
        x_ticks: if points.len() > 2 {
            vec![(1.0, title.into()), (f64::NAN, "no".into())]
        } else {
            Vec::new()
        },
    }
}

fn line(title: &str, points: &[(f64, f64)], log: bool) -> String {
    let chart = chart(title, points, log);
    let figure = Figure { width_px: 700, panels: vec![(chart.clone(), 300), (chart.clone(), 200)] };
    check(&figure.svg());
    chart.svg()
}

/// Every opened element is closed in order, and nothing is there that a page could not hold.
fn check(svg: &str) {
    assert!(
        svg.starts_with("<svg class=\"chart\" role=\"img\" ") && svg.trim_end().ends_with("</svg>"),
        "{svg}"
    );
    assert!(
        !svg.contains(" id=") && !svg.contains("http") && !svg.contains("NaN") && !svg.contains("not drawn")
    );
    let mut open: Vec<&str> = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("no end of tag in {tag:?}"));
        let name = tag.split([' ', '/']).find(|part| !part.is_empty()).unwrap_or_default();
        match tag {
            _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name)),
            _ if tag.ends_with('/') => (),
            _ => open.push(name),
        }
    }
    assert!(open.is_empty(), "left open: {open:?}");
}

#[test]
fn numbers_that_are_awkward() {
    const POINTS: [&[(f64, f64)]; 8] = [
        &[],
        &[(0.0, 0.0)],
        &[(1.0, 0.5)],
        &[(1.0, f64::NAN), (2.0, f64::INFINITY)],
        &[(-1.0, 3.0), (1.0, 3.0)],
        &[(0.0, 1e308), (1e308, -1e308)],
        &[(1.0, 1.0), (1.0 + 1e-15, 1.0 + 1e-15)],
        &[(5.0, 0.1), (1.0, 0.2), (3.0, 0.0)],
    ];
    for points in POINTS {
        check(&line("t", points, false));
        check(&line("t", points, true));
        check(&roc("t", points));
        for examples in [0.0, 1.0, 1e12, f64::NAN] {
            let point =
                |&(predicted, observed): &(f64, f64)| CalibrationPoint { predicted, observed, examples };
            check(&calibration("t", &points.iter().map(point).collect::<Vec<_>>()));
        }
        let bar = |&(value, _): &(f64, f64)| Bar { name: "n".into(), value, text: "v".into() };
        check(&bars("t", &points.iter().map(bar).collect::<Vec<_>>()));
    }
}

#[test]
fn names_are_escaped_and_shortened() {
    let name = format!("</svg><script>\"'&\u{0}{}", "x".repeat(500));
    for svg in [line(&name, &[(1.0, 1.0)], false), roc(&name, &[]), calibration(&name, &[])] {
        check(&svg);
        assert!(!svg.contains("<script"));
    }
    let rows = [Bar { name: name.clone(), value: 1.0, text: name.clone() }];
    check(&bars("", &rows));
    assert!(bars("", &rows).len() < 2000);
}

#[test]
fn a_tiny_range_beside_a_huge_one_is_drawn() {
    check(&line(
        "t",
        &[(0.0, 1.547_785_272_370_165_6e-103), (0.0, 0.0), (5.354_315_315_021_247e32, 0.0)],
        false,
    ));
}

#[test]
fn a_file_has_a_name_space() {
    let file = standalone(&roc("t", &[(0.0, 0.0), (1.0, 1.0)]));
    assert!(
        file.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"480\" height=\"400\" "),
        "{file}"
    );
    assert!(file.contains(" fill=\"#FFFFFF\"/>\n"), "it is on white");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_numbers(points in proptest::collection::vec((any::<f64>(), any::<f64>()), 0..30), x_log: bool) {
        check(&line("t", &points, x_log));
        let point = |&(predicted, observed): &(f64, f64)| CalibrationPoint { predicted, observed, examples: 3.0 };
        check(&calibration("t", &points.iter().map(point).collect::<Vec<_>>()));
        check(&roc("t", &points));
    }
}
