#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;

fn point(area_mm2: f64, rate: f64) -> DesignPoint {
    DesignPoint { x: area_mm2, outcome: DesignStatus::Evaluated, y: Some(rate) }
}

fn less(label: &str) -> AxisScale {
    AxisScale { label: label.into(), more_is_better: false }
}

fn more(label: &str) -> AxisScale {
    AxisScale { label: label.into(), more_is_better: true }
}

fn series(name: &str, points: Vec<DesignPoint>) -> RunSeries {
    RunSeries { name: name.into(), points, front: "Pareto front".into(), largest_x: None, third: None }
}

fn plot(points: Vec<DesignPoint>) -> ParetoPlot {
    let reference = |label: &str, rate| NamedDesign {
        label: label.into(),
        chip: label.into(),
        run: None,
        x: 278.8,
        y: rate,
        best: false,
    };
    ParetoPlot {
        noun: "design",
        title: "llama2-7b on 1024 devices".into(),
        subtitle: "study phaze; proven".into(),
        x: less("die area (mm² at 7 nm)"),
        y: more("throughput (sequences/s)"),
        series: vec![series("", points)],
        references: vec![reference("TPUv4, our plan", 90.0), reference("TPUv4, expert's plan", 80.0)],
        left_out: Some("not drawn for want of die area: tpu_v7".into()),
    }
}

#[test]
fn degenerate_plots_draw() {
    let infeasible = DesignPoint { x: 200.0, outcome: DesignStatus::Infeasible, y: None };
    let unbounded = DesignPoint { x: 200.0, outcome: DesignStatus::Pruned, y: Some(f64::INFINITY) };
    for points in
        [vec![], vec![point(100.0, 50.0)], vec![point(100.0, 50.0), point(100.0, 60.0)], vec![infeasible, unbounded]]
    {
        let figure = draw_pareto(&plot(points.clone())).unwrap();
        assert!(!figure.svg().contains("NaN") && !figure.svg().contains("inf,"));
        assert!(figure.png().unwrap().starts_with(b"\x89PNG"));
        let mut bare = plot(points);
        bare.references.clear();
        draw_pareto(&bare).unwrap();
    }
}

#[test]
fn the_same_points_give_the_same_bytes() {
    let points: Vec<DesignPoint> = (0..500).map(|i| point(100.0 + f64::from(i % 97), f64::from(i % 31))).collect();
    let (a, b) = (draw_pareto(&plot(points.clone())).unwrap(), draw_pareto(&plot(points)).unwrap());
    assert_eq!(a, b);
    assert_eq!(a.png().unwrap(), b.png().unwrap());
}

#[test]
fn labels_and_units_are_in_the_figure() {
    let figure = draw_pareto(&plot(vec![point(100.0, 50.0)])).unwrap();
    for words in [
        "die area (mm² at 7 nm)",
        "throughput (sequences/s)",
        "TPUv4, our plan",
        "TPUv4, expert&apos;s plan",
        "1 evaluated",
        "tpu_v7",
    ] {
        assert!(figure.svg().contains(words), "{words}");
    }
}

#[test]
fn designs_of_several_runs_are_numbered_and_named_in_the_legend() {
    let rejected = DesignPoint { x: 200.0, outcome: DesignStatus::Pruned, y: Some(60.0) };
    let series = |name: &str| series(name, vec![point(100.0, 50.0), rejected]);
    let several = ParetoPlot { series: vec![series("one"), series("two")], ..plot(vec![]) };
    let figure = draw_pareto(&several).unwrap();
    let svg = figure.svg();
    for words in [
        "1  TPUv4, our plan",
        "2  TPUv4, expert&apos;s plan",
        "one: 1 evaluated",
        "two: 1 evaluated",
        "2 rejected by bound",
    ] {
        assert!(svg.split_whitespace().collect::<Vec<_>>().join(" ").contains(&words.replace("  ", " ")), "{words}");
    }
    // Each mark has one number beside it.
    let numbers = |number: &str| svg.lines().filter(|line| line.trim() == number).count();
    assert_eq!((numbers("1"), numbers("2"), numbers("3")), (1, 1, 0));
}

#[test]
fn the_front_ends_where_designs_do() {
    let stroke = format!("stroke=\"#{:02X}{:02X}{:02X}\"", PALETTE[0].0, PALETTE[0].1, PALETTE[0].2);
    // Returns x at the last point of the front's line, and the frame of the plot.
    let end = |largest_x: Option<f64>| {
        let mut plot = plot(vec![point(100.0, 50.0), point(200.0, 60.0)]);
        plot.references[0].x = 900.0;
        plot.series[0].largest_x = largest_x;
        let (figure, frame) = (draw_pareto(&plot).unwrap(), plot_frame(&plot));
        let line =
            figure.svg().lines().find(|line| line.contains("<polyline") && line.contains(&stroke)).unwrap().to_owned();
        let places = line.split_once("points=\"").unwrap().1.split_once('"').unwrap().0.to_owned();
        let x: i32 = places.split_whitespace().last().unwrap().split_once(',').unwrap().0.parse().unwrap();
        (x, frame)
    };
    let (x, frame) = end(Some(600.0));
    assert_eq!(x, frame.x.position_of(600.0));
    let (x, frame) = end(None);
    assert_eq!(x, frame.x.position_of(200.0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_point_of_the_front_is_dominated_and_every_other_is(
        raw in prop::collection::vec((1..40_u8, 1..40_u8), 1..60), right in any::<bool>(), up in any::<bool>(),
    ) {
        let points: Vec<DesignPoint> = raw.iter().map(|(a, r)| point(f64::from(*a), f64::from(*r))).collect();
        let scale = |more: bool| if more { self::more("") } else { less("") };
        let front = front_points(&points, &scale(right), &scale(up));
        let as_good = |more: bool, a: f64, b: f64| if more { a >= b } else { a <= b };
        let beats = |a: (f64, f64), b: (f64, f64)| as_good(right, a.0, b.0) && as_good(up, a.1, b.1) && a != b;
        for p in evaluated_points(&points) {
            let dominated = evaluated_points(&points).any(|q| beats(q, p));
            prop_assert_eq!(front.contains(&p), !dominated);
        }
        prop_assert!(front.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}

#[test]
fn designs_on_the_front_for_a_third_quantity_have_rings() {
    let mut plot = plot(vec![point(100.0, 50.0), point(120.0, 40.0)]);
    plot.series[0].third = Some(("power".into(), vec![(100.0, 50.0), (120.0, 40.0)]));
    let svg = draw_pareto(&plot).unwrap().svg().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(svg.contains("Pareto front with power, 1 design") && svg.contains("Pareto front, 1 design"), "{svg}");
}

#[test]
fn every_number_has_its_name_however_many_there_are_and_every_best_is_one() {
    let series = |name: &str| series(name, vec![point(100.0, 50.0)]);
    let words = "a chip with a long name that takes two lines of the legend";
    let reference = |i: i32| NamedDesign {
        label: format!("{words}, {i}"),
        chip: i.to_string(),
        run: None,
        x: 100.0 + 20.0 * f64::from(i),
        y: 50.0 + 3.0 * f64::from(i),
        best: i == 0 || i == 9,
    };
    let references: Vec<NamedDesign> = (0..20).map(reference).collect();
    let several = ParetoPlot { series: vec![series("one"), series("two")], references, ..plot(vec![]) };
    let svg = draw_pareto(&several).unwrap().svg().to_owned();
    let lines = || svg.lines().map(str::trim);
    assert!(!svg.contains(" more"), "{svg}");
    for number in 1..=20 {
        let named = lines().any(|line| {
            line.starts_with(&format!("{number}  a chip")) || line.starts_with(&format!("{number} a chip"))
        });
        assert!(named && lines().any(|line| line == number.to_string()), "{number}: {svg}");
    }
    // A short legend leaves the height at its minimum.
    assert!(svg.contains("<svg width=\"1200\"") && !svg.contains("height=\"720\" viewBox"));
    assert!(draw_pareto(&plot(vec![point(100.0, 50.0)])).unwrap().svg().contains("height=\"720\" viewBox"));
    // For each of two designs: a diamond beside its name and one in the plot.
    let diamonds = lines()
        .filter(|line| line.starts_with("<polygon") && shape_of(line).1 == shape_of_mark(PlotMark::Diamond, 8).1);
    assert_eq!(diamonds.filter(|line| line.contains(&fill(INK))).count(), 4, "{svg}");
}

fn fill(color: RGBColor) -> String {
    format!("fill=\"#{:02X}{:02X}{:02X}\"", color.0, color.1, color.2)
}

/// Returns the first corner of a polygon, and all corners relative to it.
fn shape_of(polygon: &str) -> (SvgPoint, Vec<SvgPoint>) {
    let places = polygon.split_once("points=\"").unwrap().1.split_once('"').unwrap().0;
    let corner = |place: &str| {
        let (x, y) = place.split_once(',').unwrap();
        (x.parse::<i32>().unwrap(), y.parse::<i32>().unwrap())
    };
    let corners: Vec<SvgPoint> = places.split_whitespace().map(corner).collect();
    let first = corners[0];
    (first, corners.iter().map(|(x, y)| (x - first.0, y - first.1)).collect())
}

/// Returns the polygon of a mark at (50, 50), in the form of [`shape_of`].
fn shape_of_mark(mark: PlotMark, radius: i32) -> (SvgPoint, Vec<SvgPoint>) {
    let figure = Canvas::draw_figure("", (100, 100), |canvas| canvas.draw_mark(mark, (50, 50), radius, INK.to_rgba()));
    let figure = figure.unwrap();
    shape_of(figure.svg().lines().find(|line| line.trim().starts_with("<polygon")).unwrap())
}

#[test]
fn no_two_named_designs_share_a_mark_and_every_mark_stands_at_its_data() {
    let chips = ["best found", "smallest within 1 %", "phaze_tpuv4, our best plan", "phaze_tpuv4, expert's placement"];
    let design = |(i, chip): (usize, &&str)| NamedDesign {
        label: (*chip).into(),
        chip: (*chip).into(),
        run: None,
        x: 278.8 + 0.01 * i as f64,
        y: 90.0,
        best: i == 0,
    };
    let references: Vec<NamedDesign> = chips.iter().enumerate().map(design).collect();
    let named: Vec<&NamedDesign> = references.iter().collect();
    let looks = looks_of_references(&named);
    for (i, look) in looks.iter().enumerate() {
        assert!(looks[..i].iter().all(|other| other.0 != look.0), "{looks:?}");
    }
    // In two runs each chip has one mark, in the colours of the runs.
    let again = references.iter().map(|design| NamedDesign { run: Some(1), ..design.clone() });
    let both: Vec<NamedDesign> =
        references.iter().map(|design| NamedDesign { run: Some(0), ..design.clone() }).chain(again).collect();
    let looks = looks_of_references(&both.iter().collect::<Vec<_>>());
    for (own, other) in looks.iter().zip(&looks[chips.len()..]) {
        assert!(own.0 == other.0 && own.2 != other.2, "{looks:?}");
    }
    let plot = ParetoPlot { references, ..plot(vec![point(100.0, 50.0)]) };
    let svg = draw_pareto(&plot).unwrap().svg().to_owned();
    let drawn: Vec<(SvgPoint, Vec<SvgPoint>)> = svg
        .lines()
        .filter(|line| line.trim().starts_with("<polygon") && line.contains(&fill(INK)))
        .map(shape_of)
        .collect();
    assert_eq!(drawn.len(), chips.len(), "{svg}");
    // The first design is drawn last, and every mark stands at its data.
    let (frame, mut over) = (plot_frame(&plot), 0);
    let looks = looks_of_references(&plot.references.iter().collect::<Vec<_>>());
    for ((design, (mark, ..)), (first, shape)) in plot.references.iter().zip(looks).zip(drawn.iter().rev()) {
        let radius = (6..40).find(|radius| shape_of_mark(mark, *radius).1 == *shape);
        let radius = radius.unwrap_or_else(|| unreachable!("{}: {svg}", design.label));
        let ((x, y), (at, _)) = (frame.position_of(design.x, design.y), shape_of_mark(mark, radius));
        assert_eq!((first.0 - at.0 + 50, first.1 - at.1 + 50), (x, y), "{}", design.label);
        assert!(radius > over, "{}: {radius}", design.label);
        over = radius;
    }
}
